package imagecopy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/initiator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk is a namespace in memory, of blocks of 512 bytes.
type disk struct {
	t        *testing.T
	noZeroes bool
	transfer int
	fail     func(op string, off int64) error

	mu      sync.Mutex
	data    []byte
	written int64 // bytes that came as data
	zeroed  int64
	flushed int
}

func newDisk(t *testing.T, size int, change ...func(*disk)) *disk {
	d := &disk{t: t, transfer: 128 << 10, data: make([]byte, size)}
	for _, fn := range change {
		fn(d)
	}
	return d
}

func (d *disk) BlockSize() int       { return 512 }
func (d *disk) MaxTransfer() int     { return d.transfer }
func (d *disk) Size() int64          { return int64(len(d.data)) }
func (d *disk) CanWriteZeroes() bool { return !d.noZeroes }

// enter checks a command and takes the lock.
func (d *disk) enter(op string, off, size int64) error {
	if off%512 != 0 || size%512 != 0 || off < 0 || off > d.Size() || size > d.Size()-off {
		d.t.Errorf("%s of %d bytes at %d", op, size, off)
		return initiator.ErrOutOfRange
	}
	if d.fail != nil {
		if err := d.fail(op, off); err != nil {
			return err
		}
	}
	d.mu.Lock()
	return nil
}

func (d *disk) ReadBuffer(_ context.Context, b *initiator.Buffer, bufOff, size int, off int64) error {
	if err := d.enter("read", off, int64(size)); err != nil {
		return err
	}
	defer d.mu.Unlock()
	copy(b.Bytes()[bufOff:bufOff+size], d.data[off:])
	return nil
}

func (d *disk) WriteBuffer(_ context.Context, b *initiator.Buffer, bufOff, size int, off int64, _ initiator.Flags) error {
	if err := d.enter("write", off, int64(size)); err != nil {
		return err
	}
	defer d.mu.Unlock()
	copy(d.data[off:], b.Bytes()[bufOff:bufOff+size])
	d.written += int64(size)
	return nil
}

func (d *disk) WriteZeroes(_ context.Context, off, size int64, _ initiator.Flags) error {
	if err := d.enter("write zeroes", off, size); err != nil {
		return err
	}
	defer d.mu.Unlock()
	clear(d.data[off : off+size])
	d.zeroed += size
	return nil
}

func (d *disk) Flush(context.Context) error { d.flushed++; return nil }

// random has n random bytes.
func random(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte(r.Uint32()) | 1
	}
	return b
}

// image makes a file of size bytes with data at some offsets and holes elsewhere.
func image(t *testing.T, size int64, data map[int64][]byte) (*os.File, []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, size)
	for off, b := range data {
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
		copy(content[off:], b)
	}
	return f, content
}

// sparse is an image whose data begins and ends anywhere.
func sparse(t *testing.T) (*os.File, []byte) {
	return image(t, 3<<20+777, map[int64][]byte{
		5000: random(10), 1<<20 + 100: random(300 << 10), 2<<20 - 4096: random(4096), 3 << 20: random(777),
	})
}

func dirty(n int) []byte { return bytes.Repeat([]byte{0xEE}, n) }

func TestImport(t *testing.T) {
	for _, workers := range []int{1, 8} {
		f, content := sparse(t)
		d := newDisk(t, 8<<20)
		d.data = dirty(8 << 20)
		var done atomic.Int64
		st, err := Import(t.Context(), f, d, Options{Workers: workers, Offset: 1 << 20, Done: &done})
		if err != nil {
			t.Fatal(err)
		}
		want := append(append(dirty(1<<20), content...), make([]byte, 512-777%512)...)
		want = append(want, dirty(8<<20-len(want))...)
		if !bytes.Equal(d.data, want) {
			t.Error("the namespace is not the image, or what is around it has changed")
		}
		if st.Bytes != int64(len(content)) || st.Data+st.Zero != st.Bytes || done.Load() != st.Bytes || d.flushed != 1 {
			t.Errorf("%+v, %d done, %d flushes", st, done.Load(), d.flushed)
		}
		if d.written > 1<<20 {
			t.Errorf("%d bytes were sent of an image with 310 KiB of data", d.written)
		}
		if _, err := Compare(t.Context(), f, d, Options{Offset: 1 << 20, Size: st.Bytes}); err != nil {
			t.Error(err)
		}
	}
}

// Zeroes that are data of the file are found too; a target that cannot write
// zeroes gets them.
func TestImportZeroes(t *testing.T) {
	f, content := image(t, 1<<20, map[int64][]byte{0: make([]byte, 512<<10), 700 << 10: random(1000)})
	d := newDisk(t, 1<<20, func(d *disk) { d.noZeroes = true })
	copy(d.data, dirty(1<<20))
	if _, err := Import(t.Context(), f, d, Options{}); err != nil || !bytes.Equal(d.data, content) || d.written != 1<<20 {
		t.Errorf("%v, %d bytes written", err, d.written)
	}
	d = newDisk(t, 1<<20)
	if _, err := Import(t.Context(), f, d, Options{SkipZeroes: true}); err != nil || !bytes.Equal(d.data, content) || d.written != 128<<10 || d.zeroed != 0 {
		t.Errorf("%v, %d bytes written, %d zeroed", err, d.written, d.zeroed)
	}
}

func TestImportPipe(t *testing.T) {
	for _, size := range []int{0, 1, 512, 128 << 10, 300<<10 + 5} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		content := random(size)
		go func() { _, _ = w.Write(content); w.Close() }()
		d := newDisk(t, 512<<10)
		st, err := Import(t.Context(), r, d, Options{})
		if err != nil || st.Bytes != int64(size) || !bytes.Equal(d.data[:size], content) {
			t.Errorf("%d bytes: %+v, %v", size, st, err)
		}
		r.Close()
	}
}

func TestImportErrors(t *testing.T) {
	f, _ := image(t, 1<<20, map[int64][]byte{0: random(1 << 20)})
	pipe := func(content []byte) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		go func() { _, _ = w.Write(content); w.Close() }()
		return r
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for name, c := range map[string]struct {
		f    *os.File
		o    Options
		want string
	}{
		"no room":        {f, Options{Offset: 512}, "not enough room"},
		"offset":         {f, Options{Offset: 100}, "not on a block"},
		"negative":       {f, Options{Offset: -512}, "not on a block"},
		"offset too far": {f, Options{Offset: 2 << 20}, "not enough room"},
		"short file":     {f, Options{Size: 2 << 20}, "fewer than"},
		"long pipe":      {pipe(random(1<<20 + 1)), Options{}, "not enough room"},
		"short pipe":     {pipe(random(1000)), Options{Size: 2000}, "fewer than"},
		"directory":      {dir, Options{}, "is a directory"},
	} {
		if _, err := Import(t.Context(), c.f, newDisk(t, 1<<20), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The first error ends all workers, and is the one that is told.
func TestFailure(t *testing.T) {
	broken := errors.New("broken")
	f, _ := image(t, 4<<20, map[int64][]byte{0: random(4 << 20)})
	d := newDisk(t, 4<<20, func(d *disk) {
		d.fail = func(op string, off int64) error {
			if off == 1<<20 {
				return broken
			}
			return nil
		}
	})
	if _, err := Import(t.Context(), f, d, Options{}); !errors.Is(err, broken) || d.flushed != 0 {
		t.Errorf("import: %v", err)
	}
	out, _ := image(t, 0, nil)
	if _, err := Export(t.Context(), d, out, Options{}); !errors.Is(err, broken) {
		t.Errorf("export: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	d.fail = nil
	if _, err := Import(ctx, f, d, Options{}); !errors.Is(err, broken) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestExport(t *testing.T) {
	d := newDisk(t, 2<<20)
	copy(d.data[100<<10:], random(50<<10))
	copy(d.data[1<<20+1000:], random(10))
	copy(d.data[2<<20-5:], random(5))
	f, _ := image(t, 4<<20, map[int64][]byte{0: dirty(4 << 20)}) // larger, and full
	st, err := Export(t.Context(), d, f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got, d.data) {
		t.Errorf("the file is not the namespace: %v", err)
	}
	if st.Bytes != 2<<20 || st.Zero < 2<<20-80<<10 {
		t.Errorf("%+v", st)
	}
	var info unix.Stat_t
	if err := unix.Stat(f.Name(), &info); err != nil || info.Blocks*512 > 200<<10 {
		t.Errorf("the file has %d bytes of data: %v", info.Blocks*512, err)
	}
	if _, err := Compare(t.Context(), f, d, Options{Size: 2 << 20}); err != nil {
		t.Error(err)
	}
}

func TestExportPart(t *testing.T) {
	d := newDisk(t, 1<<20)
	copy(d.data, random(1<<20))
	f, _ := image(t, 0, nil)
	if _, err := Export(t.Context(), d, f, Options{Offset: 512, Size: 200_001}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, d.data[512:512+200_001]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for name, o := range map[string]Options{"offset": {Offset: 5}, "too far": {Offset: 2 << 20}, "size": {Size: 1<<20 + 1}, "negative": {Size: -1}} {
		if _, err := Export(t.Context(), d, f, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A pipe gets everything in order.
func TestExportPipe(t *testing.T) {
	d := newDisk(t, 1<<20)
	copy(d.data[300<<10:], random(500<<10))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte)
	go func() { b, _ := io.ReadAll(r); got <- b }()
	_, err = Export(t.Context(), d, w, Options{Workers: 8})
	w.Close()
	if b := <-got; err != nil || !bytes.Equal(b, d.data) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	r.Close()
}

func TestCompare(t *testing.T) {
	d := newDisk(t, 1<<20)
	copy(d.data, random(1<<20))
	f, _ := image(t, 1<<20, map[int64][]byte{0: d.data})
	for _, at := range []int64{0, 1, 511, 128 << 10, 1<<20 - 1} {
		d.data[at] ^= 1
		_, err := Compare(t.Context(), f, d, Options{Size: 1 << 20, Workers: 1})
		var diff *DifferError
		if !errors.As(err, &diff) || diff.Offset != at {
			t.Errorf("a change of byte %d: %v", at, err)
		}
		d.data[at] ^= 1
	}
	if _, err := Compare(t.Context(), f, d, Options{Size: 2 << 20}); !errors.Is(err, ErrTooSmall) {
		t.Errorf("%v", err)
	}
	if st, err := Compare(t.Context(), f, d, Options{}); err != nil || st.Bytes != 0 {
		t.Errorf("nothing: %+v, %v", st, err)
	}
	if err := f.Truncate(100); err != nil {
		t.Fatal(err)
	}
	if _, err := Compare(t.Context(), f, d, Options{Size: 1 << 20}); !errors.Is(err, io.EOF) {
		t.Errorf("a file that became shorter: %v", err)
	}
}

// Extents of any layout are covered once, and end.
func TestExtents(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		data := map[int64][]byte{}
		for range r.IntN(8) {
			data[r.Int64N(4<<20)] = random(1 + r.IntN(300<<10))
		}
		f, content := image(t, 5<<20, data)
		src, size, err := sourceOf(f, 0, 96<<10)
		if err != nil || size != 5<<20 {
			t.Fatal(size, err)
		}
		at := int64(0)
		for deadline := time.Now().Add(10 * time.Second); ; {
			p, err := src.next(nil)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || p.off != at || p.n <= 0 || time.Now().After(deadline) {
				t.Fatalf("seed %d: %+v at %d, %v", seed, p, at, err)
			}
			if p.zero && !isZero(content[p.off:p.off+int64(p.n)]) {
				t.Fatalf("seed %d: %+v is no hole", seed, p)
			}
			at += int64(p.n)
		}
		if at != size {
			t.Errorf("seed %d: %d of %d bytes", seed, at, size)
		}
	}
}

func TestFormatOf(t *testing.T) {
	for head, want := range map[string]string{"QFI\xfb....": "qcow2", "vhdxfile": "vhdx", "KDMV": "vmdk", "raw data": "", "Q": "", "": ""} {
		if got := FormatOf(strings.NewReader(head)); got != want {
			t.Errorf("%q: %q", head, got)
		}
	}
}

func TestIsZero(t *testing.T) {
	b := make([]byte, 200<<10)
	if !isZero(b) || !isZero(nil) {
		t.Error("zeroes are not zero")
	}
	for _, at := range []int{0, 64<<10 - 1, 64 << 10, len(b) - 1} {
		b[at] = 1
		if isZero(b) {
			t.Errorf("byte %d is not zero", at)
		}
		b[at] = 0
	}
}
