# The lab itself: a second network stack where UDP port 4791 is free and the kernel's RoCE and iWARP packets arrive.
#
# set: soak
# needs: siw soft_roce
# timeout: 60s
# kernel-may: nvme nvme\d+: rdma_connect_locked failed \(-111\)\.
# kernel-may: nvme nvme\d+: (rdma connection establishment failed|rdma_resolve_addr wait failed|rdma_resolve_route wait failed) \(-\d+\)

check "the kernel has 4791 here" bash -c "ss -Huln sport = 4791 | grep -q 4791"
check "and not in the other stack" bash -c "! ip netns exec peer ss -Huln sport = 4791 | grep -q 4791"

for mtu in 1500 4200; do
	wire_mtu $mtu
	check_eq "MTU that rxe0 takes of $mtu" "$(ibv_devinfo -d rxe0 | awk '/active_mtu/ {print $2}')" "$([ $mtu = 1500 ] && echo 1024 || echo 4096)"
done
in_peer timeout 60 tshark -n -i eth0 -f 'udp port 4791' -c 1 -T fields -e infiniband.bth.opcode -e infiniband.mad.attributeid >"$OUT/roce" 2>"$OUT/tshark.err" &
capture=$!
wait_until 10 grep -q Capturing "$OUT/tshark.err"
timeout 10 nvme connect -t rdma -a $ADDR -s $PORT -n nqn.2026-11.io.nvmf:lab-peer || true
wait $capture || true
check_text "a packet of the connection manager" "$(cat "$OUT/roce")" '^100.0x0010'

need_soft_iwarp
in_peer timeout 60 tshark -n -i iw0 -f "tcp port $PORT" -c 1 -T fields -e tcp.dstport >"$OUT/iwarp" 2>"$OUT/tshark2.err" &
capture=$!
wait_until 10 grep -q Capturing "$OUT/tshark2.err"
timeout 10 nvme connect -t rdma -a $ADDR -s $PORT -n nqn.2026-11.io.nvmf:lab-peer || true
wait $capture || true
check_eq "a TCP segment of MPA's connection" "$(cat "$OUT/iwarp")" $PORT
