# A host that breaks every rule, byte for byte, over the kernel's RDMA: proper answers, a living daemon, other hosts notice nothing.
#
# The tests are in lab/raw.
#
# set: quick
# needs: target roce raw
# timeout: 180s

NQN=nqn.2026-11.io.nvmf:lab-raw
start_target <<END
$(front)
rdma: {max_queues: 64, in_capsule: 4KiB}
backends:
  - {name: victim, type: mem, size: 64MiB, block_size: 512}
  - {name: other, type: mem, size: 64MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: victim}]}
  - {nqn: $NQN-other, hosts: any, namespaces: [{nsid: 1, backend: other}]}
END
export NVMF_RAW_TARGET=$ADDR:$PORT NVMF_RAW_NQN=$NQN
queue_pairs() { rdma -j resource show qp | jq "[.[] | select(.comm == \"$TARGET_COMM\")] | length"; }
queue_pairs_are() { [ "$(queue_pairs)" = "$1" ]; }
buffers_home() { target_status | jq -e 'all(.rdma.groups[]; .buffers_free_bytes == .buffers_bytes)'; }

connect $NQN-other
ns_dev $NQN-other 1
start_load "$DEV"
wait_until 10 queue_pairs_are 3

check "the raw host's tests" "$RAW" -test.v -test.timeout=150s
check "their queue pairs are gone" wait_until 10 queue_pairs_are 3

say "killed in the middle of it"
for _ in 1 2 3 4; do NVMF_RAW_DIE=1 "$RAW" -test.run=TestDie || true; done >/dev/null 2>&1
check "their queue pairs are gone" wait_until 20 queue_pairs_are 3
check "the raw host again" "$RAW" -test.run=TestCommands
check_eq "state of the other host" "$(ctrl_state "$CTRL")" live
finish_load
check "all buffers are free" wait_until 5 buffers_home
