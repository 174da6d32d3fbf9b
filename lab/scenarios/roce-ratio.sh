# The built-in RoCEv2 beside the kernel's rxe: our daemon and our host on either, same job. Nothing is asserted.
# "busy" is with both ends polling all the time.
#
# rxe has its packets loop inside itself, ours cross a veth pair: over a wire rxe
# repeats requests under load, which ends the connections of the kernel's host.
#
# set: soak
# needs: target nvmf roce far
# timeout: 400s

NQN=nqn.2026-11.io.nvmf:lab-roce-ratio
seconds=${LAB_SECONDS:-5}
far_mtu 4200

# on WAY: the words and addresses for it.
on() {
	if [ "$1" = rxe ]; then
		ADDR=10.9.0.1 PROVIDER=verbs NVMF_PROVIDER=verbs
		TARGET_PREFIX=() NVMF_PREFIX=()
	else
		ADDR=10.9.5.2 PROVIDER=roce NVMF_PROVIDER=roce
		TARGET_PREFIX=(ip netns exec far) NVMF_PREFIX=(ip netns exec peer)
	fi
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
for way in rxe roce; do
	on $way
	measure adaptive 100us "${jobs[@]}"
	measure busy 1s "${jobs[0]}"
done
printf '%-20s %10s %10s %7s\n' job rxe built-in ratio
for job in "${jobs[@]}" "${jobs[0]} busy"; do
	printf '%-20s %10s %10s %7s\n' "$job" "${got[rxe,$job]}" "${got[roce,$job]}" \
		"$(awk "BEGIN {printf \"%.2f\", ${got[roce,$job]} / (${got[rxe,$job]} + 0.001)}")"
done
