# The daemon on the built-in RoCEv2 beside the daemon on the kernel's rxe: same host, same job, packets over a wire. Nothing is asserted.
#
# set: soak
# needs: target wire soft_roce
# timeout: 400s

NQN=nqn.2026-11.io.nvmf:lab-roce-ratio
seconds=${LAB_SECONDS:-5}
wire=10.9.1.2 # of need_wire; ADDR is the second stack's
wire_mtu 4200

# serve PROVIDER ADDRESS: the daemon there.
serve() {
	start_target <<-END
	version: 1
	listeners: [{name: front, provider: $1, address: "$2", port: $PORT}]
	backends: [{name: void, type: "null", size: 1GiB}]
	subsystems: [{nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: void}]}]
	END
}

declare -A got
for way in rxe roce; do
	if [ $way = rxe ]; then
		address=$wire prefix=("${TARGET_PREFIX[@]}")
		TARGET_PREFIX=()
		serve verbs $address
		TARGET_PREFIX=("${prefix[@]}")
	else
		address=$ADDR
		serve roce $address
	fi
	ADDR=$address connect $NQN --nr-io-queues=1
	ns_dev $NQN 1
	for job in "randread 4k 1" "randread 4k 32" "randwrite 4k 32" "randread 128k 16" "randwrite 128k 16"; do
		read -r rw bs depth <<<"$job"
		fio_iops "$way-$rw-$bs-$depth" "$DEV" "$seconds" --rw=$rw --bs=$bs --iodepth=$depth --size=256m
		got[$way,$job]=$IOPS
	done
	disconnect $NQN
	stop_target
done
printf '%-20s %10s %10s %7s\n' job rxe "built-in" ratio
for job in "randread 4k 1" "randread 4k 32" "randwrite 4k 32" "randread 128k 16" "randwrite 128k 16"; do
	printf '%-20s %10s %10s %7s\n' "$job" "${got[rxe,$job]}" "${got[roce,$job]}" "$(awk "BEGIN {printf \"%.2f\", ${got[roce,$job]} / ${got[rxe,$job]}}")"
done
