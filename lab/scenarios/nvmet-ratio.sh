# Side by side with the kernel's target: IOPS and processor time, same job, same boot, as ratios. Nothing is asserted.
#
# set: soak
# needs: target roce nvmet
# timeout: 600s

OURS=nqn.2026-11.io.nvmf:lab-ours
KERNEL=nqn.2026-11.io.nvmf:lab-kernel
seconds=${LAB_SECONDS:-5}
# The same things under both: a device that does nothing, and a plain file on the
# same ext4, which both open with O_DIRECT.
null_device nullb0 1024 512 0
kernel_null=$DEVICE
image kernel.img 256M && kernel_file=$IMAGE
nvmet_subsystem $KERNEL "$kernel_null" "$kernel_file"
nvmet_listen 1 $ADDR 4421 $KERNEL
start_target <<END
$(front)
backends:
  - {name: void, type: "null", size: 1GiB}
  - {name: disk, type: file, path: $WORK/ours.img, size: 256MiB, block_size: 4096}
subsystems:
  - nqn: $OURS
    hosts: any
    namespaces: [{nsid: 1, backend: void}, {nsid: 2, backend: disk}]
END
connect $KERNEL -s 4421
connect $OURS

# machine_ticks: processor time of the whole guest that was not idle.
machine_ticks() { awk '/^cpu / {print $2 + $3 + $4 + $7 + $8}' /proc/stat; }

# measure NQN NSID RW DEPTH: sets IOPS and TICKS (of the guest, per 1000 I/Os).
measure() {
	ns_dev "$1" "$2"
	local before
	before=$(machine_ticks)
	fio_iops "${1##*-}-$2-$3-$4" "$DEV" "$seconds" --rw="$3" --iodepth="$4" --size=256m
	TICKS=$((($(machine_ticks) - before) * 10000 / (IOPS * (seconds + 1) + 1)))
}
for nsid in 1 2; do ns_dev $OURS $nsid && dd if=/dev/zero of="$DEV" bs=1M count=256 oflag=direct status=none; done
ns_dev $KERNEL 2 && dd if=/dev/zero of="$DEV" bs=1M count=256 oflag=direct status=none

printf '%-6s %-9s %5s %12s %12s %7s %22s\n' device job depth "kernel IOPS" "our IOPS" ratio "ms of CPU per I/O, ratio"
for nsid in 1 2; do
	for rw in randread randwrite; do
		for depth in 1 32; do
			measure $KERNEL $nsid $rw $depth
			kernel=$IOPS kernel_ticks=$TICKS
			measure $OURS $nsid $rw $depth
			printf '%-6s %-9s %5s %12s %12s %7s %22s\n' "$([ $nsid = 1 ] && echo null || echo file)" $rw $depth "$kernel" "$IOPS" \
				"$(awk "BEGIN {printf \"%.2f\", $IOPS / $kernel}")" "$(awk "BEGIN {printf \"%.3f / %.3f = %.2f\", $TICKS / 1000, $kernel_ticks / 1000, $TICKS / ($kernel_ticks + 0.001)}")"
		done
	done
done
disconnect_all
stop_target
nvmet_clear
