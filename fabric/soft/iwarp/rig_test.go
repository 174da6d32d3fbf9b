package iwarp

import (
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// testEnd is an end that keeps what until has polled.
type testEnd struct {
	*fabrictest.End
	got []fabric.Completion
}

const (
	endMemory = 4 << 20
	endReads  = 16 // ORD and IRD, unless a test wants others
)

// newEnd makes an end on the device of a local address.
func newEnd(t testing.TB, p fabric.Provider, local netip.Addr) *testEnd {
	t.Helper()
	cfg := fabric.ConnConfig{SendDepth: 256, RecvDepth: 256, MaxInline: 64, ORD: endReads, IRD: endReads}
	return &testEnd{End: fabrictest.NewEnd(t, p, local, local, endMemory, cfg)}
}

// newPair connects two ends on loopback.
func newPair(t testing.TB, o Options) (x, y *testEnd) {
	t.Helper()
	return newPairFor(t, o, endReads)
}

// newPairFor is newPair with so many READs at a time.
func newPairFor(t testing.TB, o Options, reads int) (x, y *testEnd) {
	t.Helper()
	p := newProvider(t, o)
	x, y = newEnd(t, p, netip.MustParseAddr("127.0.0.2")), newEnd(t, p, netip.MustParseAddr("127.0.0.3"))
	for _, e := range []*testEnd{x, y} {
		e.Config.ORD, e.Config.IRD = reads, reads
	}
	fabrictest.Connect(x.End, y.End)
	return x, y
}

func engineOf(e *testEnd) *engine { return e.QP.(*queuePair).e }
