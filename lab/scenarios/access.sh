# Who may connect and from where: an allow list, an unknown subsystem, two listeners, IPv6, several namespaces.
#
# set: quick
# needs: target roce
# timeout: 180s
# kernel-must: nvme nvme\d+: Connect for subsystem nqn\.2026-11\.io\.nvmf:lab-private is not allowed, hostnqn: nqn\.2026-11\.io\.nvmf:lab-stranger
# kernel-must: nvme nvme\d+: failed to connect queue: 0 ret=16772
# kernel-may: nvme nvme\d+: Connect Invalid Data Parameter, subsysnqn "nqn\.2026-11\.io\.nvmf:lab-[a-z]+"
# kernel-may: nvme nvme\d+: failed to connect queue: 0 ret=16770

private=nqn.2026-11.io.nvmf:lab-private
public=nqn.2026-11.io.nvmf:lab-public
stranger=nqn.2026-11.io.nvmf:lab-stranger
start_target <<END
version: 1
listeners:
  - {name: four, transport: rdma, provider: $PROVIDER, address: $ADDR, port: 4420}
  - {name: six, transport: rdma, provider: $PROVIDER, address: "$ADDR6", port: 4421}
backends:
  - {name: a, type: mem, size: 16MiB}
  - {name: b, type: mem, size: 16MiB, block_size: 4096}
  - {name: c, type: mem, size: 32MiB}
subsystems:
  - {nqn: $private, hosts: [$HOSTNQN], listeners: [four], namespaces: [{nsid: 1, backend: a}]}
  - {nqn: $public, hosts: any, namespaces: [{nsid: 3, backend: b}, {nsid: 9, backend: c}]}
END

say "the allow list"
refused 'allow|denied|invalid|input/output|not permitted' nvme connect -t rdma -a $ADDR -s 4420 -n $private --hostnqn=$stranger
log=$(nvme discover -t rdma -a $ADDR -s 4420 --hostnqn=$stranger -o json)
check_json "what a stranger discovers" "$log" "any(.records[]; .subnqn == \"$public\")" "all(.records[]; .subnqn != \"$private\")"
connect $private
ns_dev $private 1
fio_verify private "$DEV" --bs=4k --iodepth=4 --size=256k --offset_increment=256k
disconnect $private

say "a subsystem that is not there"
refused 'invalid|input/output|no such' nvme connect -t rdma -a $ADDR -s 4420 -n nqn.2026-11.io.nvmf:lab-absent

say "a subsystem that this listener does not serve"
refused 'invalid|input/output|no such' nvme connect -t rdma -a $ADDR6 -s 4421 -n $private

say "IPv6, and both listeners at once"
log=$(nvme discover -t rdma -a $ADDR6 -s 4421 -o json)
check_json "discovery over IPv6" "$log" "any(.records[]; .subnqn == \"$public\" and .adrfam == \"ipv6\" and .traddr == \"$ADDR6\" and .trsvcid == \"4421\")"
connect $public -a $ADDR6 -s 4421
six=$CTRL
connect $public -a $ADDR -s 4420
check "two controllers" test "$six" != "$CTRL"
ns_dev $public 3
check_eq "block size of namespace 3" "$(blockdev --getss "$DEV")" 4096
fio_verify nsid3 "$DEV" --bs=4k --iodepth=4 --size=256k --offset_increment=256k
ns_dev $public 9
check_eq "block size of namespace 9" "$(blockdev --getss "$DEV")" 512
fio_verify nsid9 "$DEV" --bsrange=512-32k --iodepth=4 --size=256k --offset_increment=256k
check_eq "controllers of one subsystem" "$(nvme list-subsys -o json | grep -c '"live"')" 2
