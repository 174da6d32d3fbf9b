# The daemon killed with -9 under I/O and started again: the host reconnects, its verification passes.
#
# set: quick
# needs: target roce
# timeout: 180s
# kernel-must: nvme nvme\d+: Successfully reconnected \(\d+ attempts?\)
# kernel-may: nvme nvme\d+: (starting error recovery|Reconnecting in \d+ seconds\.\.\.|Failed reconnect attempt \d+)
# kernel-may: nvme nvme\d+: Connect rejected: status 8 \(invalid service ID\)\.
# kernel-may: nvme nvme\d+: rdma connection establishment failed \(-104\)
# kernel-may: nvme nvme\d+: RECV for CQE 0x[0-9a-f]+ failed with status .*
# kernel-may: nvme nvme\d+: (MEMREG|LOCAL_INV|SEND) for CQE 0x[0-9a-f]+ failed with status .*
# kernel-may: block nvme\d+n\d+: no usable path - requeuing I/O
# kernel-may: nvme nvme\d+: (I/O \d+ QID \d+ timeout|failed nvme_keep_alive_end_io error=10)
# kernel-may: nvme_ns_head_submit_bio: \d+ callbacks suppressed

NQN=nqn.2026-11.io.nvmf:lab-restart
config() {
	front
	cat <<-END
		backends:
		  - {name: disk, type: file, path: $WORK/disk.img, size: 64MiB, block_size: 4096}
		subsystems:
		  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: disk}]}
	END
}
config | start_target
connect $NQN --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5
ns_dev $NQN 1
before=$(nvme id-ns "$DEV" -o json)
start_load "$DEV"
for round in 1 2; do
	sleep 3
	say "kill -9, round $round"
	kill_target
	wait_until 20 not_live "$CTRL"
	restart_target
	wait_until 30 is_live "$CTRL"
done
sleep 3
finish_load
check_eq "identity of the namespace" "$(nvme id-ns "$DEV" -o json | jq -c '[.nsze, .nguid, .eui64]')" "$(jq -c '[.nsze, .nguid, .eui64]' <<<"$before")"
