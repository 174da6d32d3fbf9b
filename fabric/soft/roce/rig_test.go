package roce

import (
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

const endMemory = 32 << 20

// endConfig is what an end has unless a test wants another.
var endConfig = fabric.ConnConfig{SendDepth: 256, RecvDepth: 256, MaxInline: 64, ORD: 128, IRD: 128, RetryCount: 7, RNRRetry: 7}

// newEnd makes an end on the address local.
func newEnd(t testing.TB, p *Provider, local string) *fabrictest.End {
	t.Helper()
	a := netip.MustParseAddr(local)
	return fabrictest.NewEnd(t, p, a, a, endMemory, endConfig)
}

// rcPair connects two ends on loopback, in that weather.
func rcPair(t testing.TB, o Options, w *weather) (x, y *fabrictest.End) {
	t.Helper()
	p, q := newProvider(t, o), newProvider(t, o)
	p.weather, q.weather = w, w
	x, y = newEnd(t, p, "127.0.0.2"), newEnd(t, q, "127.0.0.3")
	fabrictest.Connect(x, y)
	return x, y
}

func engineOf(e *fabrictest.End) *engine { return e.QP.(*queuePair).e }
