# The lab itself: iWARP over a wire that loses packets.
#
# set: soak
# needs: siw_wire nvmet
# timeout: 120s

NQN=nqn.2026-11.io.nvmf.lab:loss
null_device nullb1 64
nvmet_subsystem $NQN "$DEVICE"
nvmet_listen 1 $ADDR $PORT $NQN

connect $NQN
ns_dev $NQN 1
wire_netem loss 2%
fio_verify lossy "$DEV" --bsrange=512-128k --iodepth=4 --size=2m
wire_netem
check_at_least "packets lost" "$(tc -s -j qdisc show dev w0 | jq '.[0].drops // 0')" 0
disconnect $NQN
nvmet_clear
