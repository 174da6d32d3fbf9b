# The lab itself: the kernel's host and the kernel's target over rxe.
#
# Discovers, connects, checks what the host sees, verifies I/O on a memory
# device and on a file behind a loop device, and disconnects.
#
# set: soak
# needs: roce nvmet
# timeout: 90s

NQN=nqn.2026-11.io.nvmf.lab:nvmet
null_device nullb1 64
memory=$DEVICE
image disk.img 64M
loop_device "$IMAGE" 4096
nvmet_subsystem $NQN "$memory" "$DEVICE"
nvmet_listen 1 $ADDR $PORT $NQN

run nvme discover -t rdma -a $ADDR -s $PORT
connect $NQN
check_eq state "$(ctrl_state "$CTRL")" live
check_json id-ctrl "$(nvme id-ctrl /dev/$CTRL -o json)" '.mdts > 0' '.sgls != 0' ".subnqn == \"$NQN\""

ns_dev $NQN 1
check_eq "block size of namespace 1" "$(blockdev --getss "$DEV")" 512
fio_verify memory "$DEV" --bs=4k --iodepth=8
filesystem_check "$DEV" ext4

ns_dev $NQN 2
check_eq "block size of namespace 2" "$(blockdev --getss "$DEV")" 4096
fio_verify loop "$DEV" --bsrange=4k-64k --iodepth=4
disconnect $NQN
nvmet_clear
