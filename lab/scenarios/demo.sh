# The shipped quickstart file and a stock Linux host: discover, connect, write, read back, disconnect.
#
# `make demo` shows this one.
#
# set: quick
# needs: target roce
# timeout: 180s

say "the daemon serves configs/quickstart.yaml"
start_target <"$REPO/configs/quickstart.yaml"
grep -v '^#' "$OUT/target.yaml"

say "a stock Linux kernel, $(uname -r), discovers and connects"
run nvme discover -t rdma -a $ADDR -s $PORT
connect nqn.2026-11.io.nvmf:disk0
ns_dev nqn.2026-11.io.nvmf:disk0 1
run nvme list

say "it writes, and reads back"
head -c 16777216 /dev/urandom >"$RUN/data"
run dd if="$RUN/data" of="$DEV" bs=1M oflag=direct
run nvme flush "$DEV"
run dd if="$DEV" of="$RUN/back" bs=1M count=16 iflag=direct
check "the same 16 MiB came back" cmp "$RUN/data" "$RUN/back"

say "the daemon says so"
run "$NVMF_TARGET" status -i 0

say "and it disconnects"
disconnect nqn.2026-11.io.nvmf:disk0
check_eq "controllers" "$(target_status | jq '.controllers | length')" 0
