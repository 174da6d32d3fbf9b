# Storage under targets, and load upon namespaces.

# image NAME SIZE: a sparse file in $WORK; sets IMAGE.
image() {
	IMAGE=$WORK/$1
	truncate -s "$2" "$IMAGE"
}

# loop_device FILE [BLOCKSIZE]: a block device over a file; sets DEVICE.
loop_device() {
	DEVICE=$(losetup --find --show --direct-io=on --sector-size "${2:-512}" "$1")
}

# mapped_device NAME DEVICE: a block device over another one, that hangs between
# `dmsetup suspend NAME` and `dmsetup resume NAME`; sets DEVICE (/dev/dm-0).
mapped_device() {
	export DM_DISABLE_UDEV=1 # nobody would answer for it
	modprobe dm_mod
	dmsetup create "$1" --table "0 $(blockdev --getsz "$2") linear $2 0"
	DEVICE=/dev/$(dmsetup info --columns --noheadings -o blkdevname "$1")
}

# mapped_clear removes what mapped_device made, when nobody has it open any more;
# none of it hangs from now on.
mapped_clear() {
	local dm name
	for dm in /sys/block/dm-*/dm; do
		[ -e "$dm" ] || continue
		name=$(cat "$dm/name")
		DM_DISABLE_UDEV=1 dmsetup resume "$name"
		DM_DISABLE_UDEV=1 dmsetup remove --deferred "$name"
	done
}

# fio_json FILE: the JSON of a fio output file; fio writes notes in front of it.
fio_json() { sed -n '/^{/,$p' "$1"; }

# fio_verify NAME DEV [OPTION...]: random mixed reads and writes, 4 jobs on
# areas of their own, every block written is verified by crc32c. The result is
# $OUT/fio-NAME.json.
fio_verify() {
	local name=$1 dev=$2 json=$OUT/fio-$1.json
	shift 2
	say "fio verify $name on $dev: $*"
	if fio --output="$json" --output-format=json --name="$name" --filename="$dev" --ioengine=libaio --direct=1 \
		--rw=randrw --rwmixread=50 --numjobs=4 --group_reporting --size=4m --offset_increment=8m \
		--verify=crc32c --verify_fatal=1 --verify_state_save=0 --randrepeat=0 --invalidate=0 "$@" 2>"$OUT/fio-$name.err"; then
		fio_json "$json" | jq -r '.jobs[0] | "ok: fio: \(.read.total_ios) reads of \(.read.io_kbytes) KiB, \(.write.total_ios) writes of \(.write.io_kbytes) KiB, errors \(.error)"'
	else
		fail "fio $name"
		tail -5 "$OUT/fio-$name.err"
	fi
}

# fio_iops NAME DEV SECONDS [OPTION...]: timed 4 KiB random mix; sets IOPS.
fio_iops() {
	local name=$1 dev=$2 seconds=$3 json=$OUT/fio-$1.json
	shift 3
	fio --output="$json" --output-format=json --name="$name" --filename="$dev" --ioengine=libaio --direct=1 \
		--rw=randrw --rwmixread=50 --bs=4k --time_based --runtime="$seconds" --ramp_time=1 --norandommap --randrepeat=0 "$@"
	IOPS=$(fio_json "$json" | jq '[.jobs[] | .read.iops + .write.iops] | add | floor')
}

# start_load DEV [OPTION...]: verified writes in the background until
# finish_load, which also checks that nothing failed.
start_load() {
	local dev=$1
	shift
	fio --output="$OUT/load.json" --output-format=json --name=load --filename="$dev" --ioengine=libaio --direct=1 \
		--rw=randrw --bs=4k --iodepth=8 --size=16m --time_based --runtime=600 --verify=crc32c --verify_fatal=1 \
		--verify_backlog=64 --verify_state_save=0 --randrepeat=0 "$@" 2>"$OUT/load.err" &
	LOAD_PID=$!
}

# finish_load ends the load and checks it.
finish_load() {
	local rc=0
	check "the load still runs" test -d "/proc/$LOAD_PID"
	kill -INT "$LOAD_PID" || true
	wait "$LOAD_PID" || rc=$?
	check_json "load" "$(fio_json "$OUT/load.json")" '.jobs[0].error == 0' '.jobs[0].write.total_ios > 0'
	[ "$rc" = 0 ] || [ "$rc" = 128 ] || { fail "load: fio's exit code $rc"; tail -5 "$OUT/load.err"; }
}

# file_tree DIR: files of many sizes with known content, and their checksums
# in $OUT/sums.
file_tree() {
	local i
	for i in 0 1 511 512 513 4095 4096 4097 65536 100000 1048576 1500000; do
		head -c "$i" /dev/urandom >"$1/file-$i"
	done
	(cd "$1" && sha256sum file-*) >"$OUT/sums"
}

# filesystem_check DEV ext4|xfs: makes it, writes files, mounts it anew, and
# compares them.
filesystem_check() {
	local dev=$1 type=$2 dir=/mnt/$SCENARIO-$2
	say "$type on $dev"
	mkdir -p "$dir"
	case $type in
	ext4) run mkfs.ext4 -q -F "$dev" ;;
	xfs) run mkfs.xfs -q -f "$dev" ;;
	esac
	mount -t "$type" "$dev" "$dir"
	file_tree "$dir"
	umount "$dir"
	# Nothing of it may come from this host's page cache.
	blockdev --flushbufs "$dev"
	echo 3 >/proc/sys/vm/drop_caches
	mount -t "$type" "$dev" "$dir"
	check "$type: files read back as written" bash -c "cd $dir && sha256sum --quiet -c $OUT/sums"
	umount "$dir"
}
