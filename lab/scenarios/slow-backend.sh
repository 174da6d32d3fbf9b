# A backend that needs four seconds for each I/O: admin commands, new hosts and other namespaces do not wait for it.
#
# set: soak
# needs: target roce nvmet
# timeout: 120s

NQN=nqn.2026-11.io.nvmf:lab-slow
modprobe null_blk nr_devices=0
dir=/sys/kernel/config/nullb/nullb7
mkdir $dir
echo 64 >$dir/size
echo 2 >$dir/irqmode
echo 4000000000 >$dir/completion_nsec
echo 1 >$dir/power
wait_until 10 test -b /dev/nullb7
start_target <<END
$(front)
rdma: {buffers: 8MiB}
backends:
  - {name: slow, type: file, path: /dev/nullb7, block_size: 512}
  - {name: quick, type: mem, size: 64MiB, block_size: 512}
subsystems:
  - {nqn: $NQN-slow, hosts: any, namespaces: [{nsid: 1, backend: slow}]}
  - {nqn: $NQN-quick, hosts: any, namespaces: [{nsid: 1, backend: quick}]}
END
connect $NQN-slow --keep-alive-tmo=2
slow_ctrl=$CTRL
ns_dev $NQN-slow 1
slow=$DEV
timeout 60 head -c 512 "$slow" >"$OUT/sector" # until the kernel has read its partitions nobody can open it, and nvme opens every namespace
fio --output="$OUT/slow.json" --output-format=json --name=slow --filename="$slow" --ioengine=libaio --direct=1 --rw=randwrite --bs=64k \
	--iodepth=128 --numjobs=1 --time_based --runtime=12 --norandommap &
load=$!
sleep 3

start=$SECONDS
connect $NQN-quick
ns_dev $NQN-quick 1
check_at_most "seconds a new host took to connect" $((SECONDS - start)) $((3 * PATIENCE))
for _ in 1 2 3; do nvme id-ctrl "/dev/$slow_ctrl" >/dev/null; done
check_at_most "seconds until identify was answered, too" $((SECONDS - start)) $((4 * PATIENCE))
fio_verify quick "$DEV" --bs=4k --iodepth=8 --size=1m
check "the slow load" wait $load
check_eq "state of the slow controller" "$(ctrl_state "$slow_ctrl")" live
disconnect_all
stop_target
nvmet_clear
