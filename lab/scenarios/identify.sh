# Everything a host can ask: identify, log pages, registers, features; values that make sense.
#
# set: quick
# needs: target roce
# timeout: 180s

NQN=nqn.2026-11.io.nvmf:lab-identify
UUID=6f3cbb5a-7d8e-4f6b-9a3c-0123456789ab
start_target <<END
$(front)
backends:
  - {name: disk, type: file, path: $WORK/disk.img, size: 256MiB, block_size: 4096}
  - {name: ram, type: mem, size: 32MiB}
subsystems:
  - nqn: $NQN
    serial: LAB0001
    hosts: any
    namespaces:
      - {nsid: 1, backend: disk, uuid: $UUID}
      - {nsid: 5, backend: ram}
END
connect $NQN
dev=/dev/$CTRL
ns_dev $NQN 5
ram=$DEV
ns_dev $NQN 1
disk=$DEV
dd if=/dev/urandom of="$disk" bs=64k count=32 oflag=direct status=none
dd if="$disk" of=/dev/null bs=64k count=32 iflag=direct status=none

run nvme list
check_json list "$(nvme list -o json)" '.Devices | length == 2' \
	'all(.Devices[]; .SerialNumber == "LAB0001" and (.ModelNumber | length > 0) and (.Firmware | length > 0))' \
	'[.Devices[].PhysicalSize] | sort == [33554432, 268435456]'

run nvme id-ctrl $dev
check_json id-ctrl "$(nvme id-ctrl $dev -o json)" \
	"(.sn | rtrimstr(\" \") | startswith(\"LAB0001\")) and .subnqn == \"$NQN\"" \
	'.mdts >= 5' '.cntlid >= 1 and .cntlid < 65520' '.ver >= 66304' '.kas >= 1' '.maxcmd >= 32' \
	'.sqes == 102 and .cqes == 68' '.nn >= 5' '.sgls % 4 != 0 and (.sgls / 4 | floor) % 2 == 1' \
	'.ioccsz >= 4 and .iorcsz >= 1 and .icdoff == 0' '.msdbd >= 1' '.aerl == 3' '.oncs > 0' '.oaes > 0' '.cntrltype == 1' \
	'(.ctratt / 64 | floor) % 2 == 1' '.vwc > 0' '.wctemp > 0 and .cctemp > .wctemp' '.elpe > 0'

say "registers"
register() { nvme get-property $dev -o "$1" | sed 's/.*value: //'; }
for offset in 0 8 0x14 0x1c; do run nvme get-property $dev -o $offset -H; done
check_eq "CC.EN and CSTS.RDY" "$((0x$(register 0x14) & 1)) $((0x$(register 0x1c) & 1))" "1 1"
check_at_least "version" $((0x$(register 8))) $((0x10300))
check_at_least "MQES" $((0x$(register 0) & 0xffff)) 31
refused 'invalid field' nvme get-property $dev -o 0x20

check_json "id-ns of the file" "$(nvme id-ns "$disk" -o json)" '.nsze == 65536 and .ncap == 65536' '.nuse > 0' \
	'.lbafs[.flbas].ds == 12' '.nguid != "00000000000000000000000000000000" or .eui64 != "0000000000000000"' '.dlfeat > 0'
check_json "id-ns of the memory" "$(nvme id-ns "$ram" -o json)" '.nsze == 65536' '.lbafs[.flbas].ds == 9'
run nvme ns-descs "$disk"
check_text "ns-descs" "$(nvme ns-descs "$disk")" "uuid *: *$UUID" 'csi *: *0'
check_text "ns-descs of the memory" "$(nvme ns-descs "$ram")" 'uuid *: *[1-9a-f][0-9a-f]+-|uuid *: *0[0-9a-f]*[1-9a-f]'
check_text "list-ns" "$(nvme list-ns $dev)" '0x1$' '0x5$'

refused 'LBA out of range' nvme read "$disk" -s 65536 -c 0 -z 4096 -d "$RUN/back"
run nvme error-log $dev -e 4
check_json error-log "$(nvme error-log $dev -e 4 -o json)" '.errors[0].error_count >= 1' '.errors[0].nsid == 1' '.errors[0].lba == 65536' \
	'.errors[0].sqid >= 1'
run nvme smart-log $dev
check_json smart-log "$(nvme smart-log $dev -o json)" '.critical_warning == 0' '.temperature > 250 and .temperature < 350' '.avail_spare == 100' \
	'(.host_write_commands | tonumber) >= 32' '(.host_read_commands | tonumber) >= 32' \
	'(.data_units_written | tonumber) >= 4' '(.data_units_read | tonumber) >= 4' '(.num_err_log_entries | tonumber) >= 1'
run nvme fw-log $dev
check_json fw-log "$(nvme fw-log $dev -o json)" '[.. | numbers] | any(. > 0)'
nvme get-log $dev -i 5 -l 4096 -b >"$RUN/effects"
run nvme effects-log $dev -c 0
supports() { # supports OFFSET OPCODE: the log's entry has CSUPP
	[ $(($(od -An -t u4 -j $(($1 + 4 * $2)) -N 4 "$RUN/effects") & 1)) = 1 ]
}
for opcode in 0x02 0x06 0x08 0x09 0x0a 0x0c 0x18; do check "effects log: admin $opcode" supports 0 $opcode; done
for opcode in 0x00 0x01 0x02 0x05 0x08 0x09 0x0c; do check "effects log: NVM $opcode" supports 1024 $opcode; done
for opcode in 0x80 0x84; do check "effects log: not admin $opcode" bash -c "! [ \$((\$(od -An -t u4 -j $((4 * opcode)) -N 4 $RUN/effects) & 1)) = 1 ]"; done
run nvme supported-log-pages $dev
check_text supported-log-pages "$(nvme supported-log-pages $dev)" 'Error Information' 'SMART' 'Firmware Slot' 'Changed Namespace' 'Commands Supported'
check "changed-ns-list-log" nvme changed-ns-list-log $dev
nvme get-log $dev -i 2 -l 512 -b >"$RUN/smart"
nvme get-log $dev -i 2 -l 256 -o 256 -b >"$RUN/half"
check "the second half of a log by its offset" cmp <(tail -c 256 "$RUN/smart") "$RUN/half"

say "features: current, default, saved, supported"
for feature in 0x01 0x02 0x04 0x05 0x06 0x07 0x08 0x09 0x0a 0x0b 0x0f 0x10 0x16 0x81; do
	case $feature in
	0x81) options=(-l 16 -c 1) ;; # the host's identifier, 128 bits
	0x16) options=(-l 512) ;;
	*) options=() ;;
	esac
	check "get-feature $feature" nvme get-feature $dev -f $feature "${options[@]}"
done
check_text "get-feature 7" "$(nvme get-feature $dev -f 7)" 'value:0x0*10001|value:0x[0-9a-f]+'
check_text "get-feature 15" "$(nvme get-feature $dev -f 15)" 'value:0x0*1388'
refused 'invalid' nvme get-feature $dev -f 0x7f
