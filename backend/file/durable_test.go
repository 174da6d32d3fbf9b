package file

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/nvme"
)

func discards(n uint64) backend.Op { return backend.Op{Kind: backend.Discard, Length: n * 4096} }

func freeing(op backend.Op) backend.Op {
	op.Dealloc = true
	return op
}

// What an operation asks of stable media is in the calls it makes, and its
// completion comes after them.
func TestCallsOfDurability(t *testing.T) {
	for _, c := range []struct {
		name    string
		through bool
		decide  func(*call) injection
		op      func(mem []byte) backend.Op
		want    []string
	}{
		{"write", false, nil, func(b []byte) backend.Op { return write(b, 0) }, []string{"write"}},
		{"FUA write", false, nil, func(b []byte) backend.Op { return fua(write(b, 0)) }, []string{"write dsync"}},
		{"FUA write without RWF_DSYNC", false,
			func(c *call) injection {
				if c.flags == unix.RWF_DSYNC {
					return injection{errno: unix.EOPNOTSUPP}
				}
				return injection{}
			},
			func(b []byte) backend.Op { return fua(write(b, 0)) }, []string{"write dsync", "write", "sync"}},
		{"FUA read", false, nil, func(b []byte) backend.Op { return fua(read(b, 0)) }, []string{"read", "sync"}},
		{"flush", false, nil, func([]byte) backend.Op { return flush }, []string{"sync"}},
		{"write zeroes", false, nil, func([]byte) backend.Op { return zeroes(4) }, []string{"zero"}},
		{"FUA write zeroes", false, nil, func([]byte) backend.Op { return fua(zeroes(4)) }, []string{"zero", "sync"}},
		{"FUA write zeroes, deallocate", false, nil, func([]byte) backend.Op { return freeing(fua(zeroes(4))) }, []string{"punch", "sync"}},
		{"FUA write zeroes by writing", false, always(unix.EOPNOTSUPP, callFallocate),
			func([]byte) backend.Op { return freeing(fua(zeroes(4))) }, []string{"punch", "zero", "write", "sync"}},
		{"write zeroes of no whole blocks", false, always(unix.EINVAL, callFallocate),
			func([]byte) backend.Op { return zeroes(4) }, []string{"zero", "write"}},
		{"discard", false, nil, func([]byte) backend.Op { return discards(4) }, []string{"punch"}},
		{"write, write through", true, nil, func(b []byte) backend.Op { return write(b, 0) }, []string{"write dsync"}},
		{"discard, write through", true, nil, func([]byte) backend.Op { return discards(4) }, []string{"punch", "sync"}},
		{"read, write through", true, nil, func(b []byte) backend.Op { return read(b, 0) }, []string{"read"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachEngine(t, Options{WriteThrough: c.through}, func(t *testing.T, d *Device, fl *faults) {
				if d.Info().WriteCache == c.through {
					t.Errorf("WriteThrough %v, WriteCache %v", c.through, d.Info().WriteCache)
				}
				fl.set(c.decide)
				backendtest.NewRig(t, d, 2).MustDo(c.op(backendtest.Memory(t, 4096)))
				if got := fl.made(); !slices.Equal(got, c.want) {
					t.Errorf("calls %q, want %q", got, c.want)
				}
			})
		})
	}
}

// What the medium turned out to lack is not tried again.
func TestLacksAreRemembered(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, fl *faults) {
		r := backendtest.NewRig(t, d, 2)
		mem := backendtest.Memory(t, 4*4096)
		for i := range mem {
			mem[i] = 1
		}
		r.MustDo(write(mem, 0))
		fl.set(func(c *call) injection {
			if c.op == callFallocate || c.flags == unix.RWF_DSYNC {
				return injection{errno: unix.EOPNOTSUPP}
			}
			return injection{}
		})
		r.MustDo(freeing(zeroes(4)))
		r.MustDo(read(mem, 0))
		if slices.Max(mem) != 0 {
			t.Error("zeroes were not written")
		}
		r.MustDo(fua(write(mem, 0)))
		fl.set(nil)
		r.MustDo(freeing(zeroes(4)))
		r.MustDo(fua(write(mem, 0)))
		if got, want := fl.made(), []string{"write", "write", "sync"}; !slices.Equal(got, want) {
			t.Errorf("calls %q, want %q", got, want)
		}
	})
}

// Flushes that come while one runs share the next; none joins the running one.
func TestFlushesShare(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, fl *faults) {
		r := backendtest.NewRig(t, d, 8)
		fl.set(nil)
		for i, st := range r.DoAll(slices.Repeat([]backend.Op{flush}, 8)) {
			if st != nvme.Success {
				t.Errorf("flush %d: %v", i, st)
			}
		}
		if n := len(fl.made()); n != 2 {
			t.Errorf("%d syncs for 8 flushes at once, want 2", n)
		}
		for range 3 {
			r.MustDo(flush)
		}
		if n := len(fl.made()); n != 5 {
			t.Errorf("%d syncs after 3 more one by one, want 5", n)
		}
	})
}

// After a failed sync no flush of the device succeeds until it is opened
// again: the kernel forgot what it could not write.
func TestFailedFlushStays(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, fl *faults) {
		r, other := backendtest.NewRig(t, d, 4), backendtest.NewRig(t, d, 4)
		mem := backendtest.Memory(t, 4096)
		fl.set(once(unix.EIO, callSync))
		for i, st := range r.DoAll([]backend.Op{flush, flush, flush}) {
			if st != nvme.WriteFault {
				t.Errorf("flush %d with a failing sync: %v", i, st)
			}
		}
		for _, q := range []*backendtest.Rig{r, other} {
			for _, op := range []backend.Op{flush, fua(zeroes(1)), fua(read(mem, 0))} {
				if st := q.Do(op); st != nvme.WriteFault {
					t.Errorf("%s after a failed sync: %v", backendtest.Describe(&op), st)
				}
			}
			for _, op := range []backend.Op{write(mem, 0), read(mem, 0), fua(write(mem, 0))} {
				q.MustDo(op)
			}
		}
		syncs := slices.DeleteFunc(fl.made(), func(c string) bool { return c != "sync" })
		if len(syncs) != 2 { // that which failed, and that for which two waited
			t.Errorf("%d syncs", len(syncs))
		}
		if err := d.Failed(); !errors.Is(err, unix.EIO) {
			t.Errorf("Failed: %v", err)
		}
	})
	path := filepath.Join(t.TempDir(), "again")
	for range 2 {
		d, err := Open(Options{Path: path, Size: 4096, Create: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Failed(), d.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Through the page cache, the error that a FUA write gets may be an earlier
// write's, and is then told to nobody else.
func TestFailedBufferedFUA(t *testing.T) {
	eachEngine(t, Options{Direct: DirectOff}, func(t *testing.T, d *Device, fl *faults) {
		r := backendtest.NewRig(t, d, 1)
		mem := backendtest.Memory(t, 4096)
		fl.set(once(unix.EIO, callWrite))
		if st := r.Do(fua(write(mem, 0))); st != nvme.WriteFault {
			t.Errorf("write: %v", st)
		}
		if st := r.Do(flush); st != nvme.WriteFault {
			t.Errorf("flush: %v", st)
		}
	})
}

// A sync that was only interrupted has not failed.
func TestInterruptedFlush(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, fl *faults) {
		r := backendtest.NewRig(t, d, 1)
		fl.set(once(unix.EINTR, callSync))
		r.MustDo(flush)
		if got := len(fl.made()); got != 2 {
			t.Errorf("%d calls", got)
		}
	})
}
