# ext4 and xfs on namespaces: files written, mounted anew, compared.
#
# set: quick
# needs: target roce
# timeout: 180s

NQN=nqn.2026-11.io.nvmf:lab-fs
start_target <<END
$(front)
backends:
  - {name: disk, type: file, path: $WORK/disk.img, size: 512MiB, block_size: 4096}
  - {name: ram, type: mem, size: 64MiB, block_size: 512}
subsystems:
  - nqn: $NQN
    hosts: any
    namespaces:
      - {nsid: 1, backend: disk}
      - {nsid: 2, backend: ram}
END
connect $NQN
ns_dev $NQN 1
filesystem_check "$DEV" ext4
filesystem_check "$DEV" xfs
ns_dev $NQN 2
filesystem_check "$DEV" ext4
