# Controller resets under I/O, one after the other, and two hosts that connect and disconnect beside it.
#
# set: soak
# needs: target roce
# timeout: 400s
# kernel-must: nvme nvme\d+: resetting controller
# kernel-may: block nvme\d+n\d+: no usable path - requeuing I/O
# kernel-may: nvme_ns_head_submit_bio: \d+ callbacks suppressed

NQN=nqn.2026-11.io.nvmf:lab-reset
start_target <<END
$(front)
backends:
  - {name: disk, type: file, path: $WORK/disk.img, size: 64MiB, block_size: 4096}
  - {name: ram, type: mem, size: 16MiB}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: disk}]}
  - {nqn: $NQN-2, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END
connect $NQN
main=$CTRL
ns_dev $NQN 1
start_load "$DEV" --iodepth=32 --bsrange=4k-64k
(
	for _ in $(seq 30); do
		nvme connect -t rdma -a $ADDR -s $PORT -n $NQN-2
		sleep 0.2
		nvme disconnect -n $NQN-2 >/dev/null
	done
) &
beside=$!
for _ in $(seq 40); do
	nvme reset "/dev/$main"
	wait_until 30 is_live "$main"
done
check "the connects beside it" wait $beside
finish_load
