package initiator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma"
)

// What is written is read, at every size, with and without data in capsules and
// keys of their own.
func TestReadWrite(t *testing.T) {
	for _, o := range []struct {
		capsules bool
		inv      Choice
		mdts     int
	}{{true, On, 1 << 20}, {false, On, 8192}, {true, Off, 32 << 10}, {false, Off, 1 << 20}} {
		t.Run(fmt.Sprintf("capsules %v, windows %v, transfer %d", o.capsules, o.inv, o.mdts), func(t *testing.T) {
			r := newRig(t, rigOptions{cfg: func(c *rdma.Config) { c.MaxTransfer = o.mdts }})
			c := r.connect(func(c *Config) { c.NoInCapsule, c.Invalidate = !o.capsules, o.inv })
			if c.MaxTransfer() != o.mdts {
				t.Errorf("transfer %d", c.MaxTransfer())
			}
			n := r.namespace(c, memNS)
			if n.Size() != memSize || n.BlockSize() != memBlock || n.Blocks() != memSize/memBlock {
				t.Fatalf("size %d, block size %d", n.Size(), n.BlockSize())
			}
			for i, size := range []int{512, 4096, 8192, 5 * 512, 64 << 10, 128 << 10, 1 << 20, 3<<20 + 512, 10 << 20} {
				out, in := make([]byte, size), make([]byte, size)
				fill(out, byte(i))
				off := int64(i * 777 * memBlock)
				k, err := n.WriteAtContext(r.ctx, out, off, Flags(i%2))
				if err != nil || k != size {
					t.Fatalf("write %d bytes: %d, %v", size, k, err)
				}
				if k, err = n.ReadAt(in, off); err != nil || k != size {
					t.Fatalf("read %d bytes: %d, %v", size, k, err)
				}
				if !bytes.Equal(in, out) {
					t.Errorf("%d bytes: not what was written", size)
				}
			}
		})
	}
}

// Reads need not be on blocks, and end at the end.
func TestReadUnaligned(t *testing.T) {
	r := newRig(t, rigOptions{})
	n := r.namespace(r.connect(), memNS)
	all := make([]byte, 1<<20)
	fill(all, 77)
	_, err := n.WriteAt(all, 0)
	r.must(err)
	_, err = n.WriteAt(all[:4096], memSize-4096)
	r.must(err)
	for _, tt := range []struct{ off, size int64 }{
		{0, 1}, {1, 1}, {511, 2}, {100, 4096}, {513, 511}, {4095, 128<<10 + 2}, {1, 1<<20 - 2}, {300, 1<<20 - 300}, {512, 0},
	} {
		p := make([]byte, tt.size)
		k, err := n.ReadAt(p, tt.off)
		if err != nil || int64(k) != tt.size || !bytes.Equal(p, all[tt.off:][:tt.size]) {
			t.Errorf("%d at %d: %d, %v, or not the data", tt.size, tt.off, k, err)
		}
	}
	for _, tt := range []struct {
		off, size int64
		want      int
		err       error
	}{
		{memSize - 100, 200, 100, io.EOF}, {memSize - 100, 100, 100, nil}, {memSize, 1, 0, io.EOF}, {memSize + 5, 1, 0, io.EOF},
		{memSize - 4096, 1 << 20, 4096, io.EOF}, {-1, 1, 0, ErrOutOfRange}, {memSize, 0, 0, io.EOF},
	} {
		p := make([]byte, tt.size)
		k, err := n.ReadAt(p, tt.off)
		if k != tt.want || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%d at %d: %d, %v, want %d, %v", tt.size, tt.off, k, err, tt.want, tt.err)
		}
		if from := 4096 - (memSize - tt.off); k > 0 && !bytes.Equal(p[:k], all[from:][:k]) {
			t.Errorf("%d at %d: not the data", tt.size, tt.off)
		}
	}
	got, err := io.ReadAll(io.NewSectionReader(n, 12345, 100000))
	if err != nil || !bytes.Equal(got, all[12345:112345]) {
		t.Errorf("section reader: %v", err)
	}
}

// Ranges that a command cannot be about are refused before anything is done.
func TestRanges(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	n := r.namespace(c, memNS)
	ctx := r.ctx
	b := r.buffer(8192)
	ops := map[string]func(off, size int64) error{
		"write":        func(off, size int64) error { _, err := n.WriteAt(make([]byte, size), off); return err },
		"compare":      func(off, size int64) error { return n.Compare(ctx, make([]byte, size), off) },
		"discard":      func(off, size int64) error { return n.Discard(ctx, off, size) },
		"write zeroes": func(off, size int64) error { return n.WriteZeroes(ctx, off, size, 0) },
		"verify":       func(off, size int64) error { return n.Verify(ctx, off, size) },
		"read buffer":  func(off, size int64) error { return n.ReadBuffer(ctx, b, 0, int(size), off) },
		"write buffer": func(off, size int64) error { return n.WriteBuffer(ctx, b, 0, int(size), off, FUA) },
	}
	before := c.completions()
	for name, op := range ops {
		for _, tt := range []struct {
			off, size int64
			want      error
		}{
			{1, 512, ErrUnaligned}, {512, 100, ErrUnaligned}, {0, 513, ErrUnaligned},
			{memSize, 512, ErrOutOfRange}, {memSize - 512, 1024, ErrOutOfRange}, {-512, 512, ErrOutOfRange},
			{1<<63 - 512, 512, ErrOutOfRange},
		} {
			if err := op(tt.off, tt.size); !errors.Is(err, tt.want) {
				t.Errorf("%s of %d at %d: %v, want %v", name, tt.size, tt.off, err, tt.want)
			}
		}
		if err := op(0, 0); err != nil {
			t.Errorf("%s of nothing: %v", name, err)
		}
	}
	if err := n.ReadBuffer(ctx, b, 4096, 8192, 0); err == nil {
		t.Error("read past the end of a buffer")
	}
	if k := c.completions() - before; k != 0 {
		t.Errorf("%d commands were sent", k)
	}
}

func TestOperations(t *testing.T) {
	r := newRig(t, rigOptions{})
	n := r.namespace(r.connect(), memNS)
	p, zero := make([]byte, 1<<20), make([]byte, 1<<20)
	fill(p, 1)
	_, err := n.WriteAt(p, 0)
	r.must(err)
	r.must(n.Flush(r.ctx))
	r.must(n.Compare(r.ctx, p, 0))
	if err := n.Compare(r.ctx, p[512:], 0); !errors.Is(err, ErrMiscompare) {
		t.Errorf("compare of other data: %v", err)
	}
	r.must(n.Verify(r.ctx, 0, memSize))
	r.must(n.WriteZeroes(r.ctx, 0, 512<<10, FUA|Deallocate))
	r.must(n.Compare(r.ctx, zero[:512<<10], 0))
	r.must(n.Compare(r.ctx, p[512<<10:], 512<<10))
	r.must(n.Discard(r.ctx, 0, memSize))
	r.must(n.Compare(r.ctx, zero, 0))
	b := r.buffer(2 << 20)
	copy(b.Bytes(), p)
	r.must(n.WriteBuffer(r.ctx, b, 0, 1<<20, 4096, 0))
	r.must(n.ReadBuffer(r.ctx, b, 1<<20, 1<<20, 4096))
	if !bytes.Equal(b.Bytes()[:1<<20], b.Bytes()[1<<20:]) {
		t.Error("a buffer: not what was written")
	}
}

// What the controller does not have is refused in words, not by sending it.
func TestNotSupported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.set(func(s *script) { s.id = func(i *nvme.IdentifyController) { i.ONCS = 0 } })
		c := f.connect()
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		for name, err := range map[string]error{
			"compare": n.Compare(f.ctx, make([]byte, 512), 0), "discard": n.Discard(f.ctx, 0, 512),
			"write zeroes": n.WriteZeroes(f.ctx, 0, 512, 0), "verify": n.Verify(f.ctx, 0, 512),
		} {
			if !errors.Is(err, ErrNotSupported) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Many callers at once, more than there is memory for: each gets its own data.
func TestConcurrentCallers(t *testing.T) {
	r := newRig(t, rigOptions{})
	n := r.namespace(r.connect(func(c *Config) { c.BounceMemory, c.QueueDepth = 1<<20, 4 }), memNS)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			p, q := make([]byte, 300<<10), make([]byte, 300<<10)
			for i := range 5 {
				fill(p, byte(g*16+i))
				off := int64(g) * 1 << 20
				if _, err := n.WriteAt(p, off); err != nil {
					t.Error(err)
				}
				if _, err := n.ReadAt(q, off); err != nil || !bytes.Equal(p, q) {
					t.Errorf("caller %d: %v, or not its data", g, err)
				}
			}
		})
	}
	wg.Wait()
}

// A caller that gives up gets its context's error; its command ends by itself
// and its memory is used again.
func TestCallerGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID != 0 && !isConnect(cmd) {
				a := *fc.usual(cmd, fc.capsule)
				a.late = 5e6
				return &a
			}
			return nil
		})
		c := f.connect(func(c *Config) { c.BounceMemory = 1 << 20 })
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		for range 200 {
			ctx, cancel := context.WithTimeout(f.ctx, time.Millisecond)
			if _, err := n.ReadAtContext(ctx, make([]byte, 128<<10), 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
		}
		before := f.commands.Load()
		ctx, cancel := context.WithCancel(f.ctx)
		cancel()
		if _, err := n.ReadAtContext(ctx, make([]byte, 512), 0); !errors.Is(err, context.Canceled) || f.commands.Load() != before {
			t.Errorf("given up before it began: %v", err)
		}
		p := make([]byte, 512<<10)
		if _, err := n.ReadAt(p, 0); err != nil {
			t.Error(err)
		}
		if f.connects.Load() != 1 {
			t.Error("the association was lost")
		}
	})
}

// A status reaches the caller as it is, with how much was moved.
func TestStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID != 0 && cmd.Opcode() == nvme.CmdRead && cmd.SLBA() == 512 {
				return &answer{status: nvme.UnrecoveredReadError | nvme.StatusDNR}
			}
			return nil
		})
		n, err := f.connect().Namespace(f.ctx, 1)
		f.must(err)
		k, err := n.ReadAt(make([]byte, 1<<20), 0)
		var se *nvme.StatusError
		if k != 256<<10 || !errors.Is(err, nvme.UnrecoveredReadError) || !errors.As(err, &se) || se.Opcode != nvme.CmdRead {
			t.Errorf("%d, %v", k, err)
		}
	})
}

// No status is taken for success but success.
func TestEveryStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		var now atomic.Uint32
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID == 0 || isConnect(cmd) {
				return nil
			}
			return &answer{status: nvme.Status(now.Load()) | nvme.StatusDNR}
		})
		n, err := f.connect(still).Namespace(f.ctx, 1)
		f.must(err)
		for st := range nvme.Status(0x800) {
			now.Store(uint32(st))
			_, err := n.ReadAt(make([]byte, 512), 0)
			if ok := st == 0; (err == nil) != ok || !ok && !errors.Is(err, st) {
				t.Errorf("status %#x: %v", uint16(st), err)
			}
		}
		if f.connects.Load() != 1 {
			t.Error("the association was lost")
		}
	})
}

// Statuses that ask for it are retried; what does not end is told in the end.
func TestStatusRetried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		fail := 3
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID == 0 || isConnect(cmd) || fail == 0 {
				return nil
			}
			fail--
			return &answer{status: nvme.NamespaceNotReady}
		})
		n, err := f.connect(still).Namespace(f.ctx, 1)
		f.must(err)
		if _, err := n.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID == 0 {
				return nil
			}
			return &answer{status: nvme.NamespaceNotReady}
		})
		if _, err := n.ReadAt(make([]byte, 512), 0); !errors.Is(err, nvme.NamespaceNotReady) {
			t.Error(err)
		}
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID == 0 {
				return nil
			}
			return &answer{status: nvme.NamespaceNotReady | nvme.StatusDNR}
		})
		before := f.commands.Load()
		if _, err := n.ReadAt(make([]byte, 512), 0); !errors.Is(err, nvme.NamespaceNotReady) || f.commands.Load() != before+1 {
			t.Errorf("%v after %d commands", err, f.commands.Load()-before)
		}
	})
}

func TestIOCommand(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	cmd, data := newCommand(), make([]byte, 4096)
	fill(data, 3)
	cmd.InitIO(nvme.CmdWrite, memNS, 8, 8, 0)
	_, err := c.IOCommand(r.ctx, cmd, data, true)
	r.must(err)
	got := make([]byte, 4096)
	cmd.InitIO(nvme.CmdRead, memNS, 8, 8, 0)
	_, err = c.IOCommand(r.ctx, cmd, got, false)
	r.must(err)
	if !bytes.Equal(got, data) {
		t.Error("not what was written")
	}
	cmd.InitIO(nvme.CmdRead, 9999, 8, 8, 0)
	if _, err = c.IOCommand(r.ctx, cmd, got, false); !errors.Is(err, nvme.InvalidNamespace) {
		t.Error(err)
	}
	if _, err = c.IOCommand(r.ctx, cmd[:10], got, false); err == nil {
		t.Error("ten bytes were taken for a command")
	}
	if _, err = c.IOCommand(r.ctx, cmd, make([]byte, 2<<20), false); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	r.must(c.Close())
	if _, err = c.IOCommand(r.ctx, cmd, got, false); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// ReadAt of a block allocates nothing once its memory is there.
func TestReadAtAllocations(t *testing.T) {
	r := newRig(t, rigOptions{})
	n := r.namespace(r.connect(), memNS)
	p := make([]byte, 4096)
	read := func() {
		if _, err := n.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if a := testing.AllocsPerRun(200, read); a != 0 {
		t.Errorf("%v allocations", a)
	}
}
