# Keep-alive times of 1 s and 5 s under full load on two hosts' connections: nobody is thrown out.
#
# set: soak
# needs: target roce
# timeout: 120s

NQN=nqn.2026-11.io.nvmf:lab-ka
start_target <<END
$(front)
backends:
  - {name: a, type: mem, size: 64MiB, block_size: 4096}
  - {name: b, type: file, path: $WORK/b.img, size: 64MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN-1, hosts: any, namespaces: [{nsid: 1, backend: a}]}
  - {nqn: $NQN-5, hosts: any, namespaces: [{nsid: 1, backend: b}]}
END
for seconds in 1 5; do
	connect $NQN-$seconds --keep-alive-tmo=$seconds
	ns_dev $NQN-$seconds 1
	fio --output="$OUT/fio-$seconds.json" --output-format=json --name=ka --filename="$DEV" --ioengine=libaio --direct=1 \
		--rw=randrw --bs=4k --iodepth=128 --numjobs=2 --time_based --runtime=12 --size=32m --norandommap &
	load[seconds]=$!
done
end=$((SECONDS + 10))
commands=0
while [ $SECONDS -lt $end ]; do
	nvme id-ctrl "/dev/$CTRL" >/dev/null
	commands=$((commands + 1))
done
check_at_least "admin commands answered meanwhile" $commands 3
for seconds in 1 5; do check "load with keep-alive time $seconds" wait ${load[seconds]}; done

say "idle: only the keep-alive holds them"
sleep 6
check_eq "live controllers" "$(cat /sys/class/nvme/*/state | grep -c live)" 2
