package mem_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/mem"
)

func open(t testing.TB, s backendtest.Spec) backend.Device {
	t.Helper()
	d, err := mem.Open(mem.Options{Size: s.Size(), BlockSize: s.BlockSize, ReadOnly: s.ReadOnly, MaxSize: 4 * s.Size()})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	backendtest.Conformance(t, backendtest.Harness{
		Open: open,
		Resize: func(t testing.TB, d backend.Device, blocks uint64) {
			if err := d.(*mem.Device).Resize(blocks * uint64(d.Info().BlockSize)); err != nil {
				t.Fatal(err)
			}
		},
		WholeBlocks: true,
	})
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		name  string
		opts  mem.Options
		field string
	}{
		{"no size", mem.Options{}, "Size"},
		{"odd size", mem.Options{Size: 5000}, "Size"},
		{"huge size", mem.Options{Size: 1 << 63}, "Size"},
		{"block size", mem.Options{Size: 4096, BlockSize: 1024}, "BlockSize"},
		{"block size and no size", mem.Options{BlockSize: 1024}, "BlockSize"},
		{"small maximum", mem.Options{Size: 8192, MaxSize: 4096}, "MaxSize"},
		{"huge maximum", mem.Options{Size: 4096, MaxSize: math.MaxUint64}, "MaxSize"},
	} {
		var oe *backend.OptionError
		if _, err := mem.Open(c.opts); !errors.As(err, &oe) || oe.Field != c.field {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := mem.Open(mem.Options{Size: 1 << 62}); err == nil {
		t.Error("four exbibytes were mapped")
	}
}

// Room to grow that the system does not grant is done without.
func TestNoRoomToGrow(t *testing.T) {
	d, err := mem.Open(mem.Options{Size: 4096, MaxSize: 1 << 62})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Resize(8192); !errors.Is(err, backend.ErrSize) {
		t.Errorf("grown without room: %v", err)
	}
}

func TestResizeLimits(t *testing.T) {
	d := open(t, backendtest.Spec{BlockSize: 4096, Blocks: 8}).(*mem.Device)
	defer d.Close()
	if err := d.Resize(5 * 8 * 4096); !errors.Is(err, backend.ErrSize) {
		t.Errorf("beyond the maximum: %v", err)
	}
	var oe *backend.OptionError
	if err := d.Resize(4095); !errors.As(err, &oe) {
		t.Errorf("not whole blocks: %v", err)
	}
}

// What is cut off must not come back.
func TestShrinkForgets(t *testing.T) {
	d := open(t, backendtest.Spec{BlockSize: 512, Blocks: 64}).(*mem.Device)
	defer d.Close()
	r := backendtest.NewRig(t, d, 1)
	buf := backendtest.Memory(t, 512)
	buf[0] = 1
	op := backend.Op{Kind: backend.Write, Offset: 63 * 512, Length: 512, Bufs: [][]byte{buf}}
	r.MustDo(op)
	for _, blocks := range []uint64{63, 64} {
		if err := d.Resize(blocks * 512); err != nil {
			t.Fatal(err)
		}
	}
	op.Kind = backend.Read
	r.MustDo(op)
	if buf[0] != 0 {
		t.Error("a block survived shrinking and growing")
	}
	if err := r.Queue.Close(); err != nil {
		t.Fatal(err)
	}
}

// A terabyte costs what is written of it, and a discard gives that back.
func TestSparse(t *testing.T) {
	const size = 1 << 40
	d, err := mem.Open(mem.Options{Size: size})
	if err != nil {
		t.Skipf("no address space for it: %v", err)
	}
	defer d.Close()
	r := backendtest.NewRig(t, d, 1)
	buf := backendtest.Memory(t, 8<<20)
	before := resident(t)
	for i := range buf {
		buf[i] = 1
	}
	r.MustDo(backend.Op{Kind: backend.Write, Offset: size - 8<<20, Length: 8 << 20, Bufs: [][]byte{buf}})
	written := resident(t)
	r.MustDo(backend.Op{Kind: backend.Discard, Length: size})
	freed := resident(t)
	const mb = 1 << 20
	if grown := written - before; grown < 12*mb || grown > 40*mb {
		t.Errorf("8 MiB written from 8 MiB: %d bytes more", grown)
	}
	if back := written - freed; back < 6*mb {
		t.Errorf("the discard freed %d bytes", back)
	}
	if err := r.Queue.Close(); err != nil {
		t.Fatal(err)
	}
}

// resident is the memory of this process in bytes.
func resident(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var total, rss int
	if _, err := fmt.Sscan(string(b), &total, &rss); err != nil {
		t.Fatal(err)
	}
	return rss * os.Getpagesize()
}

func BenchmarkRead(b *testing.B)  { benchmark(b, backend.Read) }
func BenchmarkWrite(b *testing.B) { benchmark(b, backend.Write) }

func benchmark(b *testing.B, kind backend.Kind) {
	d := open(b, backendtest.Spec{BlockSize: 4096, Blocks: 1024})
	r := backendtest.NewRig(b, d, 32)
	ops := make([]backend.Op, 32)
	buf := backendtest.Memory(b, 4096)
	for i := range ops {
		ops[i] = backend.Op{Kind: kind, Offset: uint64(i*31) * 4096, Length: 4096, Bufs: [][]byte{buf}}
	}
	done := make([]backend.Completion, 32)
	b.ReportAllocs()
	for b.Loop() {
		r.Queue.Submit(ops)
		r.Queue.Reap(done)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*32), "ns/io")
}
