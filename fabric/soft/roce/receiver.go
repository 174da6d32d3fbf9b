package roce

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric/soft/icrc"
)

const (
	rxMsgs  = 16
	rxBytes = 64 << 10
	// maxPeers bounds the flows that are remembered: a peer can make up source
	// ports.
	maxPeers = 4096
	// controlRoom is for the control messages of a datagram: its segment size,
	// class and hop limit.
	controlRoom = 96
	noHeader    = -1
)

// flow is what is known of the packets from one address and port.
type flow struct {
	addr netip.Addr
	icrc icrc.Receiver
}

// receiver takes datagrams from one socket, cuts them into packets and checks
// their ICRCs.
type receiver struct {
	fd    int
	local netip.AddrPort
	msgs  [rxMsgs]message
	iovs  [rxMsgs]unix.Iovec
	addrs [rxMsgs]rawAddr
	ctrl  [rxMsgs][controlRoom]byte
	buf   []byte // mmapped: rxMsgs*rxBytes
	used  int    // messages of the last call whose headers are to be restored
	at    int    // the datagram being looked at, or noHeader

	flows    map[[unix.SizeofSockaddrInet6]byte]*flow
	lastAddr [unix.SizeofSockaddrInet6]byte
	lastFlow *flow

	calls  uint64
	badCRC uint64
}

func (r *receiver) init(fd int, local netip.AddrPort) error {
	buf, err := unix.Mmap(-1, 0, rxMsgs*rxBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	r.fd, r.local, r.buf = fd, local, buf
	r.flows = make(map[[unix.SizeofSockaddrInet6]byte]*flow)
	for i := range r.msgs {
		r.iovs[i] = unix.Iovec{Base: &buf[i*rxBytes], Len: rxBytes}
	}
	r.used = rxMsgs
	return nil
}

func (r *receiver) close() {
	if r.buf != nil {
		_ = unix.Munmap(r.buf)
		r.buf = nil
	}
}

// receive takes what is there, at most rxMsgs datagrams, and returns how many.
func (r *receiver) receive() int {
	for i := range r.used {
		r.msgs[i].hdr = unix.Msghdr{
			Name: &r.addrs[i].b[0], Namelen: uint32(len(r.addrs[i].b)), Iov: &r.iovs[i], Iovlen: 1,
			Control: &r.ctrl[i][0], Controllen: uint64(len(r.ctrl[i])),
		}
	}
	r.calls++
	r.used = 0
	n, e := receiveMessages(r.fd, r.msgs[:])
	if e != 0 {
		return 0
	}
	r.used = n
	return n
}

// datagram is the i-th that the last receive took: its flow, its bytes and the
// size of the packets in it.
func (r *receiver) datagram(i int) (f *flow, b []byte, segment int) {
	m := &r.msgs[i]
	r.at = i
	r.addrs[i].n = m.hdr.Namelen
	b = r.buf[i*rxBytes:][:m.n]
	segment = len(b)
	if m.hdr.Controllen > 0 {
		if s := segmentSize(r.ctrl[i][:m.hdr.Controllen]); s > 0 {
			segment = s
		}
	}
	return r.flow(&r.addrs[i]), b, segment
}

// header is the class and the hop limit of the datagram being looked at, 0 where
// the kernel has not told them.
func (r *receiver) header() (class, hopLimit uint8) {
	if r.at == noHeader || r.msgs[r.at].hdr.Controllen == 0 {
		return 0, 0
	}
	return ipHeader(r.ctrl[r.at][:r.msgs[r.at].hdr.Controllen])
}

// flow is what is known of packets from that address.
func (r *receiver) flow(a *rawAddr) *flow {
	if r.lastFlow != nil && r.lastAddr == a.b {
		return r.lastFlow
	}
	f := r.flows[a.b]
	if f == nil {
		if len(r.flows) >= maxPeers {
			clear(r.flows)
		}
		src := a.addrPort()
		f = &flow{addr: src.Addr(), icrc: icrc.Receiver{Flow: icrc.NewFlow(src, r.local)}}
		r.flows[a.b] = f
	}
	r.lastAddr, r.lastFlow = a.b, f
	return f
}

// check says whether the ICRC of a packet is right; index is its place in its
// datagram.
func (r *receiver) check(f *flow, b []byte, index int, now time.Duration) bool {
	if len(b) >= minPacket && f.icrc.Check(b, index, now) {
		return true
	}
	r.badCRC++
	return false
}

// minPacket is a BTH and an ICRC.
const minPacket = 16
