package mpa

import "testing"

// BenchmarkParse is what the DDP and RDMAP headers of an FPDU cost: of a Read
// Request, which is untagged, and of a Write.
func BenchmarkParse(b *testing.B) {
	for _, c := range []struct {
		name string
		h    Header
	}{
		{"read", Header{Op: OpReadRequest, Last: true, QN: QueueRequest, MSN: 7}},
		{"write", Header{Op: OpWrite, Last: true, STag: 0x3c2, TO: 1 << 40}},
	} {
		b.Run(c.name, func(b *testing.B) {
			buf := make([]byte, 64)
			n := c.h.Put(buf)
			b.ReportAllocs()
			var h Header
			for b.Loop() {
				if cause := h.Parse(buf[:n]); cause != 0 {
					b.Fatal(cause)
				}
			}
			if h.Op != c.h.Op {
				b.Fatal(h)
			}
		})
	}
}
