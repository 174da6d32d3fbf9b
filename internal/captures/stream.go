package captures

import (
	"net/netip"
	"slices"
)

// half is one direction of a TCP connection while it is put together.
type half struct {
	start uint32 // sequence number of the first byte
	known bool   // start is known
	parts []Packet
}

// pair are the two directions of a connection: 0 from the client.
type pair struct {
	client, server netip.AddrPort
	half           [2]half
}

// assemble makes the connections of which a SYN was captured.
func assemble(ps []Packet) (conns []Conn) {
	var pairs []*pair
	live := map[[2]netip.AddrPort]*pair{} // by client and server
	for _, p := range ps {
		if p.Proto != ProtoTCP {
			continue
		}
		key, dir := [2]netip.AddrPort{p.Src, p.Dst}, 0
		c := live[key]
		if p.Flags&(SYN|ACK) == SYN && (c == nil || c.half[0].start != p.Seq+1) {
			c = &pair{client: p.Src, server: p.Dst}
			live[key] = c
			pairs = append(pairs, c)
		} else if c == nil {
			c, dir = live[[2]netip.AddrPort{p.Dst, p.Src}], 1
		}
		if c != nil {
			c.half[dir].add(p)
		}
	}
	for _, c := range pairs {
		a, okA := c.half[0].bytes()
		b, okB := c.half[1].bytes()
		conns = append(conns, Conn{c.client, c.server, a, b, !okA || !okB})
	}
	return conns
}

func (h *half) add(p Packet) {
	if p.Flags&SYN != 0 {
		h.start, h.known = p.Seq+1, true
	}
	if len(p.Payload) > 0 {
		h.parts = append(h.parts, p)
	}
}

// bytes are the bytes in the order of their sequence numbers, and whether all
// are there.
func (h *half) bytes() (out []byte, complete bool) {
	if !h.known {
		return nil, len(h.parts) == 0
	}
	at := func(p Packet) int { return int(int32(p.Seq - h.start)) }
	parts := slices.Clone(h.parts)
	slices.SortStableFunc(parts, func(a, b Packet) int { return at(a) - at(b) })
	for _, p := range parts {
		off := at(p)
		switch {
		case off < 0:
			continue // keep-alive probe: a byte before the stream
		case off > len(out):
			return out, false
		}
		if seen := len(out) - off; seen < len(p.Payload) {
			out = append(out, p.Payload[seen:]...)
		}
	}
	return out, true
}
