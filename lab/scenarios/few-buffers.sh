# Sixty-four MiB in flight through eight MiB of buffers: requests wait, none fails, admin commands pass.
#
# set: soak
# needs: target roce
# timeout: 120s

NQN=nqn.2026-11.io.nvmf:lab-few
start_target <<END
$(front)
rdma: {buffers: 8MiB}
backends:
  - {name: ram, type: mem, size: 128MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END
connect $NQN
ns_dev $NQN 1
start_load "$DEV" --bs=1m --iodepth=16 --numjobs=4 --size=16m --offset_increment=16m --group_reporting
for _ in 1 2 3 4 5; do
	nvme id-ctrl "/dev/$CTRL" >/dev/null
	sleep 1
done
check_json "waits for buffers" "$(target_status)" '[.rdma.groups[].buffer_waits] | add > 0'
finish_load
buffers_home() { target_status | jq -e 'all(.rdma.groups[]; .buffers_free_bytes == .buffers_bytes)'; }
check "all buffers are free" wait_until 5 buffers_home
