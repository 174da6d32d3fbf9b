# Listeners on all addresses, on an address that comes later, and IPv6 link-local: what discovery names can be connected to.
#
# set: soak
# needs: target roce wire
# timeout: 120s

NQN=nqn.2026-11.io.nvmf:lab-any
link_local=$(ip -6 -j addr show dev w1 scope link | jq -r '.[].addr_info[]?.local // empty')
start_target <<END
version: 1
listeners:
  - {name: any4, transport: rdma, provider: $PROVIDER, address: 0.0.0.0, port: 4420}
  - {name: any6, transport: rdma, provider: $PROVIDER, address: "::", port: 4421}
  - {name: scoped, transport: rdma, provider: $PROVIDER, address: "$link_local%w1", port: 4422}
backends:
  - {name: ram, type: mem, size: 16MiB}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END

# through ADDRESS PORT WANT: discovers there, wants the entry of that listener to
# name WANT, and connects.
through() {
	say "$1 port $2"
	local log
	log=$(nvme discover -t rdma -a "$1" -s "$2" -o json)
	check_json "discovery" "$log" "any(.records[]; .subnqn == \"$NQN\" and .trsvcid == \"$2\" and .traddr == \"$3\")" \
		'all(.records[]; .traddr != "0.0.0.0" and .traddr != "::")'
	connect $NQN -a "$1" -s "$2"
	ns_dev $NQN 1
	check "read" dd if="$DEV" of=/dev/null bs=64k count=4 iflag=direct status=none
	disconnect $NQN
}
through 10.9.0.1 4420 10.9.0.1
through 10.9.1.2 4420 10.9.1.2
through fd09::1 4421 fd09::1
through fd09:1::2 4421 fd09:1::2
through "$link_local%w0" 4422 "$link_local"
stop_target

say "an address that is not there yet"
target_config <<END
version: 1
listeners:
  - {name: late, transport: rdma, provider: $PROVIDER, address: 10.9.0.77, port: 4420}
backends:
  - {name: ram, type: mem, size: 16MiB}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END
launch_target
wait_until 20 target_status
check_json "the listener" "$(target_status)" '.listeners[0].state == "waiting"'
ip addr add 10.9.0.77/32 dev eth0
check "it listens" wait_until 10 target_ready
connect $NQN -a 10.9.0.77
ns_dev $NQN 1
disconnect $NQN
stop_target
ip addr del 10.9.0.77/32 dev eth0
