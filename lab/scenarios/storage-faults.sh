# Trouble below the daemon: a full file system, a medium error, an image cut short: proper statuses, a living daemon.
#
# set: quick
# needs: target roce nvmet
# timeout: 180s
# kernel-may: (critical (space allocation|medium|target)|I/O|operation not supported) error, dev (nvme\d+n\d+|nullb9|loop\d+), sector \d+ op 0x[0-9a-f]+:\((READ|WRITE|FLUSH)\) flags 0x[0-9a-f]+ phys_seg \d+ prio class \d+
# kernel-must: nvme nvme\d+: rescanning namespaces\.
# kernel-must: nvme\d+n\d+: detected capacity change from 32768 to 16384
# kernel-may: Buffer I/O error on dev nvme\d+n\d+, logical block \d+, .*
# kernel-may: nvme\d+n\d+: (Read|Write|Flush)\(0x[0-9a-f]\) @ LBA \d+, \d+ blocks, .* \(sct 0x[0-9a-f] / sc 0x[0-9a-f]+\).*

NQN=nqn.2026-11.io.nvmf:lab-faults
# A file system with room for 12 MiB of a 64 MiB image.
small=$RUN/small
mkdir -p "$small" /mnt/$SCENARIO
image small.fs 16M
mkfs.ext4 -q -F -O ^has_journal -m 0 "$IMAGE"
mount -o loop "$IMAGE" /mnt/$SCENARIO
# A device whose blocks 2048 to 2055 cannot be read or written.
null_device nullb9 32
echo "+2048-2055" >/sys/kernel/config/nullb/nullb9/badblocks
start_target <<END
$(front)
backends:
  - {name: full, type: file, path: /mnt/$SCENARIO/full.img, size: 64MiB, block_size: 4096}
  - {name: bad, type: file, path: /dev/nullb9, block_size: 512}
  - {name: cut, type: file, path: $WORK/cut.img, size: 16MiB, block_size: 4096}
  - {name: good, type: file, path: $WORK/good.img, size: 64MiB, block_size: 4096}
subsystems:
  - nqn: $NQN
    hosts: any
    namespaces: [{nsid: 1, backend: full}, {nsid: 2, backend: bad}, {nsid: 3, backend: cut}, {nsid: 4, backend: good}]
END
connect $NQN
head -c 1048576 /dev/urandom >"$RUN/data"

say "a full file system"
ns_dev $NQN 1
refused 'capacity exceeded' bash -c "for i in \$(seq 0 31); do nvme write $DEV -s \$((i * 256)) -c 255 -z 1048576 -d $RUN/data || exit 1; done"
check "what was there reads" nvme read "$DEV" -s 0 -c 0 -z 4096 -d "$RUN/back"
check "and is right" cmp -n 4096 "$RUN/data" "$RUN/back"

say "a medium error"
ns_dev $NQN 2
refused 'unrecovered read error|data transfer error|internal error' nvme read "$DEV" -s 2048 -c 0 -z 512 -d "$RUN/back"
refused 'write fault|data transfer error|internal error' nvme write "$DEV" -s 2048 -c 0 -z 512 -d "$RUN/data"
check "the block beside it" nvme read "$DEV" -s 2056 -c 0 -z 512 -d "$RUN/back"

say "an image cut short under the daemon"
ns_dev $NQN 3
truncate -s 8M "$WORK/cut.img"
refused 'LBA out of range|unrecovered read error|internal error|capacity' nvme read "$DEV" -s 3000 -c 0 -z 4096 -d "$RUN/back"
check "the part that is left" nvme read "$DEV" -s 100 -c 0 -z 4096 -d "$RUN/back"

say "the others"
ns_dev $NQN 4
fio_verify good "$DEV" --bs=4k --iodepth=16
check_eq state "$(ctrl_state "$CTRL")" live
disconnect $NQN
stop_target
umount /mnt/$SCENARIO
nvmet_clear
