# The kernel's own target, through configfs: the peer to compare with.

NVMET=/sys/kernel/config/nvmet

# need_nvmet: the kernel target with RDMA, and the block devices it exports.
need_nvmet() {
	modprobe -a nvmet nvmet_rdma loop
	modprobe null_blk nr_devices=0
}

# nvmet_subsystem NQN DEVICE...: a subsystem for any host, one namespace for
# each block device, nsids from 1.
nvmet_subsystem() {
	local dir=$NVMET/subsystems/$1 nsid=0 device
	shift
	mkdir "$dir"
	echo 1 >"$dir/attr_allow_any_host"
	for device; do
		nsid=$((nsid + 1))
		mkdir "$dir/namespaces/$nsid"
		echo -n "$device" >"$dir/namespaces/$nsid/device_path"
		echo 1 >"$dir/namespaces/$nsid/enable"
	done
}

# nvmet_listen ID ADDRESS PORT NQN...: an RDMA port with these subsystems.
nvmet_listen() {
	local dir=$NVMET/ports/$1 nqn
	mkdir "$dir"
	echo rdma >"$dir/addr_trtype"
	if [[ $2 == *:* ]]; then echo ipv6; else echo ipv4; fi >"$dir/addr_adrfam"
	echo "$2" >"$dir/addr_traddr"
	echo "$3" >"$dir/addr_trsvcid"
	for nqn in "${@:4}"; do ln -s "$NVMET/subsystems/$nqn" "$dir/subsystems/$nqn"; done
}

# nvmet_clear removes all that was configured, and the null_blk devices.
nvmet_clear() {
	local dir
	rm -f "$NVMET"/ports/*/subsystems/* "$NVMET"/subsystems/*/allowed_hosts/*
	for dir in "$NVMET"/ports/* "$NVMET"/subsystems/*/namespaces/* "$NVMET"/subsystems/* "$NVMET"/hosts/* /sys/kernel/config/nullb/*/; do
		[ ! -d "$dir" ] || rmdir "$dir"
	done
}

# null_device NAME MIB [BLOCKSIZE]: a null_blk device with memory behind it;
# sets DEVICE.
null_device() {
	local dir=/sys/kernel/config/nullb/$1
	mkdir "$dir"
	echo "$2" >"$dir/size"
	echo "${3:-512}" >"$dir/blocksize"
	echo "${4:-1}" >"$dir/memory_backed"
	echo 1 >"$dir/power"
	DEVICE=/dev/$1
	wait_until 5 test -b "$DEVICE"
}
