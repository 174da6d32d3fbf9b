# Verified I/O on every kind of backend: 512 bytes to 1 MiB, depth 1 to 128, 4 jobs, 512 and 4096 byte blocks.
#
# set: quick
# needs: target roce
# timeout: 300s

NQN=nqn.2026-11.io.nvmf:lab-io
image under512.img 64M && loop_device "$IMAGE" 512 && block512=$DEVICE
image under4k.img 64M && loop_device "$IMAGE" 4096 && block4k=$DEVICE
start_target <<END
$(front)
backends:
  - {name: file512, type: file, path: $WORK/512.img, size: 64MiB, block_size: 512}
  - {name: file4k, type: file, path: $WORK/4k.img, size: 64MiB, block_size: 4096}
  - {name: block512, type: file, path: $block512, block_size: 512}
  - {name: block4k, type: file, path: $block4k, block_size: 4096}
  - {name: mem512, type: mem, size: 64MiB, block_size: 512}
  - {name: mem4k, type: mem, size: 64MiB, block_size: 4096}
subsystems:
  - nqn: $NQN
    hosts: any
    namespaces:
      - {nsid: 1, backend: file512}
      - {nsid: 2, backend: file4k}
      - {nsid: 3, backend: block512}
      - {nsid: 4, backend: block4k}
      - {nsid: 5, backend: mem512}
      - {nsid: 6, backend: mem4k}
END
connect $NQN --nr-io-queues=2 --queue-size=128
while read -r nsid name least; do
	ns_dev $NQN "$nsid"
	fio_verify "$name-1" "$DEV" --bsrange="$least-1m" --iodepth=1 --size=2m
	fio_verify "$name-16" "$DEV" --bsrange="$least-1m" --iodepth=16 --size=4m
	fio_verify "$name-128" "$DEV" --bsrange="$least-16k" --iodepth=128 --size=2m
done <<END
1 file512 512
2 file4k 4k
3 block512 512
4 block4k 4k
5 mem512 512
6 mem4k 4k
END
