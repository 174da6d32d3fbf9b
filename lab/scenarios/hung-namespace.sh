# A namespace whose device hangs under load: another one goes on in the same few buffers, and the load ends well when the device is back.
#
# set: soak
# needs: target roce nvmet
# timeout: 150s
# kernel-may: device-mapper: (core|uevent|ioctl): .*

NQN=nqn.2026-11.io.nvmf:lab-hung
null_device nullb8 128
mapped_device lab-hung "$DEVICE"
mapped=/sys/block/${DEVICE#/dev/}
start_target <<END
$(front)
poll_groups: 1
rdma: {buffers: 8MiB}
backends:
  - {name: hung, type: file, path: $DEVICE, block_size: 512}
  - {name: well, type: file, path: $WORK/well.img, size: 64MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: hung}, {nsid: 2, backend: well}]}
END
connect $NQN --keep-alive-tmo=5
ns_dev $NQN 2
well=$DEV
ns_dev $NQN 1
head=${DEV#/dev/} # of a multipath device, it counts nothing
path=$(echo "/sys/block/${head%n1}c"*n1)
echo 600000 >"$path/queue/io_timeout" # the host's patience is another matter

# written MIB: as much of the load has arrived.
written() { [ "$(awk '{print $7}' "$mapped/stat")" -ge $(($1 * 2048)) ]; }
ended() { awk '{print $1 + $5}' "$mapped/stat"; }
in_flight() { awk '{print $1 + $2}' "$path/inflight"; }
many_in_flight() { [ "$(in_flight)" -ge 48 ]; } # of 256 KiB: 12 MiB
groups() { target_status | jq -c '.rdma.groups[]'; }

fio_verify hung "$DEV" --rw=randwrite --bs=256k --iodepth=16 --size=32m --offset_increment=32m --loops=2 &
load=$!
check "the load has begun" wait_until 30 written 16
run dmsetup suspend lab-hung
before=$(ended)
check "more of it waits than there are buffers for" wait_until 10 many_in_flight

fio_verify well "$well" --bsrange=4k-1m --iodepth=8 &
other=$!
check "the other namespace goes on" wait_until 30 test ! -d "/proc/$other"
start=$SECONDS
nvme id-ctrl "/dev/$CTRL" >/dev/null
nvme id-ns "$DEV" >/dev/null
check_at_most "seconds until identify was answered" $((SECONDS - start)) $((5 * PATIENCE))
check_json "the load has the buffers" "$(groups)" '.buffers_bytes - .buffers_free_bytes >= 8388608'
check "the daemon tells whose fault it is" wait_until 25 target_said 'on namespace 1 wait for buffers.*its backend does not answer'
check "the load still runs" test -d "/proc/$load"
check_at_least "commands of it in flight" "$(in_flight)" 48
check_eq "commands the device has ended since" "$(($(ended) - before))" 0

run dmsetup resume lab-hung
wait "$other" "$load"
check_json "the load" "$(fio_json "$OUT/fio-hung.json")" '.jobs[0].error == 0' '.jobs[0].write.total_ios == 1024' '.jobs[0].read.total_ios == 1024'
check_eq "state of the controller" "$(ctrl_state "$CTRL")" live
check_json "nobody was disconnected" "$(target_status)" '.rdma.connections == 3'
buffers_home() { groups | jq -e '.buffers_free_bytes == .buffers_bytes'; }
check "all buffers are free" wait_until 5 buffers_home
disconnect_all
stop_target
mapped_clear
nvmet_clear
