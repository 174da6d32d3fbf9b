package nvme

import "fmt"

// LengthError says that a structure was given bytes of a wrong length.
type LengthError struct {
	What string // the structure
	Got  int    // bytes given
	Want int    // bytes the structure has
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("nvme: %s of %d bytes, want %d", e.What, e.Got, e.Want)
}

// checkLength is the one check in front of each decoder of a fixed structure.
func checkLength(what string, b []byte, want int) error {
	if len(b) != want {
		return &LengthError{What: what, Got: len(b), Want: want}
	}
	return nil
}

// layout visits the fields of a fixed structure at their byte offsets. A
// structure names its fields once and is encoded and decoded from that.
type layout struct {
	b   []byte
	put bool
}

// encoder clears b, which must have the length of the structure, so that
// reserved bytes are zero.
func encoder(what string, b []byte, want int) layout {
	if len(b) != want {
		panic(fmt.Sprintf("nvme: encoding %s into %d bytes, want %d", what, len(b), want))
	}
	clear(b)
	return layout{b: b, put: true}
}

func decoder(b []byte) layout { return layout{b: b} }

func u8[T ~uint8](l layout, off int, p *T) {
	if l.put {
		l.b[off] = byte(*p)
	} else {
		*p = T(l.b[off])
	}
}

func u16[T ~uint16](l layout, off int, p *T) {
	if l.put {
		le.PutUint16(l.b[off:], uint16(*p))
	} else {
		*p = T(le.Uint16(l.b[off:]))
	}
}

func u32[T ~uint32](l layout, off int, p *T) {
	if l.put {
		le.PutUint32(l.b[off:], uint32(*p))
	} else {
		*p = T(le.Uint32(l.b[off:]))
	}
}

func u64[T ~uint64](l layout, off int, p *T) {
	if l.put {
		le.PutUint64(l.b[off:], uint64(*p))
	} else {
		*p = T(le.Uint64(l.b[off:]))
	}
}

func u128(l layout, off int, p *Uint128) {
	u64(l, off, &p.Lo)
	u64(l, off+8, &p.Hi)
}

// raw moves len(p) bytes as they are.
func raw(l layout, off int, p []byte) {
	if l.put {
		copy(l.b[off:], p)
	} else {
		copy(p, l.b[off:])
	}
}

// PutText fills an ASCII field of the specification: left justified, padded
// with spaces, cut when too long. A byte outside 20h to 7Eh
// becomes '?'.
func PutText(field []byte, s string) {
	for i := range field {
		switch {
		case i >= len(s):
			field[i] = ' '
		case s[i] < 0x20 || s[i] > 0x7E:
			field[i] = '?'
		default:
			field[i] = s[i]
		}
	}
}

// Text reads an ASCII field: it ends at the first NUL, and trailing spaces are
// padding. A byte outside 20h to 7Eh becomes '?', so that the text of a peer is
// fit for a terminal.
func Text(field []byte) string {
	n := 0
	for n < len(field) && field[n] != 0 {
		n++
	}
	for n > 0 && field[n-1] == ' ' {
		n--
	}
	out := make([]byte, n)
	for i, c := range field[:n] {
		if c < 0x20 || c > 0x7E {
			c = '?'
		}
		out[i] = c
	}
	return string(out)
}
