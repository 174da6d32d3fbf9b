# The built-in RoCEv2 beside the kernel's rxe: our daemon and our host on either, same job, same way. Nothing is asserted.
# "busy" is with both ends polling all the time.
#
# On one host rxe has its packets loop inside itself, ours take the loopback
# device. Over a wire, a veth pair, both are compared at depth 1 only: under load
# rxe repeats requests there, which ends the connections of the kernel's host.
# The last rows are ours across a veth pair beside rxe that loops.
#
# set: soak
# needs: target nvmf roce far wire
# timeout: 600s

NQN=nqn.2026-11.io.nvmf:lab-roce-ratio
seconds=${LAB_SECONDS:-5}
far_mtu 4200

# on WAY: the words and addresses for it.
on() {
	TARGET_PREFIX=() NVMF_PREFIX=()
	case $1 in
	rxe*) PROVIDER=verbs ;;
	*) PROVIDER=roce ;;
	esac
	NVMF_PROVIDER=$PROVIDER
	case $1 in
	rxe) ADDR=10.9.0.1 ;;
	rxe-wire) ADDR=10.9.1.2 ;;
	ours) ADDR=127.0.0.2 TARGET_PREFIX=(ip netns exec far) NVMF_PREFIX=(ip netns exec far) ;;
	ours-wire) ADDR=10.9.5.2 TARGET_PREFIX=(ip netns exec far) NVMF_PREFIX=(ip netns exec peer) ;;
	esac
}

# measure POLL SPIN JOB...: a daemon that waits like that, and each job ("rw bs depth")
# over it.
measure() {
	local poll=$1 spin=$2 job rw bs depth out label
	shift 2
	start_target <<-END
	$(front)
	poll: $poll
	poll_groups: $([ $poll = busy ] && echo 1 || echo 0)
	backends: [{name: void, type: "null", size: 1GiB, block_size: 4096}]
	subsystems: [{nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: void}]}]
	END
	for job; do
		read -r rw bs depth <<<"$job"
		label=$job$([ $poll = busy ] && echo " busy" || true)
		out=$OUT/$way-$rw-$bs-$depth-$poll.json
		nvmf bench -n $NQN -N 1 --rw $rw --bs $bs --iodepth $depth --spin $spin --runtime "$seconds" --pid "$TARGET_PID" -o json >"$out"
		got[$way,$label]=$(jq '[.jobs[] | .read.iops // 0, .write.iops // 0] | add | floor' "$out")
	done
	stop_target
}

declare -A got
jobs=("randread 4k 1" "randread 4k 32" "randwrite 4k 32" "randread 128k 16" "randwrite 128k 16")
for way in rxe ours rxe-wire ours-wire; do
	on $way
	if [ $way = rxe-wire ]; then
		measure adaptive 100us "${jobs[0]}"
	else
		measure adaptive 100us "${jobs[@]}"
	fi
	measure busy 1s "${jobs[0]}"
done

# row LABEL RXE OURS WHERE: what two ways did of a job.
row() {
	local rxe=${got[$2,$1]} ours=${got[$3,$1]}
	printf '%-20s %-20s %10s %10s %7s\n' "$1" "$4" "$rxe" "$ours" "$(awk "BEGIN {printf \"%.2f\", $ours / ($rxe + 0.001)}")"
}
printf '%-20s %-20s %10s %10s %7s\n' job where rxe built-in ratio
for job in "${jobs[@]}" "${jobs[0]} busy"; do
	row "$job" rxe ours "one host"
done
for job in "${jobs[0]}" "${jobs[0]} busy"; do
	row "$job" rxe-wire ours-wire "veth pair"
done
for job in "${jobs[@]}" "${jobs[0]} busy"; do
	row "$job" rxe ours-wire "rxe one, ours veth"
done
