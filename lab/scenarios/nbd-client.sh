# A namespace as the kernel's own block device through nvmf nbd: nbd-client, filesystems, verified I/O, discard, a daemon killed underneath.
#
# set: soak
# needs: target nvmf nbd
# timeout: 240s
# kernel-may: (block )?nbd\d+: .*

NQN=nqn.2026-11.io.nvmf:lab-nbd PROVIDER=iwarp NVMF_PROVIDER=iwarp
start_target <<END
$(front)
backends:
  - {name: disk, type: file, path: $WORK/disk.img, size: 512MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: disk}]}
END
nvmf_words nbd -n $NQN --socket "$RUN/nbd.sock" --connections 4
"${NVMF_WORDS[@]}" >"$OUT/nbd.out" 2>"$OUT/nbd.err" &
server=$!
wait_until 20 test -S "$RUN/nbd.sock"
run nbd-client -unix "$RUN/nbd.sock" /dev/nbd0 -C 4 -b 4096
DEV=/dev/nbd0
check_eq "size of the device" "$(dev_bytes $DEV)" $((512 << 20))
fio_verify nbd $DEV --bsrange=4k-256k --iodepth=16 --size=16m --offset_increment=32m
filesystem_check $DEV ext4
filesystem_check $DEV xfs

say "the daemon killed and started again underneath"
start_load $DEV
sleep 3
kill_target
sleep 2
restart_target
sleep 10
finish_load

say "blkdiscard gives the space back"
run blkdiscard $DEV
sync
check_at_most "KiB of the image after blkdiscard" "$(du -k "$WORK/disk.img" | cut -f1)" 1024
run nbd-client -d $DEV
kill -TERM $server
rc=0
wait $server || rc=$?
check_eq "exit code of nvmf nbd" $rc 0
