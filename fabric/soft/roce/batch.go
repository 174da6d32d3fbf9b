package roce

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric/soft/icrc"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

const (
	maxSegments = 64    // packets of one send with segmentation offload: what every kernel takes
	maxDatagram = 65507 // UDP payload over IPv4; IPv6 would take 20 more
	batchMsgs   = 64
	batchIovs   = 1024
	// copyMax is the longest payload that is copied next to its header: an iovec
	// of its own costs the kernel more, and the ICRC is computed in one piece.
	// Capsules without data and responses are that short.
	copyMax = 64
	// batchRoom is for headers, short payloads, pads and ICRCs of one batch. A
	// packet needs at most MaxHeader + copyMax + 3 + Len.
	packetRoom = wire.MaxHeader + copyMax + 8
	batchRoom  = 512 * packetRoom
)

// path is where the packets of a connection go.
type path struct {
	addr rawAddr
	flow icrc.Flow // from our sending socket to the peer's RoCE port
	// group are the low bits of the peer's QP number: packets that differ in
	// them may belong to different sockets there, and travel apart.
	group uint32
	tos   int16 // -1: the socket's
	v6    bool
	// single is set when segmentation offload does not work on the path.
	single bool
}

// out is a datagram being built: one packet, or several of one size (the last
// may be shorter) for the kernel to cut.
type out struct {
	path     *path
	first    int // iovec
	segment  int // bytes of the first packet
	bytes    int
	packets  int
	complete bool // a shorter one has ended it
	from     int  // offset of its first header in room
}

// batch gathers packets for one system call. The payload stays where it is:
// iovecs point to what is in room and to registered memory between that, so a
// batch lives no longer than the guard is held.
type batch struct {
	msgs [batchMsgs]message
	outs [batchMsgs]out
	ctrl [batchMsgs][64]byte
	iovs []unix.Iovec
	room []byte
	used int
	n    int // messages
	pkt  rc.Packet
}

func (b *batch) init(maxSGE int) {
	b.iovs = make([]unix.Iovec, 0, batchIovs)
	b.room = make([]byte, batchRoom)
	b.pkt.Data = make([][]byte, 0, maxSGE)
}

// full says whether there may be no room for one more packet.
func (b *batch) full() bool {
	return b.n == batchMsgs || b.used+packetRoom > len(b.room) || len(b.iovs)+cap(b.pkt.Data)+2 > cap(b.iovs)
}

// packet is the packet to fill for add.
func (b *batch) packet() *rc.Packet {
	b.pkt.Header = b.room[b.used : b.used : b.used+wire.MaxHeader+copyMax]
	return &b.pkt
}

// add appends the packet that was filled. gso lets it join the datagram before
// it.
func (b *batch) add(p *path, gso bool) {
	size := b.pkt.Len()
	o := b.join(p, size, gso)
	if o == nil {
		o = b.begin(p, size)
	}
	id := uint16(o.packets)
	o.packets++
	o.bytes += size
	o.complete = o.complete || size < o.segment

	head, data := b.pkt.Header, b.pkt.Data
	if b.pkt.Size <= copyMax {
		for _, d := range data {
			head = append(head, d...)
		}
		data = nil
	}
	crc := icrc.Header(p.flow.Seed(size, id), head)
	b.iov(head, o)
	for _, d := range data {
		crc = icrc.Payload(crc, d)
		b.iov(d, o)
	}
	pad := wire.PadLen(b.pkt.Size)
	tail := b.room[b.used+len(head):][:pad+icrc.Len]
	if pad > 0 {
		clear(tail[:pad])
		crc = icrc.Payload(crc, tail[:pad])
	}
	icrc.Put(tail[pad:], crc)
	b.iov(tail, o)
	b.used += len(head) + len(tail)
}

// join is the datagram that a packet can be appended to, or nil.
func (b *batch) join(p *path, size int, gso bool) *out {
	if !gso || b.n == 0 {
		return nil
	}
	o := &b.outs[b.n-1]
	if o.complete || size > o.segment || o.packets == maxSegments || o.bytes+size > maxDatagram {
		return nil
	}
	if o.path != p && (o.path.addr != p.addr || o.path.group != p.group || o.path.tos != p.tos) {
		return nil
	}
	return o
}

// begin starts a datagram.
func (b *batch) begin(p *path, size int) *out {
	o := &b.outs[b.n]
	*o = out{path: p, first: len(b.iovs), segment: size, from: b.used}
	b.n++
	return o
}

// iov appends bytes to a datagram. What follows directly on the bytes before
// joins them: the end of one packet and the header of the next.
func (b *batch) iov(p []byte, o *out) {
	if len(p) == 0 {
		return
	}
	base := unsafe.SliceData(p)
	if n := len(b.iovs); n > o.first {
		last := &b.iovs[n-1]
		if uintptr(unsafe.Pointer(last.Base))+uintptr(last.Len) == uintptr(unsafe.Pointer(base)) {
			last.Len += uint64(len(p))
			return
		}
	}
	b.iovs = append(b.iovs, unix.Iovec{Base: base, Len: uint64(len(p))})
}

// seal fills the message headers in.
func (b *batch) seal() []message {
	for i := range b.n {
		o, end := &b.outs[i], len(b.iovs)
		if i+1 < b.n {
			end = b.outs[i+1].first
		}
		b.msgs[i].hdr = unix.Msghdr{
			Name: &o.path.addr.b[0], Namelen: o.path.addr.n,
			Iov: &b.iovs[o.first], Iovlen: uint64(end - o.first),
		}
		if n := b.control(i, o); n > 0 {
			b.msgs[i].hdr.Control, b.msgs[i].hdr.Controllen = &b.ctrl[i][0], uint64(n)
		}
	}
	return b.msgs[:b.n]
}

// control writes the control messages of a datagram and returns their length.
func (b *batch) control(i int, o *out) (n int) {
	c := b.ctrl[i][:]
	if o.packets > 1 {
		n += putCmsg(c, solUDP, udpSegment, uint64(o.segment), 2)
	}
	if o.path.tos >= 0 {
		level, kind := int32(unix.IPPROTO_IP), int32(unix.IP_TOS)
		if o.path.v6 {
			level, kind = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		}
		n += putCmsg(c[n:], level, kind, uint64(o.path.tos), 4)
	}
	return n
}

// reset empties the batch.
func (b *batch) reset() { b.n, b.used, b.iovs = 0, 0, b.iovs[:0] }

// copyOut appends the bytes of datagram i to dst.
func (b *batch) copyOut(dst []byte, i int) []byte {
	h := &b.msgs[i].hdr
	for _, v := range unsafe.Slice(h.Iov, h.Iovlen) {
		dst = append(dst, unsafe.Slice(v.Base, v.Len)...)
	}
	return dst
}
