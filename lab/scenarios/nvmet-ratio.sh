# Side by side with the kernel's target: IOPS and processor time, same job, same boot, as ratios. Nothing is asserted.
#
# LAB_OTHER=PROGRAM has another build of the daemon take turns with it on the same
# jobs. LAB_ROUNDS (1) is how often all take their turns: the table has medians.
# LAB_JOBS are the jobs, each DEVICE:PATTERN:DEPTH; LAB_SECONDS (5) is a turn's time.
#
# set: soak
# needs: target roce nvmet
# timeout: 600s

nqn=nqn.2026-11.io.nvmf:lab-
seconds=${LAB_SECONDS:-5}
read -r -a jobs <<<"${LAB_JOBS:-$(echo {null,file}:rand{read,write}:{1,32})}"
who=(kernel ours)
[ -z "${LAB_OTHER:-}" ] || who+=(other)
declare -A nsids=([null]=1 [file]=2)

# The same things under all: a device that does nothing, and a plain file on the
# same ext4, which all open with O_DIRECT.
null_device nullb0 1024 512 0
kernel_null=$DEVICE
image kernel.img 256M && kernel_file=$IMAGE
nvmet_subsystem ${nqn}kernel "$kernel_null" "$kernel_file"
nvmet_listen 1 $ADDR 4421 ${nqn}kernel

# subsystem NAME: of a daemon, with a void and a file of its own.
subsystem() {
	cat <<-END
	backends:
	  - {name: void, type: "null", size: 1GiB}
	  - {name: disk, type: file, path: $WORK/$1.img, size: 256MiB, block_size: 4096}
	subsystems:
	  - {nqn: "$nqn$1", hosts: any, namespaces: [{nsid: 1, backend: void}, {nsid: 2, backend: disk}]}
	END
}
start_target <<END
$(front)
$(subsystem ours)
END
if [ -n "${LAB_OTHER:-}" ]; then
	{ PORT=4422 front && echo "admin: {socket: none}" && subsystem other; } >"$OUT/other.yaml"
	"$LAB_OTHER" serve "$OUT/other.yaml" </dev/null >"$OUT/other.log" 2>&1 &
	other_pid=$!
	wait_until 20 grep -q "listener front: up" "$OUT/other.log"
	connect ${nqn}other -s 4422
fi
connect ${nqn}kernel -s 4421
connect ${nqn}ours

# spent prints the guest's processor time that was not idle, in 1/100 s, and its
# context switches so far.
spent() { awk '/^cpu / {t = $2 + $3 + $4 + $7 + $8} /^ctxt/ {c = $2} END {print t, c}' /proc/stat; }

# measure WHO JOB: adds a line to the file "turns": IOPS, and of an I/O the guest's
# microseconds of processor time and context switches.
measure() {
	local device rw depth before after
	IFS=: read -r device rw depth <<<"$2"
	ns_dev "$nqn$1" "${nsids[$device]}"
	before=$(spent)
	fio_iops "$1-$device-$rw-$depth" "$DEV" "$seconds" --rw="$rw" --iodepth="$depth" --size=256m
	after=$(spent)
	awk -v n=$((IOPS * (seconds + 1) + 1)) -v turn="$1 $2 $IOPS" \
		'{printf "%s %d %.1f\n", turn, ($3 - $1) * 10000 / n, ($4 - $2) / n}' <<<"$before $after" >>"$OUT/turns"
}

# median WHO JOB FIELD: of the turns.
median() { awk -v w="$1" -v j="$2" -v f="$3" '$1 == w && $2 == j {print $f}' "$OUT/turns" | sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

if [[ " ${jobs[*]}" == *" file:"* ]]; then
	for one in "${who[@]}"; do # no holes
		ns_dev "$nqn$one" 2
		dd if=/dev/zero of="$DEV" bs=1M count=256 oflag=direct status=none
	done
fi
for ((round = 0; round < ${LAB_ROUNDS:-1}; round++)); do
	for job in "${jobs[@]}"; do
		for one in "${who[@]}"; do measure "$one" "$job"; done
	done
done

# to_kernel WHO JOB FIELD prints the ratio of the medians.
to_kernel() { awk "BEGIN {printf \"%.2f\", $(median "$1" "$2" "$3") / ($(median kernel "$2" "$3") + 0.001)}"; }

row='%-20s %-8s %8s %10s %14s %10s %15s\n'
printf "$row" job who IOPS "to kernel" "us CPU an I/O" "to kernel" "switches an I/O"
for job in "${jobs[@]}"; do
	for one in "${who[@]}"; do
		printf "$row" "$job" "$one" "$(median "$one" "$job" 3)" "$(to_kernel "$one" "$job" 3)" \
			"$(median "$one" "$job" 4)" "$(to_kernel "$one" "$job" 4)" "$(median "$one" "$job" 5)"
	done
done
disconnect_all
if [ -n "${LAB_OTHER:-}" ]; then
	kill -TERM "$other_pid"
	wait "$other_pid"
fi
stop_target
nvmet_clear
