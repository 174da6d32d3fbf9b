# The target's RDMA device goes away under I/O and comes back: the daemon lives, listens again, and the host goes on.
#
# set: soak
# needs: target roce wire
# timeout: 150s
# kernel-must: nvme nvme\d+: Successfully reconnected \(\d+ attempts?\)
# kernel-may: nvme nvme\d+: (starting error recovery|Reconnecting in \d+ seconds\.\.\.|Failed reconnect attempt \d+)
# kernel-may: nvme nvme\d+: (I/O \d+ QID \d+ timeout|failed nvme_keep_alive_end_io error=10)
# kernel-may: nvme nvme\d+: (RECV|MEMREG|LOCAL_INV|SEND) for CQE 0x[0-9a-f]+ failed with status .*
# kernel-may: nvme nvme\d+: Connect rejected: status \d+ \(.*\)\.
# kernel-may: nvme nvme\d+: (rdma connection establishment failed|rdma_resolve_addr wait failed|rdma_resolve_route wait failed) \(-\d+\)
# kernel-may: nvme nvme\d+: (connect failed|address resolved|CM error event|route error|conn_err).*
# kernel-may: rdma_rxe: rxe_reg_fast_mr: mr->lkey = 0x[0-9a-f]+ not free
# kernel-may: block nvme\d+n\d+: no usable path - requeuing I/O
# kernel-may: nvme_ns_head_submit_bio: \d+ callbacks suppressed

NQN=nqn.2026-11.io.nvmf:lab-unplug
start_target <<END
$(front)
backends:
  - {name: disk, type: file, path: $WORK/disk.img, size: 64MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: disk}]}
END
connect $NQN --keep-alive-tmo=5 --reconnect-delay=2 --ctrl-loss-tmo=120
ns_dev $NQN 1
start_load "$DEV"
sleep 3

say "wire1 goes"
check "the kernel lets it go: nobody holds it" timeout $((20 * PATIENCE)) rdma link del wire1
not_listening() { ! target_ready; }
check "the daemon says that it does not listen" wait_until 20 not_listening
check "it lives" target_status >/dev/null
sleep 2

say "and comes back"
run rdma link add wire1 type rxe netdev w1
check "the daemon listens again" wait_until 30 target_ready
wait_until 60 is_live "$CTRL"
sleep 2
finish_load
