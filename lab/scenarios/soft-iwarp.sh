# The kernel's host over siw against the built-in iWARP, IPv4 and IPv6, CRC on and off; tshark finds nothing malformed.
#
# set: quick
# needs: target soft_iwarp
# timeout: 300s
# kernel-must: nvme nvme\d+: resetting controller

NQN=nqn.2026-11.io.nvmf:lab-soft-iwarp

# daemon CRC: the daemon with that mode.
daemon() {
	start_target <<-END
	version: 1
	iwarp: {crc: $1}
	listeners:
	  - {name: four, provider: iwarp, address: "$ADDR", port: $PORT}
	  - {name: six, provider: iwarp, address: "$ADDR6", port: $PORT}
	backends:
	  - {name: disk, type: file, path: $WORK/disk.img, size: 64MiB}
	  - {name: ram, type: mem, size: 64MiB, block_size: 4096}
	subsystems:
	  - nqn: $NQN
	    hosts: any
	    namespaces:
	      - {nsid: 1, backend: disk}
	      - {nsid: 2, backend: ram}
	END
}

# capture FILE: begins to capture what crosses the wire.
capture() {
	in_peer dumpcap -q -i iw0 -f "tcp port $PORT" -w "$1" 2>"$1.err" &
	CAPTURE=$!
	wait_until 30 grep -q File: "$1.err"
}

# dissect FILE: a line for each frame: protocols, RDMAP opcodes, what is wrong with it.
dissect() {
	tshark -n --disable-protocol nvme-tcp -o tcp.try_heuristic_first:TRUE -r "$1" -T fields -E separator='|' \
		-e frame.protocols -e iwarp_rdma.opcode -e _ws.malformed -e _ws.expert.message -e iwarp_mpa.bad_length -e iwarp_mpa.crc_flag 2>/dev/null
}

for crc in off on; do
	mode=auto addresses="$ADDR $ADDR6"
	if [ $crc = on ]; then # siw does not ask for it
		mode=on addresses=$ADDR
	fi
	daemon $mode
	for address in $addresses; do
		say "CRC $crc, $address"
		run nvme discover -t rdma -a "$address" -s $PORT
		ADDR=$address connect $NQN --nr-io-queues=2
		ns_dev $NQN 1
		fio_verify "disk-$crc-${address//[:.]/-}" "$DEV" --bsrange=512-256k --iodepth=16 --size=4m
		ns_dev $NQN 2
		fio_verify "ram-$crc-${address//[:.]/-}" "$DEV" --bsrange=4k-1m --iodepth=8 --size=4m
		run nvme reset "/dev/$CTRL"
		wait_until 20 is_live "$CTRL"
		dd if="$DEV" of=/dev/null bs=1M count=4 iflag=direct status=none
		disconnect $NQN
	done
	say "what tshark thinks of it, CRC $crc"
	capture "$OUT/$crc.pcap"
	connect $NQN --nr-io-queues=1
	ns_dev $NQN 1
	dd if=/dev/urandom of="$DEV" bs=4k count=16 oflag=direct status=none
	dd if="$DEV" of=/dev/null bs=64k count=1 iflag=direct status=none
	disconnect $NQN
	kill -TERM $CAPTURE
	wait $CAPTURE || true
	dissect "$OUT/$crc.pcap" >"$OUT/$crc.frames"
	check_at_least "RDMAP frames, CRC $crc" "$(grep -c iwarp_ddp "$OUT/$crc.frames")" 60
	check_eq "MPA replies that want CRC, CRC $crc" "$(grep -c '|1$' "$OUT/$crc.frames" || true)" "$([ $crc = on ] && echo 2 || echo 0)"
	check_eq "malformed frames, CRC $crc" "$(grep -Eic 'malformed|bad|incorrect|wrong' "$OUT/$crc.frames" || true)" 0
	check_eq "Terminates, CRC $crc" "$(grep -Ec '^[^|]*\|([^|]*,)?0x0*7\b' "$OUT/$crc.frames" || true)" 0
	stop_target
done
