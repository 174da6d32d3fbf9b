package roce

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric/soft/icrc"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// datagram is what the kernel was given: the bytes, and the segment size when
// it was to cut them.
type datagram struct {
	b       []byte
	segment int
}

// kernel stands for the system call: it takes messages as long as refuse says
// 0.
type kernel struct {
	got    []datagram
	refuse func(d datagram) unix.Errno
}

func (k *kernel) send(_ int, ms []message) (int, unix.Errno) {
	for i := range ms {
		h := &ms[i].hdr
		var d datagram
		for _, v := range unsafe.Slice(h.Iov, h.Iovlen) {
			d.b = append(d.b, unsafe.Slice(v.Base, v.Len)...)
		}
		if d.segment = len(d.b); h.Control != nil {
			ctl := unsafe.Slice(h.Control, h.Controllen)
			if c := (*unix.Cmsghdr)(unsafe.Pointer(&ctl[0])); c.Level == solUDP && c.Type == udpSegment {
				d.segment = int(*(*uint16)(unsafe.Pointer(&ctl[unix.CmsgLen(0)])))
			}
		}
		if e := k.refuse(d); e != 0 {
			if i > 0 {
				return i, 0
			}
			return 0, e
		}
		k.got = append(k.got, d)
	}
	return len(ms), 0
}

// packets cuts what the kernel was given, as it would, and checks each ICRC.
func (k *kernel) packets(t *testing.T, f icrc.Flow) (ps [][]byte) {
	t.Helper()
	for _, d := range k.got {
		if len(d.b) > maxDatagram {
			t.Errorf("a datagram of %d bytes", len(d.b))
		}
		for i, b := 0, d.b; len(b) > 0; i++ {
			p := bytes.Clone(b[:min(d.segment, len(b))])
			b = b[len(p):]
			sealed := bytes.Clone(p)
			f.Seal(sealed, uint16(i))
			if !bytes.Equal(sealed, p) {
				t.Errorf("packet %d of a datagram of %d bytes has a wrong ICRC", i, len(d.b))
			}
			ps = append(ps, p)
		}
	}
	return ps
}

// newTransmitter makes one that sends to k, and a path.
func newTransmitter(k *kernel) (*transmitter, *path) {
	t := &transmitter{sys: k.send, gso: true, source: netip.MustParseAddrPort("127.0.0.2:50000")}
	t.batch.init(4)
	return t, t.newPath(netip.MustParseAddrPort("127.0.0.3:4791"), 0, 513, -1)
}

// add adds a packet of n bytes of payload in two parts.
func (t *transmitter) add(p *path, n int, seq psn.Value) {
	pkt := t.batch.packet()
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	pkt.Header = pkt.Header[:wire.BTHLen]
	wire.BTH(pkt.Header).Put(wire.OpWriteMiddle, 0, wire.PadLen(n), 7, seq)
	pkt.Data, pkt.Size = append(pkt.Data[:0], data[:n/3], data[n/3:]), n
	t.batch.add(p, t.gso)
}

// sequence is the PSN of each packet.
func sequence(ps [][]byte) (s []psn.Value) {
	for _, p := range ps {
		s = append(s, wire.BTH(p).PSN())
	}
	return s
}

// sizes of the datagrams that a list of packets makes.
func TestBatching(t *testing.T) {
	for _, c := range []struct {
		name     string
		payloads []int
		want     []int // packets of each datagram
	}{
		{"one", []int{100}, []int{1}},
		{"equal ones", []int{256, 256, 256}, []int{3}},
		{"a shorter one is the last", []int{256, 256, 10, 256}, []int{3, 1}},
		{"a longer one begins anew", []int{10, 256, 256}, []int{1, 2}},
		{"a pad makes them equal", []int{253, 256, 255}, []int{3}},
		{"64 at most", slices.Repeat([]int{16}, 130), []int{64, 64, 2}},
		{"64 KiB at most", slices.Repeat([]int{4096}, 33), []int{15, 15, 3}},
		{"no payload", []int{0, 0, 1}, []int{2, 1}},
	} {
		k := &kernel{refuse: func(datagram) unix.Errno { return 0 }}
		tx, p := newTransmitter(k)
		for i, n := range c.payloads {
			tx.add(p, n, psn.Value(i))
		}
		if !tx.send() {
			t.Errorf("%s: blocked", c.name)
		}
		var got []int
		for _, d := range k.got {
			got = append(got, (len(d.b)+d.segment-1)/d.segment)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v packets in each datagram, want %v", c.name, got, c.want)
		}
		if ps := k.packets(t, p.flow); len(ps) != len(c.payloads) {
			t.Errorf("%s: %d packets", c.name, len(ps))
		}
	}
}

// Packets of paths that differ in what matters never share a datagram.
func TestBatchingPaths(t *testing.T) {
	k := &kernel{refuse: func(datagram) unix.Errno { return 0 }}
	tx, p := newTransmitter(k)
	same := tx.newPath(netip.MustParseAddrPort("127.0.0.3:4791"), 0, 513+512, -1)
	group := tx.newPath(netip.MustParseAddrPort("127.0.0.3:4791"), 0, 514, -1)
	host := tx.newPath(netip.MustParseAddrPort("127.0.0.4:4791"), 0, 513, -1)
	class := tx.newPath(netip.MustParseAddrPort("127.0.0.3:4791"), 0, 513, 8)
	for i, q := range []*path{p, same, group, host, class, class} {
		tx.add(q, 64, psn.Value(i))
	}
	tx.send()
	var got []int
	for _, d := range k.got {
		got = append(got, len(d.b)/d.segment)
	}
	if want := []int{2, 1, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("%v packets in each datagram, want %v", got, want)
	}
}

// The socket's buffer is full: what it did not take is kept and sent later,
// unchanged and in order, though its memory is gone.
func TestSendBlocked(t *testing.T) {
	room := 1
	k := &kernel{}
	k.refuse = func(datagram) unix.Errno {
		if room == 0 {
			return unix.EAGAIN
		}
		room--
		return 0
	}
	tx, p := newTransmitter(k)
	for i, n := range []int{256, 256, 64, 10, 4000} {
		tx.add(p, n, psn.Value(i))
	}
	if tx.send() || !tx.blocked() || tx.batch.n != 0 {
		t.Error("not blocked")
	}
	clear(tx.batch.room)
	if tx.retry() {
		t.Error("sent without room")
	}
	room = 1
	if tx.retry() {
		t.Error("all sent with room for one")
	}
	room = 10
	if !tx.retry() || tx.blocked() {
		t.Error("still blocked")
	}
	if got := sequence(k.packets(t, p.flow)); len(got) != 5 || got[0] != 0 || got[2] != 2 || got[3] != 3 || got[4] != 4 {
		t.Errorf("sent %v", got)
	}
}

// An interface that cannot cut datagrams gets single packets from then on,
// with the ICRCs that single packets have.
func TestSegmentationRefused(t *testing.T) {
	for _, e := range []unix.Errno{unix.EIO, unix.EINVAL, unix.EMSGSIZE} {
		k := &kernel{}
		k.refuse = func(d datagram) unix.Errno {
			if d.segment < len(d.b) {
				return e
			}
			return 0
		}
		tx, p := newTransmitter(k)
		for i := range 5 {
			tx.add(p, 1024, psn.Value(i))
		}
		tx.send()
		if !tx.retry() || tx.gso {
			t.Errorf("%v: blocked %v, segmentation %v", e, tx.blocked(), tx.gso)
		}
		tx.add(p, 1024, 5)
		tx.add(p, 1024, 6)
		tx.send()
		got := sequence(k.packets(t, p.flow))
		if len(got) != 7 || len(k.got) != 7 {
			t.Fatalf("%v: sent %v in %d datagrams", e, got, len(k.got))
		}
		for i, s := range got {
			if s != psn.Value(i) {
				t.Errorf("%v: sent %v", e, got)
			}
		}
		if tx.dropped != 0 {
			t.Errorf("%v: %d dropped", e, tx.dropped)
		}
	}
}

// Other errors lose the datagram and nothing else.
func TestSendError(t *testing.T) {
	k := &kernel{refuse: func(d datagram) unix.Errno {
		if len(d.b) == wire.BTHLen+20+icrc.Len {
			return unix.ENETUNREACH
		}
		return 0
	}}
	tx, p := newTransmitter(k)
	for i, size := range []int{10, 20, 30} {
		tx.add(p, size, psn.Value(i))
	}
	if !tx.send() || tx.dropped != 1 || len(k.got) != 2 {
		t.Errorf("%d dropped, %d sent", tx.dropped, len(k.got))
	}
}

func TestCmsg(t *testing.T) {
	var b [64]byte
	n := putCmsg(b[:], unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 5, 4)
	n += putCmsg(b[n:], solUDP, udpGRO, 4112, 4)
	if got := segmentSize(b[:n]); got != 4112 {
		t.Errorf("segment size %d", got)
	}
	for i := range n {
		_ = segmentSize(b[:i]) // cut short
	}
	clear(b[:8])
	if got := segmentSize(b[:n]); got != 0 {
		t.Errorf("a control message of no length gives %d", got)
	}
}

func TestIPHeader(t *testing.T) {
	for _, c := range []struct {
		level, class, hops int32
		size               int // of the class
	}{{unix.IPPROTO_IP, unix.IP_TOS, unix.IP_TTL, 1}, {unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT, 4}} {
		var b [controlRoom]byte
		n := putCmsg(b[:], c.level, c.hops, 63, 4)
		n += putCmsg(b[n:], c.level, c.class, 0xb8, c.size)
		n += putCmsg(b[n:], solUDP, udpGRO, 4112, 4)
		class, hops := ipHeader(b[:n])
		if class != 0xb8 || hops != 63 || segmentSize(b[:n]) != 4112 {
			t.Errorf("class %#x, hop limit %d, segment %d", class, hops, segmentSize(b[:n]))
		}
		for i := range n {
			_, _ = ipHeader(b[:i]) // cut short
		}
	}
	if class, hops := ipHeader(nil); class != 0 || hops != 0 {
		t.Error("something of nothing")
	}
}

func FuzzSegmentSize(f *testing.F) {
	f.Add(make([]byte, 24))
	f.Fuzz(func(_ *testing.T, b []byte) {
		segmentSize(append([]byte(nil), b...))
		ipHeader(append([]byte(nil), b...))
	})
}
