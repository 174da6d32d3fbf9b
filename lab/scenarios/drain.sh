# SIGTERM under full load: the daemon ends in 5 s, in order; started again, the host goes on.
#
# set: quick
# needs: target roce
# timeout: 180s
# kernel-must: nvme nvme\d+: Successfully reconnected \(\d+ attempts?\)
# kernel-may: nvme nvme\d+: (starting error recovery|Reconnecting in \d+ seconds\.\.\.|Failed reconnect attempt \d+)
# kernel-may: nvme nvme\d+: Connect rejected: status 8 \(invalid service ID\)\.
# kernel-may: nvme nvme\d+: rdma connection establishment failed \(-104\)
# kernel-may: block nvme\d+n\d+: no usable path - requeuing I/O
# kernel-may: nvme_ns_head_submit_bio: \d+ callbacks suppressed

NQN=nqn.2026-11.io.nvmf:lab-drain
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
connect $NQN --reconnect-delay=1 --ctrl-loss-tmo=60
ns_dev $NQN 1
start_load "$DEV" --iodepth=64 --bsrange=4k-256k
sleep 4
stop_target
restart_target
wait_until 30 is_live "$CTRL"
sleep 2
finish_load
