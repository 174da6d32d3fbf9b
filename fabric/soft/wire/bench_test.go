package wire

import "testing"

// BenchmarkParse is what the headers of a packet cost: a READ request, and a
// WRITE of 4 KiB, whose payload is not looked at.
func BenchmarkParse(b *testing.B) {
	write := make([]byte, OpWriteOnly.Len()+4096+ICRCLen)
	BTH(write).Put(OpWriteOnly, AckReq, 0, 0x11, 7)
	RETH(write[BTHLen:]).Put(1<<40, 0x3c2, 4096)
	for _, c := range []struct {
		name string
		b    []byte
	}{{"read", unhex(b, kernelRead)}, {"write-4K", write}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var p Packet
			var sum uint64
			for b.Loop() {
				if err := p.Parse(c.b); err != nil {
					b.Fatal(err)
				}
				sum += p.RETH().VA() + uint64(p.BTH.PSN())
			}
			if sum == 0 {
				b.Fatal("no header")
			}
		})
	}
}
