# Our daemon, as it was built on the machine.

TARGET_PID=
TARGET_PREFIX=() # words before the daemon's: how it comes into another network namespace
PROVIDER=verbs   # of the daemon's listeners

# need_target: the daemon as it was built for this run, or the one LAB_TARGET named.
need_target() {
	NVMF_TARGET=$BIN/nvmf-target
	[ -x "$NVMF_TARGET" ] || { echo "no $NVMF_TARGET"; return 1; }
	# The name by which the kernel lists the daemon's RDMA objects; the "pid" there
	# is that of a thread.
	TARGET_COMM=$(basename "$NVMF_TARGET" | cut -c 1-15)
}

# need_raw: the tests of lab/raw as a program, RAW.
need_raw() {
	RAW=$BIN/raw.test
	[ -x "$RAW" ]
}

# need_soft_roce: the daemon runs in the namespace "peer" on the built-in RoCEv2,
# the host on rxe0.
need_soft_roce() {
	need_roce
	ADDR=10.9.0.2 ADDR6=fd09::2 PROVIDER=roce TARGET_PREFIX=(ip netns exec peer)
}

# need_soft_iwarp: likewise on the built-in iWARP, the host on siw0.
need_soft_iwarp() {
	need_siw
	peer_iwarp
	ADDR=10.9.2.2 ADDR6=fd09:2::2 PROVIDER=iwarp TARGET_PREFIX=(ip netns exec peer)
}

# front prints the head of a configuration: one listener at ADDR and PORT.
front() {
	echo "version: 1"
	echo "listeners:"
	echo "  - {name: front, transport: rdma, provider: $PROVIDER, address: \"$ADDR\", port: $PORT}"
}

# target_config writes the configuration from standard input.
target_config() { cat >"$OUT/target.yaml"; }

# start_target runs the daemon on the configuration from standard input and waits
# until it listens. Its log is $OUT/target.log.
start_target() {
	target_config
	restart_target
}

# restart_target runs the daemon on the configuration it had.
restart_target() {
	launch_target
	if ! wait_until 20 target_ready_or_dead || [ ! -e "/proc/$TARGET_PID/exe" ]; then
		echo "the daemon does not serve; its log ends:"
		tail -20 "$OUT/target.log"
		return 1
	fi
}

# launch_target runs the daemon and does not wait.
launch_target() {
	"${TARGET_PREFIX[@]}" "$NVMF_TARGET" serve "$OUT/target.yaml" </dev/null >>"$OUT/target.log" 2>&1 &
	TARGET_PID=$!
}

target_ready_or_dead() { [ ! -e "/proc/$TARGET_PID/exe" ] || target_ready; }

# target_ready: the daemon answers, and every listener listens.
target_ready() {
	target_status | jq -e '.listeners | length > 0 and all(.state == "listening")'
}

# target_status prints the daemon's state as JSON.
target_status() { timeout 10 "$NVMF_TARGET" status -i 0 -o json; }

# reload_target makes standard input the configuration and has it applied.
reload_target() {
	target_config
	kill -HUP "$TARGET_PID"
}

# stop_target ends the daemon in order: SIGTERM, exit code 0 in 5 s (and some
# for the emulator), nothing bad in its log. Nothing to do when none runs.
stop_target() {
	[ -n "$TARGET_PID" ] || return 0
	local pid=$TARGET_PID start=$SECONDS rc=0
	TARGET_PID=
	kill -TERM "$pid"
	wait_until 15 test ! -e "/proc/$pid/exe" || { fail "the daemon does not end"; kill -ABRT "$pid"; }
	wait "$pid" || rc=$?
	check_eq "the daemon's exit code" "$rc" 0
	check_at_most "seconds the daemon took to end" "$((SECONDS - start))" $((5 * PATIENCE))
	target_log_clean
}

# kill_target ends the daemon with no chance to say goodbye.
kill_target() {
	local pid=$TARGET_PID
	TARGET_PID=
	kill -KILL "$pid"
	wait "$pid" || true
}

# target_log_clean: no crash and no race in the daemon's log.
target_log_clean() {
	! grep -E -A40 'panic|fatal error|DATA RACE|goroutine [0-9]+ \[' "$OUT/target.log" || fail "the daemon's log shows a crash"
}

# target_said REGEX: the daemon's log has such a line.
target_said() { grep -Eiq -- "$1" "$OUT/target.log"; }

# cpu_ticks PID prints the processor time a process has used, in 1/100 s.
cpu_ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }
