# The lab itself: the kernel's host and the kernel's target over siw (iWARP).
#
# set: soak
# needs: siw nvmet
# timeout: 60s

NQN=nqn.2026-11.io.nvmf.lab:siw
null_device nullb1 64
nvmet_subsystem $NQN "$DEVICE"
nvmet_listen 1 $ADDR $PORT $NQN

run nvme discover -t rdma -a $ADDR -s $PORT
connect $NQN
ns_dev $NQN 1
fio_verify siw "$DEV" --bsrange=512-128k --iodepth=8
disconnect $NQN
nvmet_clear
