# One nsid over another backend thirty times, and fifty namespaces coming and going, under I/O: identities never mix.
#
# set: soak
# needs: target roce
# timeout: 900s
# kernel-must: nvme nvme\d+: rescanning namespaces\.
# kernel-may: nvme nvme\d+: Identify Descriptors failed \(nsid=\d+, status=0x6002\)
#
# The last is a scan under way that meets namespaces removed since it began: Invalid Field, as of any that are not active.

NQN=nqn.2026-11.io.nvmf:lab-remap
config() { # config BACKEND-OF-2 COUNT: namespace 2 is on ram0 or ram1, and COUNT more from 10 on
	front
	echo "backends:"
	echo "  - {name: steady, type: mem, size: 32MiB, block_size: 4096}"
	echo "  - {name: ram0, type: mem, size: 8MiB}"
	echo "  - {name: ram1, type: mem, size: 8MiB}"
	local i
	for i in $(seq 10 $((9 + $2))); do echo "  - {name: m$i, type: mem, size: 1MiB}"; done
	echo "subsystems:"
	echo "  - nqn: $NQN"
	echo "    hosts: any"
	echo "    namespaces:"
	echo "      - {nsid: 1, backend: steady}"
	echo "      - {nsid: 2, backend: $1}"
	for i in $(seq 10 $((9 + $2))); do echo "      - {nsid: $i, backend: m$i}"; done
}
uuid_of() { cat "/sys/block/$(basename "$(find_ns $NQN 2)")/uuid" 2>/dev/null; }
changed() { local now; now=$(uuid_of) && [ -n "$now" ] && [ "$now" != "$last" ]; }

config ram0 0 | start_target
connect $NQN
ns_dev $NQN 2
last=$(uuid_of)
ns_dev $NQN 1
start_load "$DEV"
for round in $(seq 30); do
	config "ram$((round % 2))" 0 | reload_target
	wait_until 20 changed
	last=$(uuid_of)
done
echo "ok: 30 changes of namespace 2 seen"
for count in 50 0 50 0; do
	config ram0 $count | reload_target
	if [ $count = 0 ]; then wait_until 60 ns_gone $NQN 59; else wait_until 60 find_ns $NQN 59; fi
done
echo "ok: 50 namespaces came and went twice"
check_eq state "$(ctrl_state "$CTRL")" live
finish_load
