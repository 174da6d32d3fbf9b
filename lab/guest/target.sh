# Our daemon, as it was built on the machine.

TARGET_PID=

# need_target: the daemon was built.
need_target() {
	NVMF_TARGET=$REPO/bin/nvmf-target
	[ -x "$NVMF_TARGET" ] || { echo "no $NVMF_TARGET"; return 1; }
}

# target_config writes the configuration from standard input.
target_config() { cat >"$OUT/target.yaml"; }

# start_target runs the daemon on $OUT/target.yaml (standard input, when given a
# here-document) and waits until it listens. Its log is $OUT/target.log.
start_target() {
	[ -t 0 ] || [ ! -p /dev/stdin -a ! -f /dev/stdin ] || target_config
	"$NVMF_TARGET" serve "$OUT/target.yaml" </dev/null >>"$OUT/target.log" 2>&1 &
	TARGET_PID=$!
	if ! wait_until 20 target_ready; then
		tail -20 "$OUT/target.log"
		return 1
	fi
}

# target_ready: the daemon answers, and every listener listens.
target_ready() {
	[ -d "/proc/$TARGET_PID" ] || return 0
	target_status | jq -e '.listeners | length > 0 and all(.state == "listening")'
}

# target_status prints the daemon's state as JSON.
target_status() { timeout 10 "$NVMF_TARGET" status -o json; }

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
	check_at_most "seconds the daemon took to end" "$((SECONDS - start))" 8
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
