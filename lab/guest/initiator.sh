# Our host, as it was built on the machine, against the kernel's target.

NVMF_PREFIX=() # words before the host's: how it comes into another network namespace
NVMF_PROVIDER=verbs

# need_nvmf: the host's program.
need_nvmf() {
	NVMF=$BIN/nvmf
	[ -x "$NVMF" ] || { echo "no $NVMF"; return 1; }
	# The kernel's host has an identity of its own in /etc/nvme.
	HOST_OURS=nqn.2014-08.org.nvmexpress:uuid:8c0c7f0e-2f6e-4b0e-9a67-3b1d5f2a7c02
}

# need_nvmf_roce: the host runs in the namespace "peer" on the built-in RoCEv2,
# the target on rxe0.
need_nvmf_roce() {
	need_roce
	NVMF_PREFIX=(ip netns exec peer) NVMF_PROVIDER=roce
}

# need_nvmf_iwarp: likewise on the built-in iWARP, the target on siw0.
need_nvmf_iwarp() {
	need_siw
	peer_iwarp
	NVMF_PREFIX=(ip netns exec peer) NVMF_PROVIDER=iwarp
}

# nvmf VERB...: runs our host towards ADDR and PORT.
nvmf() {
	nvmf_words "$@"
	timeout "${NVMF_TIMEOUT:-120}" "${NVMF_WORDS[@]}"
}

# nvmf_words VERB...: sets NVMF_WORDS to what nvmf would run, for the background.
nvmf_words() {
	local verb=$1
	shift
	NVMF_WORDS=("${NVMF_PREFIX[@]}" "$NVMF" "$verb" --provider "$NVMF_PROVIDER" -a "$ADDR" -s "$PORT"
		-q "$HOST_OURS" -I "${HOST_OURS##*:}" "$@")
}

# bench_verify NAME NQN NSID [OPTION...]: verified load by our host; the result is
# $OUT/bench-NAME.json.
bench_verify() {
	local name=$1 nqn=$2 nsid=$3
	shift 3
	say "bench $name: $*"
	if nvmf bench -n "$nqn" -N "$nsid" --rw randrw --verify crc32c --runtime 0 -o json "$@" >"$OUT/bench-$name.json" 2>"$OUT/bench-$name.err"; then
		jq -r '[.jobs[] | .read, .write] | "ok: bench: \(map(.total_ios // 0) | add) I/Os of \(map(.io_bytes // 0) | add / 1024 | floor) KiB"' "$OUT/bench-$name.json"
	else
		fail "bench $name"
		tail -5 "$OUT/bench-$name.err"
	fi
}

# events_told PATTERN: a line of `nvmf events`, in $OUT/events, matches.
events_told() { grep -Eq -- "$1" "$OUT/events"; }

# initiator_suite NAME: discover, connect, identify, verified load, events, a target that
# goes and comes back under load, and refusals, against the kernel's target at ADDR.
initiator_suite() {
	local nqn=nqn.2026-11.io.nvmf.lab:$1 closed=nqn.2026-11.io.nvmf.lab:$1-closed
	local dir=$NVMET/subsystems/$nqn memory file
	null_device nullb1 64
	memory=$DEVICE
	image disk.img 64M
	file=$IMAGE
	image more.img 16M
	nvmet_subsystem $nqn "$memory" "$file"
	nvmet_subsystem $closed "$memory"
	echo 0 >"$NVMET/subsystems/$closed/attr_allow_any_host"
	nvmet_listen 1 $ADDR $PORT $nqn $closed

	initiator_looks $nqn
	initiator_load $nqn
	initiator_events $nqn "$dir" "$IMAGE"
	initiator_outage $nqn
	initiator_refused $nqn $closed
	nvmet_clear
}

# initiator_looks NQN: what there is.
initiator_looks() {
	say "discovery and identification"
	check_json discover "$(nvmf discover -o json)" "any(.records[]; .subnqn == \"$1\")"
	run nvmf list
	check_json id-ctrl "$(nvmf id-ctrl -n "$1" -o json)" '.sgls != 0' ".subnqn == \"$1\"" '.cntlid > 0'
	check_json id-ns "$(nvmf id-ns -n "$1" -N 1 -o json)" '.nsze == 131072'
	check_json "id-ns of 4096-byte blocks" "$(nvmf id-ns -n "$1" -N 2 -o json)" '.nsze == 16384'
	check_text list-ns "$(nvmf list-ns -n "$1")" '0x1' '0x2'
	check_text smart-log "$(nvmf smart-log -n "$1")" 'critical_warning'
	check_text show-regs "$(nvmf show-regs -n "$1")" 'csts' 'cc'
	check_text ns-descs "$(nvmf ns-descs -n "$1" -N 1)" 'uuid'
	run nvmf ping -n "$1" -c 3
}

# initiator_load NQN: depth 1 to 128, 512 bytes to 1 MiB, both namespaces.
initiator_load() {
	local depth
	for depth in 1 16 128; do
		bench_verify "512-$depth" "$1" 1 --bs 512 --iodepth $depth --size 256k
		bench_verify "4k-$depth" "$1" 2 --bs 4k --iodepth $depth --size 4m
	done
	bench_verify 64k "$1" 2 --bs 64k --iodepth 32 --size 16m
	bench_verify 1m "$1" 1 --bs 1m --iodepth 8 --size 32m
	bench_verify jobs "$1" 2 --bs 16k --iodepth 8 --numjobs 2 --size 8m
}

# initiator_events NQN DIR IMAGE: namespaces come, grow and go while it watches.
initiator_events() {
	say "events"
	nvmf_words events -n "$1"
	"${NVMF_WORDS[@]}" >"$OUT/events" 2>"$OUT/events.err" &
	local watcher=$!
	check "the namespaces that are there" wait_until 20 events_told 'namespace 2: present, 64 MiB'
	mkdir "$2/namespaces/3"
	echo -n "$3" >"$2/namespaces/3/device_path"
	echo 1 >"$2/namespaces/3/enable"
	check "a namespace has come" wait_until 20 events_told 'namespace 3: new, 16 MiB'
	truncate -s 32M "$3"
	echo 1 >"$2/namespaces/3/revalidate_size"
	check "it has grown" wait_until 20 events_told 'namespace 3: resized, 32 MiB'
	echo 0 >"$2/namespaces/3/enable"
	check "it has gone" wait_until 20 events_told 'namespace 3: gone'
	rmdir "$2/namespaces/3"
	kill -TERM $watcher # bash lets no SIGINT through to what runs in the background
	wait $watcher || true
	cat "$OUT/events"
}

# initiator_outage NQN: the port goes and comes back under verified load.
initiator_outage() {
	say "the target goes and comes back"
	nvmf bench -n "$1" -N 2 --rw randrw --bs 4k --iodepth 16 --size 8m --runtime 20 --verify crc32c -o json --verbose \
		>"$OUT/outage.json" 2>"$OUT/outage.err" &
	local load=$!
	sleep 5
	rm "$NVMET/ports/1/subsystems/$1"
	sleep 4
	check "the load waits" test -d /proc/$load
	ln -s "$NVMET/subsystems/$1" "$NVMET/ports/1/subsystems/$1"
	local rc=0
	wait $load || rc=$?
	check_eq "exit code of the load through the outage" $rc 0
	tail -5 "$OUT/outage.err"
	check_at_least "reconnects" "$(jq '[.. | .reconnects? // empty | numbers] | max // 0' "$OUT/outage.json")" 1
}

# initiator_refused NQN CLOSED: refusals say why.
initiator_refused() {
	refused 'subsystem' nvmf id-ctrl -n nqn.2026-11.io.nvmf.lab:absent
	refused 'host' nvmf id-ctrl -n "$2"
}

# need_nbd: the kernel's NBD client.
need_nbd() { modprobe nbd max_part=0 && command -v nbd-client >/dev/null; }
