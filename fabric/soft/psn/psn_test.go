package psn

import (
	"testing"

	"pgregory.net/rapid"
)

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		v, w Value
		want int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, Mask, 1},
		{Mask, 0, -1},
		{5, 0xfffffb, 10},
		{1 << 23, 0, -1 << 23},
		{1<<23 - 1, 0, 1<<23 - 1},
		{0, 1 << 23, -1 << 23},
		{0x9bcad0, 0x9bcacf, 1},
	} {
		if got := c.v.Diff(c.w); got != c.want {
			t.Errorf("%v.Diff(%v) = %d, want %d", c.v, c.w, got, c.want)
		}
		if got := c.v.Less(c.w); got != (c.want < 0) {
			t.Errorf("%v.Less(%v) = %v", c.v, c.w, got)
		}
	}
}

func TestWrap(t *testing.T) {
	if got := Value(Mask).Next(); got != 0 {
		t.Errorf("behind the last comes %v", got)
	}
	if got := Value(0).Prev(); got != Mask {
		t.Errorf("before 0 comes %v", got)
	}
	if got := New(0xff000001); got != 1 {
		t.Errorf("New keeps more than 24 bits: %v", got)
	}
	if got := Value(0xabc).String(); got != "000abc" {
		t.Errorf("String: %q", got)
	}
}

func TestInWindow(t *testing.T) {
	for _, c := range []struct {
		v, first Value
		size     int
		want     bool
	}{
		{10, 10, 1, true},
		{10, 10, 0, false},
		{11, 10, 1, false},
		{9, 10, 5, false},
		{0, 0xfffffe, 3, true},
		{1, 0xfffffe, 3, false},
	} {
		if got := c.v.InWindow(c.first, c.size); got != c.want {
			t.Errorf("%v in %d from %v: %v", c.v, c.size, c.first, got)
		}
	}
}

func TestAddDiffInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := New(rapid.Uint32().Draw(t, "v"))
		n := rapid.IntRange(-1<<23, 1<<23-1).Draw(t, "n")
		w := v.Add(n)
		if w > Mask {
			t.Fatalf("%#x leaves 24 bits", uint32(w))
		}
		if got := w.Diff(v); got != n {
			t.Fatalf("(%v+%d)-%v = %d", v, n, v, got)
		}
	})
}
