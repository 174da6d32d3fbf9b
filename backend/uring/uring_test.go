package uring

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// open skips the test through the error a user of the package would see.
func open(t *testing.T, entries uint32, m Mode) *Ring {
	t.Helper()
	r, err := New(entries, m)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func eachMode(t *testing.T, f func(t *testing.T, m Mode)) {
	for m := Shared; m < numModes; m++ {
		t.Run(m.String(), func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			f(t, m)
		})
	}
}

// wait reaps n completions. What the tests submit ends without outside help.
func wait(t *testing.T, r *Ring, n int) []CQE {
	t.Helper()
	var all []CQE
	for out := make([]CQE, n); len(all) < n; {
		if r.Ready() == 0 {
			if _, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 0, 1, enterGetEvents, 0, 0); e != 0 && e != unix.EINTR {
				t.Fatal(e)
			}
		}
		got := r.Reap(out[:n-len(all)])
		all = append(all, out[:got]...)
	}
	return all
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"params", unsafe.Sizeof(params{}), 120},
		{"params.sqOff", unsafe.Offsetof(params{}.sqOff), 40},
		{"params.cqOff", unsafe.Offsetof(params{}.cqOff), 80},
		{"probe", unsafe.Sizeof(probe{}), 16 + 256*8},
		{"SQE", unsafe.Sizeof(SQE{}), 64},
		{"SQE.OpFlags", unsafe.Offsetof(SQE{}.OpFlags), 28},
		{"SQE.BufIndex", unsafe.Offsetof(SQE{}.BufIndex), 40},
		{"SQE.Addr3", unsafe.Offsetof(SQE{}.Addr3), 48},
		{"CQE", unsafe.Sizeof(CQE{}), 16},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
		}
	}
}

func TestNops(t *testing.T) {
	eachMode(t, func(t *testing.T, m Mode) {
		r := open(t, 8, m)
		for round := range uint64(5) { // goes around both rings
			for i := range uint64(8) {
				r.Next().UserData = round<<8 | i
			}
			if r.Next() != nil {
				t.Fatal("a ninth entry in a ring of eight")
			}
			if r.Pending() != 8 {
				t.Errorf("pending %d", r.Pending())
			}
			if err := r.Submit(true); err != nil {
				t.Fatal(err)
			}
			if r.Pending() != 0 {
				t.Errorf("pending %d after submit", r.Pending())
			}
			for i, c := range wait(t, r, 8) {
				if c.UserData != round<<8|uint64(i) || c.Res != 0 {
					t.Fatalf("completion %d of round %d: %+v", i, round, c)
				}
			}
		}
		if r.Ready() != 0 || r.NeedsEnter() {
			t.Error("more completions than submissions")
		}
	})
}

func TestFixedReadWrite(t *testing.T) {
	eachMode(t, func(t *testing.T, m Mode) {
		r := open(t, 4, m)
		if !r.Supports(OpReadFixed, OpWriteFixed, OpFsync, OpNop) {
			t.Fatal("the kernel says it lacks its oldest opcodes")
		}
		if r.Supports(OpNop, 250) {
			t.Error("opcode 250 is supported")
		}
		f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mem)
		if err := r.RegisterBuffers([][]byte{mem[:4096], mem[4096:]}); err != nil {
			t.Fatal(err)
		}
		if err := r.RegisterFiles([]int32{int32(f.Fd())}); err != nil {
			t.Fatal(err)
		}
		copy(mem, "stored through a registered buffer")
		addr := uint64(uintptr(unsafe.Pointer(&mem[0])))
		do := func(e SQE) {
			t.Helper()
			*r.Next() = e
			if err := r.Submit(false); err != nil {
				t.Fatal(err)
			}
			if c := wait(t, r, 1)[0]; c.Res < 0 {
				t.Fatalf("opcode %d: %v", e.Opcode, unix.Errno(-c.Res))
			}
		}
		do(SQE{Opcode: OpWriteFixed, Flags: FixedFile, Addr: addr, Len: 64, Off: 512, OpFlags: unix.RWF_DSYNC})
		do(SQE{Opcode: OpFsync, Flags: FixedFile, OpFlags: FsyncDatasync})
		do(SQE{Opcode: OpReadFixed, Flags: FixedFile, Addr: addr + 4096, Len: 64, Off: 512, BufIndex: 1})
		if got := string(mem[4096 : 4096+34]); got != "stored through a registered buffer" {
			t.Errorf("read back %q", got)
		}
		if err := r.UnregisterBuffers(); err != nil {
			t.Error(err)
		}
	})
}

func TestEventsOnlyWhileOn(t *testing.T) {
	eachMode(t, func(t *testing.T, m Mode) {
		r := open(t, 4, m)
		efd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(efd)
		if err := r.RegisterEventFD(efd); err != nil {
			t.Fatal(err)
		}
		signalled := func() bool {
			var b [8]byte
			n, err := unix.Read(efd, b[:])
			return n == 8 && err == nil
		}
		for _, on := range []bool{false, true, false} {
			r.SetEvents(on)
			r.Next()
			if err := r.Submit(false); err != nil {
				t.Fatal(err)
			}
			wait(t, r, 1)
			if got := signalled(); got != on {
				t.Errorf("events %v: signalled %v", on, got)
			}
		}
	})
}

func TestSingleBelongsToOneThread(t *testing.T) {
	r := open(t, 4, Single)
	if r.Mode() != Single {
		t.Skipf("the kernel gave mode %v", r.Mode())
	}
	onOwnThread := func() error {
		err := make(chan error)
		go func() {
			runtime.LockOSThread() // not unlocked: the thread ends here
			r.Next()
			err <- r.Submit(false)
		}()
		return <-err
	}
	if err := onOwnThread(); err != nil {
		t.Fatalf("first thread: %v", err)
	}
	if err := onOwnThread(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("second thread: %v, want EEXIST", err)
	}
}

func TestTakeBack(t *testing.T) {
	r := open(t, 4, Shared)
	for round := range 3 { // at different places of the ring
		for i := range uint64(3) {
			r.Next().UserData = i
		}
		var back []uint64
		r.TakeBack(func(e *SQE) { back = append(back, e.UserData) })
		if !slices.Equal(back, []uint64{2, 1, 0}) || r.Pending() != 0 {
			t.Errorf("round %d: took back %v, %d pending", round, back, r.Pending())
		}
		r.Next().UserData = 7
		if err := r.Submit(false); err != nil {
			t.Fatal(err)
		}
		if c := wait(t, r, 1)[0]; c.UserData != 7 {
			t.Errorf("round %d: completion of %d", round, c.UserData)
		}
	}
}

func TestRefusals(t *testing.T) {
	if _, err := New(0, Single); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no entries: %v", err)
	}
	if _, err := New(1<<20, Shared); !errors.Is(err, unix.EINVAL) {
		t.Errorf("2^20 entries: %v", err)
	}
	for _, e := range []unix.Errno{unix.EPERM, unix.ENOSYS, unix.ENOMEM} {
		if err := unavailable(os.NewSyscallError("io_uring_setup", e)); !errors.Is(err, ErrUnavailable) || !errors.Is(err, e) {
			t.Errorf("%v: %v", e, err)
		}
	}
	if err := unavailable(unix.EMFILE); errors.Is(err, ErrUnavailable) {
		t.Error("too many open files is no reason to fall back")
	}
	r := open(t, 4, Shared)
	if err := r.RegisterBuffers([][]byte{make([]byte, 0, 1)}); err == nil {
		t.Error("an empty buffer was registered")
	}
	if err := r.RegisterEventFD(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("event descriptor -1: %v", err)
	}
}

func BenchmarkNops(b *testing.B) {
	const batch = 32
	r, err := New(batch, Shared)
	if err != nil {
		b.Skip(err)
	}
	defer r.Close()
	out := make([]CQE, batch)
	for b.Loop() {
		for range batch {
			r.Next()
		}
		if err := r.Submit(true); err != nil {
			b.Fatal(err)
		}
		if n := r.Reap(out); n != batch {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/nop")
}
