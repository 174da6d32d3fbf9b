# Packets lost, doubled, reordered, delayed and damaged between our host and our daemon, both on the built-in RNICs.
#
# The kernel's rxe does not survive a lost packet, so both ends are ours here.
#
# set: soak
# needs: target nvmf far
# timeout: 900s

NQN=nqn.2026-11.io.nvmf:lab-soft-loss
far_mtu 1500
ADDR=10.9.5.2 TARGET_PREFIX=(ip netns exec far) NVMF_PREFIX=(ip netns exec peer)
NVMF_TIMEOUT=300
start_target <<END
version: 1
listeners:
  - {name: r, provider: roce, address: "$ADDR", port: $PORT}
  - {name: i, provider: iwarp, address: "$ADDR", port: $PORT}
backends:
  - {name: ram, type: mem, size: 64MiB, block_size: 4096}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END

# weather OPTION...: netem in both directions.
weather() {
	local ns
	for ns in peer far; do
		ip netns exec $ns tc qdisc replace dev l0 root netem limit 10000 "$@"
	done
}

for w in "loss 1%" "loss 5%" "loss 20%" "duplicate 5%" "delay 3ms reorder 25% 50%" "delay 10ms 4ms" "corrupt 2%" \
	"loss 2% duplicate 2% delay 2ms 1ms reorder 10% corrupt 0.5%"; do
	weather $w
	for NVMF_PROVIDER in roce iwarp; do
		small=2m large=4m
		if [ "$NVMF_PROVIDER $w" = "iwarp loss 20%" ]; then # that is the kernel's TCP then: seconds for a segment
			small=128k large=256k
		fi
		# TCP's checksum is weak: a damaged segment is for iWARP's CRC to find, which
		# is on by default. A segment that is lost four times takes TCP longer than
		# the usual keep alive timeout.
		bench_verify "$NVMF_PROVIDER-${w//[ %.]/-}" $NQN 1 --bs 4k --iodepth 16 --size $small --io-timeout 100 --timeout 60 --keep-alive-tmo 30
		bench_verify "$NVMF_PROVIDER-${w//[ %.]/-}-64k" $NQN 1 --bs 64k --iodepth 4 --size $large --io-timeout 100 --timeout 60 --keep-alive-tmo 30
	done
done
weather delay 0ms
stop_target
