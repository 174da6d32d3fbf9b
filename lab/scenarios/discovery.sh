# Discovery: entries, the log in pieces, generation counter, change events, persistent controllers.
#
# set: quick
# needs: target roce
# timeout: 180s

NQN=nqn.2026-11.io.nvmf:lab-discovery
config() { # config SUBSYSTEM...
	front
	echo "backends:"
	local s
	for s; do echo "  - {name: $s, type: mem, size: 16MiB}"; done
	echo "subsystems:"
	for s; do echo "  - {nqn: $NQN-$s, hosts: any, namespaces: [{nsid: 1, backend: $s}]}"; done
}
config a b c | start_target

say "a discovery controller that lives for one command"
run nvme discover -t rdma -a $ADDR -s $PORT
log=$(nvme discover -t rdma -a $ADDR -s $PORT -o json)
check_json discover "$log" '.records | length == 4' \
	"[.records[] | select(.subtype | test(\"nvme\"; \"i\")) | .subnqn] | map(select(startswith(\"$NQN-\"))) | length == 3" \
	"all(.records[]; .traddr == \"$ADDR\" and .trsvcid == \"$PORT\" and .trtype == \"rdma\" and .adrfam == \"ipv4\")" \
	"any(.records[]; .subnqn == \"$DISCOVERY\")"
before=$(jq .genctr <<<"$log")

say "a persistent one lives past two keep-alive times"
connect $DISCOVERY --keep-alive-tmo=5
dev=/dev/$CTRL
udevadm monitor --kernel --property --subsystem-match=nvme >"$OUT/uevents" &
sleep 11
check_eq "state after 11 s" "$(ctrl_state "$CTRL")" live

say "the log in one piece, in its first 20 bytes, and in pieces of 1024"
nvme get-log $dev -i 0x70 -l 5120 -b >"$RUN/whole"
nvme get-log $dev -i 0x70 -l 20 -b >"$RUN/first"
check "20 bytes are the log's first" cmp -n 20 "$RUN/whole" "$RUN/first"
for i in 0 1 2 3 4; do nvme get-log $dev -i 0x70 -l 1024 -o $((1024 * i)) -b; done >"$RUN/pieces"
check "pieces make the whole" cmp "$RUN/whole" "$RUN/pieces"
check_eq "number of records" "$(od -An -t u8 -j 8 -N 8 "$RUN/whole" | tr -d ' ')" 4

say "nothing changed: no event, same generation"
config a b c | reload_target
sleep 1
check_eq generation "$(nvme discover -t rdma -a $ADDR -s $PORT -o json | jq .genctr)" "$before"
check_eq events "$(grep -c NVME_AEN "$OUT/uevents" || true)" 0

say "a subsystem more: an event, another generation, one entry more"
config a b c d | reload_target
check "the host hears of it" wait_until 5 grep -q NVME_AEN=0x70f002 "$OUT/uevents"
log=$(nvme discover -t rdma -a $ADDR -s $PORT -o json)
check_json "discover after the change" "$log" '.records | length == 5' ".genctr != $before"
kill %udevadm 2>/dev/null || true

say "connect-all, twice"
run nvme connect-all -t rdma -a $ADDR -s $PORT
check_eq controllers "$(nvme list-subsys -o json | grep -c "$NQN-" || true)" 4
run nvme connect-all -t rdma -a $ADDR -s $PORT || true
check_eq "controllers after the second" "$(nvme list-subsys -o json | grep -c "$NQN-" || true)" 4
