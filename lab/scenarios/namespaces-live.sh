# Namespaces added, grown and removed by SIGHUP under running I/O: the host sees it by itself.
#
# set: quick
# needs: target roce
# timeout: 180s
# kernel-must: nvme nvme\d+: rescanning namespaces\.
# kernel-must: nvme\d+n\d+: detected capacity change from 65536 to 131072

NQN=nqn.2026-11.io.nvmf:lab-live
config() { # config SIZE-OF-GROWING [NSID...]
	front
	cat <<-END
		backends:
		  - {name: steady, type: file, path: $WORK/steady.img, size: 32MiB, block_size: 4096}
		  - {name: growing, type: file, path: $WORK/growing.img, size: $1}
		  - {name: extra2, type: mem, size: 16MiB}
		  - {name: extra3, type: mem, size: 16MiB}
		subsystems:
		  - nqn: $NQN
		    hosts: any
		    namespaces:
		      - {nsid: 1, backend: steady}
		      - {nsid: 7, backend: growing}
	END
	local nsid
	for nsid in "${@:2}"; do echo "      - {nsid: $nsid, backend: extra$nsid}"; done
}
config 32MiB | start_target
connect $NQN
ns_dev $NQN 7
growing=$DEV
check_eq "size of the growing namespace" "$(dev_bytes "$growing")" 33554432
ns_dev $NQN 1
start_load "$DEV"

say "one more"
config 32MiB 2 | reload_target
check "namespace 2 appears" wait_until 10 find_ns $NQN 2
ns_dev $NQN 2
fio_verify added "$DEV" --bs=4k --iodepth=4 --size=256k --offset_increment=256k

say "growth"
config 64MiB 2 | reload_target
bigger() { [ "$(dev_bytes "$growing")" = 67108864 ]; }
check "namespace 7 grows" wait_until 10 bigger
dd if=/dev/urandom of="$growing" bs=1M seek=60 count=4 oflag=direct status=none

say "one gone, another in the same message"
config 64MiB 3 | reload_target
check "namespace 2 goes" wait_until 10 ns_gone $NQN 2
check "namespace 3 appears" wait_until 10 find_ns $NQN 3

say "the same again changes nothing"
config 64MiB 3 | reload_target
sleep 1
check "namespace 3 stays" find_ns $NQN 3
check_eq state "$(ctrl_state "$CTRL")" live
finish_load
