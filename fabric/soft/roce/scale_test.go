package roce

import (
	"testing"

	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// Ten thousand QPs on each of two devices.
func TestManyQPs(t *testing.T) {
	fabrictest.Scale(t, between(Options{}, "127.0.0.2", "127.0.0.3"), fabrictest.ScaleConfig{Connections: 10_000, HeapPerQP: 16 << 10})
}
