package wire

import "fmt"

// MTU is a path MTU as the connection manager carries it (IBTA vol 1,
// 12.6.5): 1 is 256 bytes, 5 is 4096.
type MTU uint8

// Path MTUs.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// headroom is what surrounds the payload of a packet at most: the base
// header, a RETH with an immediate or an atomic header, ICRC, UDP.
const (
	headroom   = 8 + BTHLen + AtomicETHLen + ICRCLen
	headroomV4 = 20 + headroom
	headroomV6 = 40 + headroom
)

// Bytes is the payload of a full packet; 0 for a value that is none of the
// five.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// Valid says whether m is one of the five path MTUs.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

func (m MTU) String() string {
	if !m.Valid() {
		return fmt.Sprintf("MTU(%d)", uint8(m))
	}
	return fmt.Sprint(m.Bytes())
}

// MTUFor is the largest path MTU that fits an interface of that IP MTU in
// bytes, and 0 when not even the smallest does.
func MTUFor(ipMTU int, v6 bool) MTU {
	room := headroomV4
	if v6 {
		room = headroomV6
	}
	for m := MTU4096; m >= MTU256; m-- {
		if m.Bytes() <= ipMTU-room {
			return m
		}
	}
	return 0
}

// MTUOf is the largest path MTU of at most n bytes, and 0 when none is.
func MTUOf(n int) MTU {
	for m := MTU4096; m >= MTU256; m-- {
		if m.Bytes() <= n {
			return m
		}
	}
	return 0
}
