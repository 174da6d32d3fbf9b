# The lab itself: host and target with a wire between them, rxe at both ends.
#
# Every packet of IPv4 and IPv6 sessions crosses the wire. Not here: loss. The
# rxe of 6.1 cannot take it ("rxe_reg_fast_mr: mr->lkey not free" on the first
# repeated SEND with invalidate, then the request times out).
#
# set: soak
# needs: wire nvmet
# timeout: 90s

NQN=nqn.2026-11.io.nvmf.lab:wire
null_device nullb1 64
nvmet_subsystem $NQN "$DEVICE"
nvmet_listen 1 $ADDR $PORT $NQN
nvmet_listen 2 $ADDR6 $PORT $NQN

packets() { cat /sys/class/net/w0/statistics/tx_packets; }

for address in $ADDR $ADDR6; do
	before=$(packets)
	connect $NQN -a "$address"
	ns_dev $NQN 1
	fio_verify "at-$address" "$DEV" --bs=4k --iodepth=8 --size=2m
	check_at_least "packets on the wire" $(($(packets) - before)) 1000
	disconnect $NQN
done
nvmet_clear
