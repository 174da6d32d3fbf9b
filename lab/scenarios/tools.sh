# The daemon's own tools on a real device: rdma list, rdma smoke, check, status under load, metrics.
#
# set: soak
# needs: target roce
# timeout: 90s

NQN=nqn.2026-11.io.nvmf:lab-tools
run "$NVMF_TARGET" version
run "$NVMF_TARGET" rdma list
check_text "rdma list" "$("$NVMF_TARGET" rdma list)" rxe0 10.9.0.1
said=$(run "$NVMF_TARGET" rdma smoke) || fail "rdma smoke"
echo "$said"
check_text "rdma smoke" "$said" send read write

target_config <<END
$(front)
admin: {socket: /run/nvmf-target.sock, http: 127.0.0.1:9420}
backends:
  - {name: ram, type: mem, size: 64MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END
check "check of the file" "$NVMF_TARGET" check "$OUT/target.yaml"
restart_target
connect $NQN
ns_dev $NQN 1
start_load "$DEV"
sleep 3
run "$NVMF_TARGET" status -i 1s
check_json status "$(target_status)" '.controllers | length == 1' ".subsystems[0].namespaces[0].counters.ops.read > 0" \
	".subsystems[0].namespaces[0].write_latency.p99_ns >= .subsystems[0].namespaces[0].write_latency.p50_ns" \
	".subsystems[0].namespaces[0].write_latency.p50_ns > 0"
metrics=$(busybox wget -q -O - http://127.0.0.1:9420/metrics)
check_text metrics "$metrics" "$NQN" '^nvmf_.*bytes.* [1-9]' '^go_goroutines'
finish_load

say "a file with mistakes"
sed 's/size: 64MiB/sise: 64MiB/; s/nsid: 1/nsid: 0/' "$OUT/target.yaml" >"$RUN/bad.yaml"
refused 'sise' "$NVMF_TARGET" check "$RUN/bad.yaml"
refused 'nsid' "$NVMF_TARGET" check "$RUN/bad.yaml"
say "a reload with mistakes changes nothing"
cp "$RUN/bad.yaml" "$OUT/target.yaml"
kill -HUP "$TARGET_PID"
check "the daemon says so" wait_until 5 target_said sise
check "the namespace still works" dd if="$DEV" of=/dev/null bs=4k count=4 iflag=direct status=none
check_eq state "$(ctrl_state "$CTRL")" live

