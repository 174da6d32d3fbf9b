package fabrictest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

func benchPair(b testing.TB) (x, y *End) {
	n := NewNetwork(Options{})
	end := func(addr netip.Addr) *End {
		p := n.NewProvider(DeviceOptions{Addrs: []netip.Addr{addr}})
		return NewEnd(b, p, addr, addr, 1<<20, fabric.ConnConfig{SendDepth: 128, RecvDepth: 128, MaxInline: 64, ORD: 16, IRD: 16, RetryCount: 7, RNRRetry: 7})
	}
	x, y = end(addr1), end(addr2)
	Connect(x, y)
	return x, y
}

// BenchmarkWR is the CPU of one WR, both ends on one goroutine: posted, run by
// the responder, completed at the requester (the last of a batch) and, for
// SENDs, at the receiver.
func BenchmarkWR(b *testing.B) {
	for _, op := range []fabric.Opcode{fabric.OpSend, fabric.OpWrite, fabric.OpRead} {
		for _, batch := range []int{1, 16} {
			for _, size := range []int{64, 4096} {
				b.Run(fmt.Sprintf("%v/batch=%d/size=%d", op, batch, size), func(b *testing.B) {
					benchWR(b, op, batch, size)
				})
			}
		}
	}
}

func benchWR(b *testing.B, op fabric.Opcode, batch, size int) {
	x, y := benchPair(b)
	sges, rsges := []fabric.SGE{x.SGE(0, size)}, []fabric.SGE{y.SGE(0, size)}
	wrs := make([]fabric.SendWR, batch)
	recvs := make([]fabric.RecvWR, batch)
	for i := range wrs {
		wrs[i] = fabric.SendWR{ID: uint64(i), Op: op, NumSGE: 1, RemoteAddr: y.Mem.Addr(), RKey: y.MR.RKey()}
		recvs[i] = fabric.RecvWR{ID: uint64(i), NumSGE: 1}
	}
	wrs[batch-1].Flags = fabric.FlagSignaled
	b.ReportAllocs()
	b.SetBytes(int64(size))
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		if op == fabric.OpSend {
			if _, err := y.QP.PostRecv(recvs, rsges); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := x.QP.PostSend(wrs, sges); err != nil {
			b.Fatal(err)
		}
		y.Poll()
		if len(x.Poll()) != 1 {
			b.Fatal("no completion")
		}
	}
}
