# Takes the runner's orders, one scenario each, in the files next.1, next.2...
# Sourced by main.sh.

mark() { echo "lab: $*" >/dev/kmsg; }

# left_behind names what a scenario must not leave: it would disturb the next.
left_behind() {
	local left=""
	[ -z "$(ls /sys/class/nvme 2>/dev/null)" ] || left+=" controllers: $(ls /sys/class/nvme | tr '\n' ' ')"
	[ -z "$(ls /sys/kernel/config/nvmet/subsystems 2>/dev/null)" ] || left+=" kernel target subsystems"
	[ -z "$(losetup --list --noheadings)" ] || left+=" loop devices"
	[ -z "$(ls -d /sys/block/dm-* 2>/dev/null)" ] || left+=" mapped devices"
	local qps
	qps=$(rdma -j resource show qp | jq -r '[.[] | select(.type != "GSI" and .type != "SMI")] | length')
	[ "$qps" = 0 ] || left+=" $qps queue pairs"
	[ -z "$(cat "$CGROUP/cgroup.procs")" ] || left+=" processes"
	echo "$left"
}

# clean_up undoes what a script may have left when it failed.
clean_up() {
	local dev
	timeout 20 bash -c '. "$LAB/guest/load.sh"; mapped_clear' # what hangs holds up all else
	for dev in $(awk '$1 ~ "^/dev/nvme" || $2 ~ "^/mnt/" {print $2}' /proc/mounts | tac); do
		umount -f "$dev" || umount -l "$dev"
	done
	# Host before target, so that the host says goodbye to somebody.
	timeout 20 nvme disconnect-all
	echo 1 >"$CGROUP/cgroup.kill"
	if [ -d /sys/kernel/config/nvmet ]; then
		. "$LAB/guest/nvmet.sh"
		timeout 20 bash -c '. "$LAB/guest/nvmet.sh"; nvmet_clear'
	fi
	losetup -D
	ip link set eth0 mtu 1500
	ip -n peer link set eth0 mtu 1500
	for dev in w0 w1; do tc qdisc del dev $dev root 2>/dev/null; done
	rm -rf "/scratch/$1" "/run/lab/$1"
	local end=$((SECONDS + 10))
	while [ -n "$(left_behind)" ] && [ "$SECONDS" -lt "$end" ]; do sleep 0.1; done
}

# run_scenario NAME TIMEOUT NEEDS...: script, clean-up, kernel lines, verdict.
run_scenario() {
	local name=$1 timeout=$2 dir="$SHARE/$1" rc left
	shift 2
	mkdir -p "$dir" "/scratch/$name" "/run/lab/$name"
	CGROUP=/sys/fs/cgroup/$name
	mkdir -p "$CGROUP"
	mark "begin $name"
	(
		echo $BASHPID >"$CGROUP/cgroup.procs"
		exec setsid timeout --kill-after=10 "$timeout" bash "$LAB/guest/scenario.sh" "$name" "$@"
	) </dev/null >"$dir/out" 2>&1
	rc=$?
	clean_up "$name" >"$dir/clean-up.log" 2>&1
	left=$(left_behind 2>&1)
	rmdir "$CGROUP" 2>/dev/null
	mark "end $name"
	dmesg --decode | sed -n "/lab: begin $name\$/,/lab: end $name\$/p" >"$dir/dmesg"
	if [ -z "$left" ]; then echo "$rc clean" >"$dir/verdict.part"; else echo "$rc left$left" >"$dir/verdict.part"; fi
	mv "$dir/verdict.part" "$dir/verdict"
}

export LAB REPO SHARE BIN PATIENCE
mkdir -p /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup
# The kernel's lines reach the machine also when the guest does not live to
# the end of a scenario.
dmesg --decode --follow >"$SHARE/dmesg.all" &

for ((order = 1; ; order++)); do
	until [ -f "$SHARE/next.$order" ]; do sleep 0.1; done
	read -r -a words <"$SHARE/next.$order"
	[ "${words[0]}" != end ] || break
	run_scenario "${words[@]}"
done
