package backendtest_test

import (
	"testing"
	"testing/synctest"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/nvme"
)

func newFaulty(t testing.TB, s backendtest.Spec) *backendtest.Faulty {
	t.Helper()
	d, err := mem.Open(mem.Options{Size: s.Size(), BlockSize: s.BlockSize, ReadOnly: s.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	return backendtest.NewFaulty(d)
}

func TestFaultyWithoutFaultsConforms(t *testing.T) {
	backendtest.Conformance(t, backendtest.Harness{
		Open:      func(t testing.TB, s backendtest.Spec) backend.Device { return newFaulty(t, s) },
		Allocates: true,
	})
}

var spec = backendtest.Spec{BlockSize: 512, Blocks: 64}

func opened(t *testing.T) (*backendtest.Faulty, *backendtest.Rig, []byte) {
	t.Helper()
	f := newFaulty(t, spec)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, backendtest.NewRig(t, f, 4), backendtest.Memory(t, 4096)
}

func TestFail(t *testing.T) {
	f, r, mem := opened(t)
	f.Judge(backendtest.Fail(nvme.UnrecoveredReadError, backend.Kinds(backend.Read, backend.Flush), 1024, 512))
	read := func(off uint64) nvme.Status {
		return r.Do(backend.Op{Kind: backend.Read, Offset: off, Length: 512, Bufs: [][]byte{mem[:512]}})
	}
	for _, c := range []struct {
		off  uint64
		want nvme.Status
	}{{512, nvme.Success}, {1024, nvme.UnrecoveredReadError}, {1536, nvme.Success}} {
		if st := read(c.off); st != c.want {
			t.Errorf("read at %d: %v, want %v", c.off, st, c.want)
		}
	}
	if st := r.Do(backend.Op{Kind: backend.Flush}); st != nvme.UnrecoveredReadError {
		t.Errorf("flush: %v", st)
	}
	r.MustDo(backend.Op{Kind: backend.Write, Offset: 1024, Length: 512, Bufs: [][]byte{mem[:512]}})
	f.Judge(nil)
	if st := read(1024); st != nvme.Success {
		t.Errorf("without a judge: %v", st)
	}
	if f.Seen(backend.Read) != 4 || f.Seen(backend.Write) != 1 || f.Seen(backend.Flush) != 1 {
		t.Errorf("seen %d reads, %d writes, %d flushes", f.Seen(backend.Read), f.Seen(backend.Write), f.Seen(backend.Flush))
	}
}

// A held write has not happened; one held after has, and is not done.
func TestHold(t *testing.T) {
	for _, after := range []bool{false, true} {
		f, r, mem := opened(t)
		f.Judge(func(op *backend.Op) backendtest.Verdict {
			return backendtest.Verdict{Hold: op.Kind == backend.Write, After: after}
		})
		mem[0] = 9
		r.Queue.Submit([]backend.Op{{ID: 77, Kind: backend.Write, Length: 512, Bufs: [][]byte{mem[:512]}}})
		got := mem[512:1024]
		for range 2 { // the first may find the held completion, the second not again
			r.MustDo(backend.Op{Kind: backend.Read, Length: 512, Bufs: [][]byte{got}})
		}
		if happened := got[0] == 9; happened != after {
			t.Errorf("after %v: happened %v", after, happened)
		}
		if f.Held() != 1 {
			t.Errorf("after %v: %d held", after, f.Held())
		}
		r.Queue.Arm()
		if len(r.Woken) != 0 {
			t.Error("notified of a held operation")
		}
		if n := f.Release(5); n != 1 {
			t.Errorf("released %d", n)
		}
		r.Sleep()
		if c := r.Wait(); len(c) != 1 || c[0].ID != 77 || c[0].Status != nvme.Success {
			t.Errorf("after the release: %+v", c)
		}
		r.MustDo(backend.Op{Kind: backend.Read, Length: 512, Bufs: [][]byte{got}})
		if got[0] != 9 {
			t.Error("the write was lost")
		}
	}
}

func TestHoldThenFail(t *testing.T) {
	f, r, _ := opened(t)
	f.Judge(func(*backend.Op) backendtest.Verdict {
		return backendtest.Verdict{Hold: true, Status: nvme.WriteFault}
	})
	r.Queue.Submit([]backend.Op{{ID: 1, Kind: backend.Flush}, {ID: 2, Kind: backend.Flush}})
	for id := uint64(1); id <= 2; id++ {
		f.Release(1)
		if c := r.Wait(); len(c) != 1 || c[0].ID != id || c[0].Status != nvme.WriteFault {
			t.Errorf("release %d: %+v", id, c)
		}
	}
}

// Close of a queue with a stuck operation waits until it is released.
func TestCloseWaitsForHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r, _ := opened(t)
		f.Judge(backendtest.Hold(backend.Kinds(backend.Flush)))
		r.Queue.Submit([]backend.Op{{Kind: backend.Flush}})
		closed := make(chan error, 1)
		go func() { closed <- r.Queue.Close() }()
		synctest.Wait()
		if len(closed) > 0 {
			t.Error("closed with an operation held")
		}
		if n := f.Release(-1); n != 1 {
			t.Fatalf("%d held", n)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

func TestChangeInfo(t *testing.T) {
	f, _, _ := opened(t)
	f.ChangeInfo(func(i *backend.Info) { i.WriteCache, i.Blocks = true, 7 })
	if i := f.Info(); !i.WriteCache || i.Blocks != 7 || i.BlockSize != 512 {
		t.Errorf("%+v", i)
	}
	f.ChangeInfo(nil)
	if i := f.Info(); i.WriteCache || i.Blocks != spec.Blocks {
		t.Errorf("%+v", i)
	}
}
