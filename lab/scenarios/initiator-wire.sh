# Our host through verbs over a wire: the first dial to a neighbor nobody has asked for yet, then verified load.
#
# The kernel lists who waits for a neighbor after it has asked; over a veth pair the
# answer is there before that, and is noticed when the attempt's time is over.
#
# set: soak
# needs: wire nvmet nvmf
# timeout: 90s

NQN=nqn.2026-11.io.nvmf.lab:wire
null_device nullb1 64
nvmet_subsystem $NQN "$DEVICE"
nvmet_listen 1 $ADDR $PORT $NQN
nvmet_listen 2 $ADDR6 $PORT $NQN

for address in $ADDR $ADDR6; do
	ip neigh flush all
	ip -6 neigh flush all
	ADDR=$address
	check_json "discover at $address" "$(nvmf discover -o json)" "any(.records[]; .subnqn == \"$NQN\")"
	bench_verify "at-${address//[.:]/-}" $NQN 1 --bs 4k --iodepth 8 --size 2m
done
nvmet_clear
