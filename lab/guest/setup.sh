# Devices, network and RDMA of the guest. Sourced by main.sh.

# setup_guest makes the guest ready: the log of it is setup.log in the run's folder.
setup_guest() {
	setup_modules && setup_mounts && setup_network && setup_rxe && setup_scratch
}

setup_mounts() {
	mkdir -p /dev/pts /dev/shm
	mount -t devpts devpts /dev/pts
	mount -t tmpfs shm /dev/shm
	mount -t configfs configfs /sys/kernel/config
	mount -t debugfs debugfs /sys/kernel/debug
	ln -sfn /proc/self/fd /dev/fd
	ln -sfn /proc/self/fd/0 /dev/stdin
	ln -sfn /proc/self/fd/1 /dev/stdout
	ln -sfn /proc/self/fd/2 /dev/stderr
	echo 4 >/proc/sys/vm/drop_caches # from now on without a kernel line
	mkdir -p /run/lock /run/netns /mnt /etc/nvme
	ulimit -n 65536
	ulimit -l unlimited
	hostname lab-guest
}

# The modules of the guest's kernel lie in the lab's cache, not under /lib/modules:
# the kernel's own requests and everybody's modprobe find them through a link
# in the overlay.
setup_modules() {
	mkdir -p /lib/modules
	ln -sfn "$MODULES" "/lib/modules/$(uname -r)"
	# crc32_generic first: rdma_rxe refuses to start without it.
	modprobe -a virtio_blk crc32_generic crc32c_generic veth rdma_rxe rdma_ucm ib_uverbs nvme_rdma ext4 loop configfs
}

# eth0 is one end of a veth pair, the other is in the network namespace "peer".
# The kernel's rxe and siw live in the first namespace; in "peer" UDP port 4791
# is free for a userspace RNIC.
setup_network() {
	ip link set lo up
	ip netns add peer
	ip link add eth0 type veth peer name eth0 netns peer
	ip addr add 10.9.0.1/24 dev eth0
	ip -6 addr add fd09::1/64 dev eth0 nodad
	ip link set eth0 up
	ip -n peer link set lo up
	ip -n peer addr add 10.9.0.2/24 dev eth0
	ip -n peer -6 addr add fd09::2/64 dev eth0 nodad
	ip -n peer link set eth0 up
}

# Host and target in this guest share rxe0: packets to oneself loop inside rxe.
setup_rxe() {
	rdma link add rxe0 type rxe netdev eth0
}

# /scratch: ext4 with O_DIRECT, holes and room, on the disk the runner formatted.
setup_scratch() {
	mkdir -p /scratch
	mount -t ext4 -o discard /dev/vda /scratch
}
