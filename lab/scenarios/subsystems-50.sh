# Fifty subsystems: all discovered, all different, several connected.
#
# set: quick
# needs: target roce
# timeout: 180s

NQN=nqn.2026-11.io.nvmf:lab-many
{
	front
	echo "backends:"
	for i in $(seq 50); do echo "  - {name: m$i, type: mem, size: 1MiB}"; done
	echo "subsystems:"
	for i in $(seq 50); do echo "  - {nqn: $NQN-$i, hosts: any, namespaces: [{nsid: 1, backend: m$i}]}"; done
} | start_target
log=$(nvme discover -t rdma -a $ADDR -s $PORT -o json)
check_eq "subsystems discovered" "$(jq -r '.records[].subnqn' <<<"$log" | grep -c "^$NQN-[0-9]*$")" 50
check_eq "different ones" "$(jq -r '.records[].subnqn' <<<"$log" | grep "^$NQN-" | sort -u | wc -l)" 50
for i in 1 17 50; do connect $NQN-$i; done
for i in 1 17 50; do ns_dev $NQN-$i 1; done
list=$(nvme list -o json)
check_eq "serial numbers" "$(jq -r '.Devices[].SerialNumber' <<<"$list" | sort -u | wc -l)" 3
check_eq "UUIDs" "$(for i in 1 17 50; do nvme ns-descs "$(find_ns $NQN-$i 1)" | grep uuid; done | sort -u | wc -l)" 3
