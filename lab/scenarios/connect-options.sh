# What a host may ask for at connect: no SQ flow control, few and short queues, longer ones than there are, no keep-alive.
#
# set: soak
# needs: target roce
# timeout: 120s
# kernel-must: nvme nvme\d+: queue_size 128 > ctrl sqsize 64, clamping down

NQN=nqn.2026-11.io.nvmf:lab-options
start_target <<END
$(front)
rdma: {queue_depth: 64, max_queues: 4}
backends:
  - {name: ram, type: mem, size: 64MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END

# asked WHAT QUEUES DEPTH OPTION...: connects with the options, wants so many
# I/O queues of that depth at the daemon, and verified I/O.
asked() {
	local what=$1 queues=$2 depth=$3
	shift 3
	say "$what"
	connect $NQN "$@"
	ns_dev $NQN 1
	check_json "$what" "$(target_status)" "[.controllers[-1].queues[] | select(.qid > 0)] | length == $queues and all(.depth == $depth)"
	fio_verify "${what// /-}" "$DEV" --bsrange=4k-64k --iodepth=16 --size=1m
}
asked "as it comes" 2 64
disconnect $NQN
asked "SQ flow control off" 2 64 --disable-sqflow
disconnect $NQN
asked "one queue of sixteen" 1 16 --nr-io-queues=1 --queue-size=16
disconnect $NQN
asked "no keep alive" 2 64 --keep-alive-tmo=0
check_json "no keep alive" "$(target_status)" 'all(.controllers[]; .keep_alive_ns == 0 or .keep_alive_ns == 5000000000)'
disconnect $NQN
