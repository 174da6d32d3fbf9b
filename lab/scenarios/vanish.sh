# A host that vanishes in the middle of I/O: its resources come back in the keep-alive time, others notice nothing, and it may return.
#
# rxe repeats the registration of a key with the request that used it, and
# complains of itself: that line is allowed here.
#
# set: soak
# needs: target roce wire
# timeout: 150s
# kernel-must: nvme nvme\d+: Successfully reconnected \(\d+ attempts?\)
# kernel-may: nvme nvme\d+: (starting error recovery|Reconnecting in \d+ seconds\.\.\.|Failed reconnect attempt \d+)
# kernel-may: nvme nvme\d+: (I/O \d+ QID \d+ timeout|failed nvme_keep_alive_end_io error=10)
# kernel-may: nvme nvme\d+: (MEMREG|LOCAL_INV|SEND) for CQE 0x[0-9a-f]+ failed with status .*
# kernel-may: nvme nvme\d+: (rdma connection establishment failed|rdma_resolve_addr wait failed|rdma_resolve_route wait failed) \(-\d+\)
# kernel-may: nvme nvme\d+: connect failed.*
# kernel-may: rdma_rxe: rxe_reg_fast_mr: mr->lkey = 0x[0-9a-f]+ not free
# kernel-may: block nvme\d+n\d+: no usable path - requeuing I/O
# kernel-may: nvme_ns_head_submit_bio: \d+ callbacks suppressed

NQN=nqn.2026-11.io.nvmf:lab-vanish
far=$ADDR
start_target <<END
version: 1
listeners:
  - {name: far, transport: rdma, provider: verbs, address: $far, port: $PORT}
  - {name: near, transport: rdma, provider: verbs, address: 10.9.0.1, port: $PORT}
backends:
  - {name: a, type: file, path: $WORK/a.img, size: 64MiB, block_size: 4096}
  - {name: b, type: mem, size: 64MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN-far, hosts: any, namespaces: [{nsid: 1, backend: a}]}
  - {nqn: $NQN-near, hosts: any, namespaces: [{nsid: 1, backend: b}]}
END
queue_pairs() { rdma -j resource show qp | jq "[.[] | select(.comm == \"$TARGET_COMM\" and .ifname == \"wire1\")] | length"; }
no_queue_pairs() { [ "$(queue_pairs)" = 0 ]; }

connect $NQN-near -a 10.9.0.1
near=$CTRL
ns_dev $NQN-near 1
near_dev=$DEV
connect $NQN-far -a $far --keep-alive-tmo=5 --reconnect-delay=2 --ctrl-loss-tmo=120
ns_dev $NQN-far 1
start_load "$DEV" --bsrange=4k-128k --iodepth=16
sleep 3
check_at_least "the daemon's queue pairs for the far host" "$(queue_pairs)" 2

say "the wire goes dead"
wire_netem loss 100%
fio_verify others "$near_dev" --bs=4k --iodepth=8
check "the daemon let the far host's queue pairs go" wait_until 30 no_queue_pairs
check_eq "state of the near host" "$(ctrl_state "$near")" live

say "the wire lives again"
wire_netem
wait_until 60 is_live "$CTRL"
sleep 3
finish_load
