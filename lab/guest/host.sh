# The host side: the guest's RDMA devices and the kernel's NVMe host.

ADDR=10.9.0.1  # where targets of this guest listen; need_siw changes it
ADDR6=fd09::1
PORT=4420
HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:3f1a6d2e-58c4-4a8b-9d10-6c1f0f5a7e01
HOSTID=3f1a6d2e-58c4-4a8b-9d10-6c1f0f5a7e01
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery
echo "$HOSTNQN" >/etc/nvme/hostnqn
echo "$HOSTID" >/etc/nvme/hostid

# need_roce: rxe0 over eth0, RoCEv2.
need_roce() { rdma link show rxe0/1 >/dev/null 2>&1 || rdma link add rxe0 type rxe netdev eth0; }

# need_siw: siw0 over a network device of its own, iWARP. ADDR becomes its address.
need_siw() {
	ADDR=10.9.2.1 ADDR6=fd09:2::1
	if ! rdma link show siw0/1 >/dev/null 2>&1; then
		modprobe siw
		ip link add iw0 type veth peer name iw0 netns peer
		ip -n peer link set iw0 up
		ip addr add "$ADDR/24" dev iw0
		ip -6 addr add "$ADDR6/64" dev iw0 nodad
		ip link set iw0 up
		rdma link add siw0 type siw netdev iw0
	fi
}

# need_wire: a target's address behind a wire, in one kernel: the host leaves by
# w0 (10.9.1.1, device wire0), the target is at w1 (10.9.1.2, wire1), and every
# packet crosses the veth pair between them, where tshark sees it and netem can
# lose it. ADDR becomes the target's. On a single device, rxe and the loopback
# route would short-circuit them. `need_siw_wire` has siw on both ends instead.
need_wire() {
	ADDR=10.9.1.2 ADDR6=fd09:1::2
	[ -e /sys/class/net/w0 ] || wire_up
	wire_rdma rxe
}
need_siw_wire() {
	ADDR=10.9.1.2 ADDR6=fd09:1::2
	modprobe siw
	[ -e /sys/class/net/w0 ] || wire_up
	wire_rdma siw
}

# wire_rdma TYPE: wire0 and wire1 over w0 and w1.
wire_rdma() {
	local i
	for i in 0 1; do
		rdma -j -d link show "wire$i/1" 2>/dev/null | grep -q "\"$1\"" && continue
		rdma link del "wire$i" 2>/dev/null || true
		rdma link add "wire$i" type "$1" netdev "w$i"
	done
}

# wire_up makes the pair. The kernel would deliver what it sends to an address
# of its own by the loopback device; the rules make it look at the tables below
# before the local one, for packets that start here (iif lo) and for the RDMA
# connection manager's check of the way back (oif).
wire_up() {
	local i other
	# A burst must not be lost in the kernel's own queue: rxe does not survive loss.
	sysctl -q -w net.core.netdev_max_backlog=100000
	sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
	ip link add w0 mtu 4200 type veth peer name w1 mtu 4200
	for i in 0 1; do
		sysctl -q -w "net.ipv4.conf.w$i.accept_local=1" "net.ipv6.conf.w$i.accept_dad=0"
		ip addr add "10.9.1.$((i + 1))/32" dev "w$i"
		ip -6 addr add "fd09:1::$((i + 1))/128" dev "w$i" nodad
		ip link set "w$i" up
	done
	for i in 0 1; do
		other=$((2 - i))
		ip route add "10.9.1.$other/32" dev "w$i" src "10.9.1.$((i + 1))" table "10$i"
		ip rule add pref "1$i" iif lo to "10.9.1.$other" lookup "10$i"
		ip rule add pref "2$i" oif "w$i" to "10.9.1.$other" lookup "10$i"
		ip -6 route add "fd09:1::$other/128" dev "w$i" src "fd09:1::$((i + 1))" table "10$i"
		ip -6 rule add pref "1$i" iif lo to "fd09:1::$other" lookup "10$i"
		ip -6 rule add pref "2$i" oif "w$i" to "fd09:1::$other" lookup "10$i"
	done
	ip rule add pref 100 lookup local
	ip rule del pref 0
	ip -6 rule add pref 100 lookup local
	ip -6 rule del pref 0
}

# wire_netem OPTION...: what the wire does to packets of both directions (tc-netem);
# without options it is a good wire again.
wire_netem() {
	local i
	for i in 0 1; do
		tc qdisc del dev "w$i" root 2>/dev/null || true
		[ $# = 0 ] || tc qdisc add dev "w$i" root netem "$@"
	done
}

# need_peer: a second network stack. `in_peer COMMAND` runs in it, with 10.9.0.2
# on eth0 facing this guest's 10.9.0.1, and UDP port 4791 free.
need_peer() { ip netns list | grep -qw peer; }
in_peer() { ip netns exec peer "$@"; }

# need_far: a third network stack, "far", 10.9.5.2 on l0, facing "peer", there
# 10.9.5.1: two places where UDP port 4791 is free, with a veth pair between them.
need_far() {
	ip netns list | grep -qw far && return
	ip netns add far
	ip link add l0 netns peer type veth peer name l0 netns far
	local i ns
	for i in 1 2; do
		ns=$([ $i = 1 ] && echo peer || echo far)
		ip -n $ns addr add 10.9.5.$i/24 dev l0
		ip -n $ns link set l0 up
		ip -n $ns link set lo up
	done
}

# far_mtu BYTES: of l0 at both ends.
far_mtu() {
	ip -n peer link set l0 mtu "$1"
	ip -n far link set l0 mtu "$1"
}

# peer_iwarp: addresses for "peer" on iw0, of need_siw.
peer_iwarp() {
	ip -n peer addr add 10.9.2.2/24 dev iw0 2>/dev/null || true
	ip -n peer -6 addr add fd09:2::2/64 dev iw0 nodad 2>/dev/null || true
}

# wire_mtu BYTES: of eth0 at both ends; rxe takes 1024 of 1500 and 4096 of 4200.
wire_mtu() {
	ip -n peer link set eth0 mtu "$1"
	ip link set eth0 mtu "$1"
}

# connect NQN [OPTION...]: connects the kernel's host and sets CTRL (nvme0).
# The options go to nvme connect; -a and -s there replace ADDR and PORT.
connect() {
	local options=(-t rdma -n "$@") said
	[[ " $* " == *" -a "* ]] || options+=(-a "$ADDR")
	[[ " $* " == *" -s "* ]] || options+=(-s "$PORT")
	echo "$ nvme connect ${options[*]}"
	said=$(timeout 60 nvme connect "${options[@]}" -o json 2>&1) || {
		echo "$said"
		return 1
	}
	CTRL=$(grep -o 'nvme[0-9]*' <<<"$said" | tail -1)
	[ -n "$CTRL" ] || { echo "nvme connect did not name a device: $said"; return 1; }
}

# disconnect NQN
disconnect() { run timeout 60 nvme disconnect -n "$1"; }

# disconnect_all ends all controllers of the kernel's host.
disconnect_all() {
	[ -n "$(ls /sys/class/nvme 2>/dev/null)" ] || return 0
	run timeout 60 nvme disconnect-all
}

# find_ns NQN NSID prints the namespace's device, fails when there is none.
find_ns() {
	local disk
	for disk in /sys/block/nvme*n*; do
		[[ $disk != */nvme*c*n* ]] || continue
		[ "$(cat "$disk/device/subsysnqn" 2>/dev/null)" = "$1" ] || continue
		[ "$(cat "$disk/nsid" 2>/dev/null)" = "$2" ] || continue
		echo "/dev/${disk##*/}"
		return 0
	done
	return 1
}

# ns_dev NQN NSID waits for the namespace and sets DEV (/dev/nvme0n1).
ns_dev() {
	wait_until 20 find_ns "$1" "$2"
	DEV=$(find_ns "$1" "$2")
	wait_until 5 test -b "$DEV"
}

# ns_gone NQN NSID: no such namespace.
ns_gone() { ! find_ns "$1" "$2" >/dev/null; }

# dev_bytes DEV prints its size.
dev_bytes() { blockdev --getsize64 "$1"; }

# ctrl_state NAME prints what the kernel's host says of a controller: live,
# connecting, resetting...
ctrl_state() { cat "/sys/class/nvme/$1/state"; }

# is_live NAME, not_live NAME
is_live() { [ "$(ctrl_state "$1")" = live ]; }
not_live() { ! is_live "$1"; }
