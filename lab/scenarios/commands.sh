# The NVM commands one by one: flush, write zeroes, compare, dsm, verify, reset, ranges beyond the end, discard that frees space.
#
# set: quick
# needs: target roce
# timeout: 180s
# kernel-must: nvme nvme\d+: resetting controller

NQN=nqn.2026-11.io.nvmf:lab-commands
start_target <<END
$(front)
backends:
  - {name: disk, type: file, path: $WORK/disk.img, size: 64MiB, block_size: 4096}
  - {name: ram, type: mem, size: 16MiB, block_size: 512}
subsystems:
  - nqn: $NQN
    hosts: any
    namespaces:
      - {nsid: 1, backend: disk}
      - {nsid: 2, backend: ram}
END
connect $NQN
head -c 65536 /dev/urandom >"$RUN/one"
head -c 65536 /dev/urandom >"$RUN/other"
head -c 65536 /dev/zero >"$RUN/zeroes"
: >"$RUN/back"

commands() { # commands DEV BLOCKSIZE: on 64 KiB at block 16
	local dev=$1 size=$2 last=$((65536 / $2 - 1)) blocks
	blocks=$(($(dev_bytes "$dev") / size))
	say "commands on $dev, blocks of $size bytes"
	check write nvme write "$dev" -s 16 -c $last -z 65536 -d "$RUN/one"
	check "write with FUA" nvme write "$dev" -s 16 -c $last -z 65536 -d "$RUN/one" --force-unit-access
	check flush nvme flush "$dev"
	check read nvme read "$dev" -s 16 -c $last -z 65536 -d "$RUN/back"
	check "read back what was written" cmp "$RUN/one" "$RUN/back"
	check "compare, equal" nvme compare "$dev" -s 16 -c $last -z 65536 -d "$RUN/one"
	refused 'compare failure' nvme compare "$dev" -s 16 -c $last -z 65536 -d "$RUN/other"
	check verify nvme verify "$dev" -s 16 -c $last
	check write-zeroes nvme write-zeroes "$dev" -s 16 -c $last
	check "compare with zeroes" nvme compare "$dev" -s 16 -c $last -z 65536 -d "$RUN/zeroes"
	check "write before dsm" nvme write "$dev" -s 16 -c $last -z 65536 -d "$RUN/one"
	check "dsm, deallocate" nvme dsm "$dev" --ad -s 16 -b $((last + 1))
	check "read of a deallocated range" nvme read "$dev" -s 16 -c $last -z 65536 -d "$RUN/back"
	check "it reads as zeroes, as DLFEAT says" cmp "$RUN/zeroes" "$RUN/back"

	refused 'LBA out of range' nvme read "$dev" -s "$blocks" -c 0 -z "$size" -d "$RUN/back"
	refused 'LBA out of range' nvme read "$dev" -s $((blocks - 1)) -c 1 -z $((2 * size)) -d "$RUN/back"
	refused 'LBA out of range' nvme read "$dev" -s 0xffffffffffffffff -c 0 -z "$size" -d "$RUN/back"
	refused 'LBA out of range' nvme write "$dev" -s 0xffffffffffffffff -c 1 -z $((2 * size)) -d "$RUN/one"
	refused 'LBA out of range' nvme write-zeroes "$dev" -s "$blocks" -c 0
	refused 'LBA out of range' nvme verify "$dev" -s "$blocks" -c 0
	refused 'LBA out of range' nvme dsm "$dev" --ad -s "$blocks" -b 1
	check "the last block" nvme read "$dev" -s $((blocks - 1)) -c 0 -z "$size" -d "$RUN/back"
}
ns_dev $NQN 2
commands "$DEV" 512
ns_dev $NQN 1
commands "$DEV" 4096

say "what is not there"
check_json "an inactive namespace" "$(nvme id-ns "/dev/$CTRL" -n 9 -o json)" '.nsze == 0'
refused 'invalid namespace' nvme id-ns "/dev/$CTRL" -n 0xfffffff0
refused 'invalid.*opcode' nvme io-passthru "$DEV" --opcode=0x7e --namespace-id=1
refused 'invalid.*opcode' nvme admin-passthru "/dev/$CTRL" --opcode=0x7e

say "discard frees space in the image"
dd if=/dev/urandom of="$DEV" bs=1M count=32 oflag=direct status=none
check flush nvme flush "$DEV"
check_at_least "KiB of the image before" "$(du -k "$WORK/disk.img" | cut -f1)" 32768
run blkdiscard "$DEV"
check flush nvme flush "$DEV"
check_at_most "KiB of the image after" "$(du -k "$WORK/disk.img" | cut -f1)" 1024
check_eq "size of the image" "$(stat -c %s "$WORK/disk.img")" 67108864

say "reset"
nvme write "$DEV" -s 0 -c 15 -z 65536 -d "$RUN/other" >/dev/null 2>&1
run nvme reset "/dev/$CTRL"
wait_until 20 is_live "$CTRL"
check "read after the reset" nvme read "$DEV" -s 0 -c 15 -z 65536 -d "$RUN/back"
check "same data" cmp "$RUN/other" "$RUN/back"
