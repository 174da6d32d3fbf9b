package roce

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric/soft/icrc"
)

// transmitter sends batches from one socket. What the socket does not take at
// once is copied, for the memory it came from may be gone when it does.
type transmitter struct {
	fd     int
	sys    func(fd int, ms []message) (int, unix.Errno) // sendMessages
	source netip.AddrPort
	gso    bool
	batch  batch
	left   []leftover
	buf    []byte // of left
	from   int    // of left: sent before it
	one    [1]message
	iov    unix.Iovec
	ctrl   [64]byte

	calls   uint64
	dropped uint64 // datagrams the kernel refused
}

// leftover is a datagram that could not be sent yet.
type leftover struct {
	path    *path
	off     int
	bytes   int
	segment int
}

// blocked says whether something waits for room in the socket's buffer.
func (t *transmitter) blocked() bool { return len(t.left) > 0 }

// send sends the batch and empties it. It is false when the socket's buffer is
// full: the rest is kept, and retry must succeed before the next send.
func (t *transmitter) send() bool {
	ms := t.batch.seal()
	for len(ms) > 0 {
		t.calls++
		n, e := t.sys(t.fd, ms)
		if e == 0 {
			ms = ms[n:]
			continue
		}
		i := t.batch.n - len(ms)
		if e == unix.EAGAIN || e == unix.ENOBUFS {
			for ; i < t.batch.n; i++ {
				t.keep(i, t.batch.outs[i].segment)
			}
			break
		}
		t.refused(i, e)
		ms = ms[1:]
	}
	t.batch.reset()
	return !t.blocked()
}

// keep copies datagram i to what is left.
func (t *transmitter) keep(i, segment int) {
	off := len(t.buf)
	t.buf = t.batch.copyOut(t.buf, i)
	t.left = append(t.left, leftover{t.batch.outs[i].path, off, len(t.buf) - off, segment})
}

// refused handles an error of the kernel for datagram i. One that had to be
// cut is sent again in pieces, and so is everything from then on: the
// interface cannot cut (EIO: it computes no checksums) or the path is narrower
// than the packets (EMSGSIZE, EINVAL). Other errors lose the datagram; the
// connection notices when its retries are used up.
func (t *transmitter) refused(i int, e unix.Errno) {
	o := &t.batch.outs[i]
	if o.packets == 1 || e != unix.EIO && e != unix.EINVAL && e != unix.EMSGSIZE && e != unix.EOPNOTSUPP {
		t.dropped++
		return
	}
	t.gso = false
	buf := t.batch.copyOut(nil, i)
	for off := 0; off < len(buf); off += o.segment {
		p := buf[off:min(off+o.segment, len(buf))]
		o.path.flow.Seal(p, 0) // a packet of its own has the identification 0
		at := len(t.buf)
		t.buf = append(t.buf, p...)
		t.left = append(t.left, leftover{o.path, at, len(p), len(p)})
	}
}

// retry sends what is left and says whether nothing is any more.
func (t *transmitter) retry() bool {
	for ; t.from < len(t.left); t.from++ {
		l := &t.left[t.from]
		t.calls++
		_, e := t.sys(t.fd, t.single(l.path, t.buf[l.off:l.off+l.bytes], l.segment))
		switch e {
		case 0:
		case unix.EAGAIN, unix.ENOBUFS:
			return false
		default:
			t.dropped++
		}
	}
	t.left, t.buf, t.from = t.left[:0], t.buf[:0], 0
	return true
}

// single makes the message of one datagram.
func (t *transmitter) single(p *path, b []byte, segment int) []message {
	t.iov = unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	t.one[0].hdr = unix.Msghdr{Name: &p.addr.b[0], Namelen: p.addr.n, Iov: &t.iov, Iovlen: 1}
	if segment < len(b) {
		t.one[0].hdr.Control, t.one[0].hdr.Controllen = &t.ctrl[0], uint64(putCmsg(t.ctrl[:], solUDP, udpSegment, uint64(segment), 2))
	}
	return t.one[:]
}

// newPath is the way from the transmitter to the RoCE port of a peer.
func (t *transmitter) newPath(peer netip.AddrPort, zone int, qpn uint32, tos int16) *path {
	return &path{
		addr: newRawAddr(peer, zone), flow: icrc.NewFlow(t.source, peer),
		group: qpn & groupMask, tos: tos, v6: peer.Addr().Is6(),
	}
}
