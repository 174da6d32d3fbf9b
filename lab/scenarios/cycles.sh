# Connects and disconnects over and over: memory, descriptors, goroutines, queue pairs and regions stay what they were.
#
# set: quick
# needs: target roce
# timeout: 240s

cycles=${LAB_CYCLES:-15}
NQN=nqn.2026-11.io.nvmf:lab-cycles
start_target <<END
$(front)
backends:
  - {name: ram, type: mem, size: 16MiB}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END

cycle() {
	nvme connect -t rdma -a $ADDR -s $PORT -n $NQN
	ns_dev $NQN 1
	dd if="$DEV" of=/dev/null bs=64k count=1 iflag=direct status=none
	nvme disconnect -n $NQN >/dev/null
}
objects() { rdma -j resource show "$1" | jq "[.[] | select(.comm == \"$TARGET_COMM\")] | length"; }
descriptors() { ls "/proc/$TARGET_PID/fd" | wc -l; }
threads() { ls "/proc/$TARGET_PID/task" | wc -l; }
resident() { awk '/^VmRSS/ {print $2}' "/proc/$TARGET_PID/status"; }
goroutines() { target_status | jq .process.goroutines; }
# figures prints one line of them all once the daemon has had time to let go.
figures() {
	sleep 3
	echo "$(objects qp) $(objects mr) $(objects cq) $(objects cm_id) $(descriptors) $(goroutines) $(threads) $(resident)"
}

for _ in 1 2 3 4 5; do cycle; done
connect $NQN
check_at_least "queue pairs of a connected host" "$(objects qp)" 2
disconnect $NQN
before=$(figures)
check_at_least "regions of the idle daemon" "$(objects mr)" 1
check_at_least "CM ids of the idle daemon" "$(objects cm_id)" 1
for _ in $(seq $cycles); do cycle; done
after=$(figures)
say "queue pairs, regions, completion queues, CM ids, descriptors, goroutines, threads, KiB resident"
echo "before: $before"
echo "after $cycles cycles: $after"
read -r -a b <<<"$before"
read -r -a a <<<"$after"
names=("queue pairs" regions "completion queues" "CM ids" descriptors goroutines)
for i in "${!names[@]}"; do check_at_most "${names[i]}" "${a[i]}" "${b[i]}"; done
check_at_most threads "${a[6]}" $((b[6] + 4))
check_at_most "KiB resident" "${a[7]}" $((b[7] + 8192))
