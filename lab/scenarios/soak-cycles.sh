# Two hundred connects and disconnects with flat figures; cycles.sh, longer.
#
# set: soak
# needs: target roce
# timeout: 1500s

LAB_CYCLES=200
. "$LAB/scenarios/cycles.sh"
