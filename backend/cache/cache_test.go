package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/file"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/nvme"
)

// underRace: sync.Pool, which ristretto uses, drops things at random then.
var underRace bool

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openMem(t testing.TB, s backendtest.Spec) backend.Device {
	t.Helper()
	d, err := mem.Open(mem.Options{Size: s.Size(), BlockSize: s.BlockSize, ReadOnly: s.ReadOnly, MaxSize: 4 * s.Size()})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// over makes a cache of so many pages over a device.
func over(t testing.TB, dev backend.Device, pages int, o Options) *Device {
	t.Helper()
	if o.Page == 0 {
		o.Page = MinPage
	}
	if o.Memory == nil {
		o.Memory = backendtest.Memory(t, pages*o.Page)
	}
	d, err := New(dev, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// opened is over, closed with the test.
func opened(t testing.TB, dev backend.Device, pages int, o Options) *Device {
	t.Helper()
	d := over(t, dev, pages, o)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return d
}

func options() []Options {
	all := []Options{
		{},
		{Admission: AdmitAll},
		{Admission: AdmitAll, Page: 64 << 10},
		{ReadAhead: 64 << 10},
		{Admission: AdmitAll, ReadAhead: 16 << 10, Page: 8 << 10},
	}
	if testing.Short() {
		return all[3:]
	}
	return all
}

func describe(o Options) string {
	return fmt.Sprintf("%d %s ahead %d", max(o.Page, MinPage), o.Admission, o.ReadAhead)
}

func TestConformance(t *testing.T) {
	for _, o := range options() {
		t.Run(describe(o), func(t *testing.T) {
			backendtest.Conformance(t, backendtest.Harness{
				Open: func(t testing.TB, s backendtest.Spec) backend.Device { return over(t, openMem(t, s), 64, o) },
				Resize: func(t testing.TB, d backend.Device, blocks uint64) {
					if err := d.(*Device).dev.(*mem.Device).Resize(blocks * uint64(d.Info().BlockSize)); err != nil {
						t.Fatal(err)
					}
				},
				WholeBlocks: true,
				Allocates:   o.Admission == AdmitAll || underRace, // ristretto's Set does
			})
		})
	}
}

// A faulty device that lets everything pass, but late.
func TestConformanceOverFaulty(t *testing.T) {
	backendtest.Conformance(t, backendtest.Harness{
		Open: func(t testing.TB, s backendtest.Spec) backend.Device {
			return over(t, backendtest.NewFaulty(openMem(t, s)), 64, Options{Admission: AdmitAll, ReadAhead: 32 << 10})
		},
		WholeBlocks: true,
		Allocates:   true,
	})
}

func TestConformanceOverFile(t *testing.T) {
	for _, o := range []file.Options{{}, {Direct: file.DirectOff, Engine: file.EnginePool}} {
		for _, c := range []Options{{}, {Admission: AdmitAll, ReadAhead: 64 << 10}} {
			t.Run(fmt.Sprintf("%s%s/%s", o.Engine, o.Direct, describe(c)), func(t *testing.T) {
				conformOverFile(t, o, c)
			})
		}
	}
}

func conformOverFile(t *testing.T, o file.Options, c Options) {
	dir, made := t.TempDir(), 0
	backendtest.Conformance(t, backendtest.Harness{
		Open: func(t testing.TB, s backendtest.Spec) backend.Device {
			made++
			o := o
			o.Path, o.Size, o.BlockSize = filepath.Join(dir, fmt.Sprint(made)), s.Size(), s.BlockSize
			o.ReadOnly, o.Create = s.ReadOnly, !s.ReadOnly
			if s.ReadOnly {
				if err := os.WriteFile(o.Path, make([]byte, o.Size), 0o400); err != nil {
					t.Fatal(err)
				}
			}
			d, err := file.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			return over(t, d, 64, c)
		},
		Resize: func(t testing.TB, d backend.Device, blocks uint64) {
			if err := os.Truncate(d.Info().Path, int64(blocks)*int64(d.Info().BlockSize)); err != nil {
				t.Fatal(err)
			}
		},
		Allocates: c.Admission == AdmitAll || underRace,
	})
}

func TestOptions(t *testing.T) {
	memory := backendtest.Memory(t, 8*MaxPage)
	for _, c := range []struct {
		name  string
		opts  Options
		field string
	}{
		{"no memory", Options{}, "Memory"},
		{"little memory", Options{Memory: memory[:8*MinPage-1]}, "Memory"},
		{"seven large pages", Options{Memory: memory[:8*MaxPage-1], Page: MaxPage}, "Memory"},
		{"odd memory", Options{Memory: memory[512:]}, "Memory"},
		{"small page", Options{Memory: memory, Page: 2048}, "Page"},
		{"large page", Options{Memory: memory, Page: 128 << 10}, "Page"},
		{"odd page", Options{Memory: memory, Page: 12 << 10}, "Page"},
		{"negative page", Options{Memory: memory, Page: -4096}, "Page"},
		{"negative read-ahead", Options{Memory: memory, ReadAhead: -1}, "ReadAhead"},
		{"endless read-ahead", Options{Memory: memory, ReadAhead: MaxReadAhead + 1}, "ReadAhead"},
		{"admission", Options{Memory: memory, Admission: "lru"}, "Admission"},
	} {
		dev := openMem(t, backendtest.Spec{BlockSize: 4096, Blocks: 8})
		var oe *backend.OptionError
		if _, err := New(dev, c.opts); !errors.As(err, &oe) || oe.Field != c.field {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := dev.Close(); err != nil { // still ours
			t.Error(err)
		}
	}
}

func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(desc{}) + unsafe.Sizeof(entry{}) + 2*unsafe.Sizeof(uint32(0)); n != slotBytes {
		t.Errorf("a slot takes %d bytes", n)
	}
}

// rig drives a queue that lends.
type rig struct {
	*backendtest.Rig
	lender backend.Lender
	memory []byte
}

func newRig(t testing.TB, d backend.Device, depth int) *rig {
	t.Helper()
	r := backendtest.NewRig(t, d, depth)
	return &rig{r, r.Queue.(backend.Lender), backendtest.Memory(t, 1<<20)}
}

func (r *rig) read(off, n uint64) nvme.Status {
	return r.Do(backend.Op{Kind: backend.Read, Offset: off, Length: n, Bufs: [][]byte{r.memory[:n]}})
}

func (r *rig) write(off, n uint64, with byte) nvme.Status {
	for i := range r.memory[:n] {
		r.memory[i] = with
	}
	return r.Do(backend.Op{Kind: backend.Write, Offset: off, Length: n, Bufs: [][]byte{r.memory[:n]}})
}

// lend lends, and gives what it lent back; the bytes are copied.
func (r *rig) lend(off, n uint64) (data []byte, ok bool) {
	lent, ok := r.lender.Lend(off, n, make([][]byte, 0, 256))
	for _, b := range lent {
		data = append(data, b...)
	}
	if ok {
		r.lender.Return(lent)
	}
	return data, ok
}

// stats are up to date: a queue that sleeps shows what it has counted.
func (r *rig) stats(d *Device) Stats {
	r.Queue.Arm()
	return d.Stats()
}

// settle waits until ristretto has done what was set.
func settle(d *Device) { d.index.rc.Wait() }
