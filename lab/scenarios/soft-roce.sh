# The kernel's host over rxe against the built-in RoCEv2, IPv4 and IPv6, path MTU 1024 and 4096.
#
# set: quick
# needs: target soft_roce
# timeout: 300s
# kernel-must: nvme nvme\d+: resetting controller

NQN=nqn.2026-11.io.nvmf:lab-soft-roce
start_target <<END
version: 1
listeners:
  - {name: four, provider: roce, address: "$ADDR", port: $PORT}
  - {name: six, provider: roce, address: "$ADDR6", port: $PORT}
backends:
  - {name: disk, type: file, path: $WORK/disk.img, size: 64MiB}
  - {name: ram, type: mem, size: 64MiB, block_size: 4096}
subsystems:
  - nqn: $NQN
    hosts: any
    namespaces:
      - {nsid: 1, backend: disk}
      - {nsid: 2, backend: ram}
END
# The link's MTU decides the path's: 1500 gives 1024, 9000 gives 4096.
for mtu in 1500 9000; do
	say "MTU $mtu"
	ip link set eth0 mtu $mtu
	ip -n peer link set eth0 mtu $mtu
	for address in $ADDR $ADDR6; do
		say "$address"
		run nvme discover -t rdma -a "$address" -s $PORT
		ADDR=$address connect $NQN --nr-io-queues=2
		ns_dev $NQN 1
		fio_verify "disk-$mtu-${address//[:.]/-}" "$DEV" --bsrange=512-256k --iodepth=16 --size=4m
		ns_dev $NQN 2
		fio_verify "ram-$mtu-${address//[:.]/-}" "$DEV" --bsrange=4k-1m --iodepth=8 --size=4m
		run nvme reset "/dev/$CTRL"
		wait_until 20 is_live "$CTRL"
		dd if="$DEV" of=/dev/null bs=1M count=4 iflag=direct status=none
		disconnect $NQN
	done
done
