# What a scenario says and checks. A failed check is counted and the script
# goes on; a failed command ends it.

# say WORDS: a line that tells the reader what comes.
say() { printf -- '-- %s\n' "$*"; }

# run COMMAND...: runs it and shows it with its output.
run() {
	printf '$ %s\n' "$*"
	"$@"
}

# fail WORDS: counts a failure. It is kept in a file: subshells count too.
fail() {
	echo "FAIL: $*"
	echo "$*" >>"$RUN/failures"
}

# finish_checks ends the script with what the checks found.
finish_checks() {
	[ -e "$RUN/failures" ] || return 0
	echo "failed checks: $(wc -l <"$RUN/failures")"
	exit 1
}

# check_eq WHAT GOT WANT
check_eq() {
	if [ "$2" = "$3" ]; then echo "ok: $1 = $2"; else fail "$1: got '$2', want '$3'"; fi
}

# check_at_most WHAT GOT MOST: integers.
check_at_most() {
	if [ "$2" -le "$3" ]; then echo "ok: $1 = $2 (at most $3)"; else fail "$1: got $2, want at most $3"; fi
}

# check_at_least WHAT GOT LEAST: integers.
check_at_least() {
	if [ "$2" -ge "$3" ]; then echo "ok: $1 = $2 (at least $3)"; else fail "$1: got $2, want at least $3"; fi
}

# check WHAT COMMAND...: the command must succeed.
check() {
	local what=$1
	shift
	if "$@"; then echo "ok: $what"; else fail "$what: $* gave exit code $?"; fi
}

# check_json WHAT JSON FILTER...: every jq filter must yield true.
check_json() {
	local what=$1 json=$2 filter
	shift 2
	for filter in "$@"; do
		if jq -e "$filter" <<<"$json" >/dev/null; then
			echo "ok: $what: $filter"
		else
			fail "$what: not $filter"
			jq -c . <<<"$json" | cut -c -2000
		fi
	done
}

# check_text WHAT TEXT REGEX...: every regular expression (grep -E, any case)
# must match in the text.
check_text() {
	local what=$1 text=$2 regex
	shift 2
	for regex in "$@"; do
		if grep -Eiq -- "$regex" <<<"$text"; then
			echo "ok: $what: $regex"
		else
			fail "$what: nothing matches $regex"
			head -c 4000 <<<"$text"
		fi
	done
}

# refused REGEX COMMAND...: the command must fail and say something that matches.
refused() {
	local regex=$1 said
	shift
	printf '$ %s\n' "$*"
	if said=$("$@" 2>&1); then
		fail "$* succeeded, want a failure that says $regex"
	elif grep -Eiq -- "$regex" <<<"$said"; then
		echo "ok: refused: $(tr '\n' ' ' <<<"$said" | cut -c -300)"
	else
		fail "$* failed with '$said', want $regex"
	fi
}

# wait_until SECONDS COMMAND...: repeats a quiet command until it succeeds; the
# seconds are those of a quiet machine, it waits PATIENCE times as long.
wait_until() {
	local seconds=$(($1 * PATIENCE)) end
	shift
	end=$((SECONDS + seconds))
	until "$@" >/dev/null 2>&1; do
		if [ "$SECONDS" -ge "$end" ]; then
			echo "not in $seconds s: $*"
			return 1
		fi
		sleep 0.1
	done
}
