# Runs the one command of `lab/run exec`, in the folder the runner was called
# in. Sourced by main.sh.
cd "$EXEC_DIR" 2>/dev/null || cd /
dmesg --follow >"$SHARE/dmesg" &
follower=$!
timeout --kill-after=5 "$RUN_TIMEOUT" "${EXEC_ARGS[@]}" </dev/null >"$SHARE/stdout" 2>"$SHARE/stderr"
rc=$?
kill "$follower"
echo "$rc" >"$SHARE/rc"
