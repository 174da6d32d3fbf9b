# Two minutes of verified I/O on a file while the daemon is killed with -9 every 15 seconds.
#
# set: soak
# needs: target roce
# timeout: 400s
# kernel-must: nvme nvme\d+: Successfully reconnected \(\d+ attempts?\)
# kernel-may: nvme nvme\d+: (starting error recovery|Reconnecting in \d+ seconds\.\.\.|Failed reconnect attempt \d+)
# kernel-may: nvme nvme\d+: Connect rejected: status 8 \(invalid service ID\)\.
# kernel-may: nvme nvme\d+: rdma connection establishment failed \(-104\)
# kernel-may: nvme nvme\d+: (RECV|MEMREG|LOCAL_INV|SEND) for CQE 0x[0-9a-f]+ failed with status .*
# kernel-may: block nvme\d+n\d+: no usable path - requeuing I/O
# kernel-may: nvme nvme\d+: I/O \d+ QID \d+ timeout
# kernel-may: nvme_ns_head_submit_bio: \d+ callbacks suppressed

NQN=nqn.2026-11.io.nvmf:lab-soak
start_target <<END
$(front)
backends:
  - {name: disk, type: file, path: $WORK/disk.img, size: 256MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: disk}]}
END
connect $NQN --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5
ns_dev $NQN 1
start_load "$DEV" --bsrange=4k-256k --iodepth=32 --size=128m
for round in 1 2 3 4 5 6 7 8; do
	sleep 15
	say "kill -9, round $round"
	kill_target
	wait_until 30 not_live "$CTRL"
	restart_target
	wait_until 60 is_live "$CTRL"
done
sleep 3
finish_load
