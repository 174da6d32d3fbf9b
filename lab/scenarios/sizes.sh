# Transfers of every size up to and beyond MDTS, with in-capsule data of 0, 4 KiB and 16 KiB.
#
# set: soak
# needs: target roce
# timeout: 150s

NQN=nqn.2026-11.io.nvmf:lab-sizes
head -c $((1028 * 1024)) /dev/urandom >"$RUN/data"
for in_capsule in 0 4KiB 16KiB; do
	say "in_capsule: $in_capsule"
	start_target <<-END
		$(front)
		rdma: {in_capsule: $in_capsule}
		backends:
		  - {name: ram, type: mem, size: 64MiB, block_size: 512}
		subsystems:
		  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
	END
	connect $NQN
	ns_dev $NQN 1
	check_eq "most KiB of one command" "$(cat "/sys/block/${DEV##*/}/queue/max_hw_sectors_kb")" 1024
	for kib in 4 8 12 16 20 64 128 256 512 1020 1024 1028; do
		dd if="$RUN/data" of="$DEV" bs=${kib}k count=1 oflag=direct status=none
		check "$kib KiB" cmp -n $((kib * 1024)) "$RUN/data" <(dd if="$DEV" bs=${kib}k count=1 iflag=direct status=none)
	done
	fio_verify "capsule-$in_capsule" "$DEV" --bsrange=512-20k --iodepth=16 --size=1m
	disconnect $NQN
	stop_target
done
