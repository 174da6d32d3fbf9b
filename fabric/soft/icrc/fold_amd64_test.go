package icrc

import "testing"

// The multipliers in fold_amd64.s.
func TestFoldConstants(t *testing.T) {
	constant := func(n uint32) uint64 { return uint64(pow(n)) << 1 }
	for _, c := range []struct {
		n    uint32
		want uint64
	}{
		{2048 + 32, 0x11542778a}, {2048 - 32, 0x1322d1430}, {512 + 32, 0x154442bd4}, {512 - 32, 0x1c6e41596},
		{128 + 32, 0x1751997d0}, {128 - 32, 0x0ccaa009e}, {64, 0x163cd6124},
	} {
		if got := constant(c.n); got != c.want {
			t.Errorf("x^%d: 0x%09x, the table has 0x%09x", c.n, got, c.want)
		}
	}
}
