package nbd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

func (k *client) closeWrite() {
	k.Helper()
	k.must(k.Conn.(*net.UnixConn).CloseWrite())
}

// Who breaks the protocol is cut off.
func TestHostileRequests(t *testing.T) {
	r := newRig(t, Options{})
	for name, b := range map[string][]byte{
		"wrong magic":                bytes.Repeat([]byte{0x25}, headerSize),
		"old magic":                  append([]byte{0x12, 0x56, 0x09, 0x53}, make([]byte, headerSize)...),
		"huge write":                 requestHeader(cmdWrite, 0, 1, 0, math.MaxUint32),
		"write a little too much":    requestHeader(cmdWrite, 0, 1, 0, maxDrain+1),
		"disconnect":                 requestHeader(cmdDisc, 0, 1, 0, 0),
		"disconnect, with more":      append(requestHeader(cmdDisc, 0, 1, 0, 0), requestHeader(cmdRead, 0, 1, 0, 512)...),
		"disconnect, full of things": requestHeader(cmdDisc, 0xffff, 1, math.MaxUint64, math.MaxUint32),
	} {
		t.Run(name, func(t *testing.T) {
			k := r.connect()
			k.send(b)
			k.gone()
		})
	}
	r.connect().ok(cmdRead, 0, 0, 4096, nil)
}

// A client may break off anywhere, and the commands it has in flight end in their
// time.
func TestBreakingOff(t *testing.T) {
	r := newRig(t, Options{Connections: 4})
	stream := append(requestHeader(cmdRead, 0, 1, 0, 4096), requestHeader(cmdWrite, 0, 2, 4096, 20<<10)...)
	stream = append(append(stream, make([]byte, 20<<10)...), requestHeader(cmdWrite, 0, 3, 0, MaxPayload+512)...)
	for _, hold := range []bool{false, true} {
		for _, cut := range []int{0, 1, headerSize - 1, headerSize, 2*headerSize - 5, 2 * headerSize, 2*headerSize + 1, 2*headerSize + 16<<10, len(stream) - headerSize, len(stream) - 1, len(stream)} {
			r.set(func() { r.hold = hold })
			k := r.connect()
			k.send(stream[:cut])
			if cut%2 == 0 {
				k.closeWrite()
			}
			r.must(k.Close())
			r.set(func() { r.hold = false })
			r.eventually("the client is gone", func() bool { return r.srv.Clients() == 0 })
		}
	}
	r.connect().ok(cmdRead, 0, 0, 4096, nil)
}

// A client that has closed its side gets all its replies.
func TestHalfClosed(t *testing.T) {
	r := newRig(t, Options{})
	k := r.connect()
	r.set(func() { r.hold = true })
	for range 20 {
		k.request(cmdRead, 0, 0, 64<<10, nil)
	}
	k.request(cmdRead, 0, 0, 512, nil)
	k.send(requestHeader(cmdWrite, 0, 99, 0, 4096)) // the payload never comes
	k.closeWrite()
	r.set(func() { r.hold = false })
	for range 20 {
		k.reply(64 << 10)
	}
	k.reply(512)
	k.gone()
}

// A client that takes no replies stops being read; others go on, and memory is
// bounded.
func TestDeafClient(t *testing.T) {
	before := fabric.LiveMemory()
	r := newRig(t, Options{Queues: 1})
	var deaf []*client
	var wg sync.WaitGroup
	for range 3 {
		k := r.connect()
		deaf = append(deaf, k)
		wg.Go(func() { // until the socket is full, or cut
			for i := uint64(0); ; i++ {
				size := []uint32{4096, MaxPayload, 64 << 10, 512, 1 << 20}[i%5]
				if _, err := k.Write(requestHeader(cmdRead, 0, i, 0, size)); err != nil {
					return
				}
			}
		})
	}
	k := r.connect()
	for i := range 300 {
		p := pattern(uint64(i), 4096)
		k.ok(cmdWrite, 0, 1<<20, len(p), p)
		if got := k.ok(cmdRead, 0, 1<<20, len(p), nil); !bytes.Equal(got, p) {
			t.Fatal("read is something else")
		}
	}
	most := int64(len(deaf)+1) * (maxSmallSlabs + maxLargeSlabs) * slabSize
	if n := fabric.LiveMemory() - before; n > most || n < MaxPayload {
		t.Errorf("%d bytes for %d clients, at most %d expected", n, len(deaf)+1, most)
	}
	for _, d := range deaf {
		r.must(d.Close())
	}
	wg.Wait()
	r.must(k.Close())
	r.eventually("the memory is given back", func() bool { return fabric.LiveMemory() == before })
}

// A client that stays silent costs nothing, not even a turn of its lane.
func TestIdle(t *testing.T) {
	r := newRig(t, Options{Queues: 1})
	k := r.connect()
	k.ok(cmdRead, 0, 0, 4096, nil)
	other := r.connect()
	other.send(requestHeader(cmdWrite, 0, 1, 0, 4096)[:9])
	parked := func() bool {
		buf := make([]byte, 1<<20)
		return bytes.Contains(buf[:runtime.Stack(buf, true)], []byte("nbd.(*fakeQueue).Rest"))
	}
	r.eventually("the lane sleeps", parked)
}

// More clients than are allowed are cut off, and let in when others have left.
func TestTooManyClients(t *testing.T) {
	r := newRig(t, Options{Connections: 2})
	a := r.connect()
	r.connect()
	c, err := net.Dial("unix", r.path)
	r.must(err)
	r.must(c.SetDeadline(time.Now().Add(patience)))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	r.must(c.Close())
	r.must(a.Close())
	r.eventually("one has left", func() bool { return r.srv.Clients() == 1 })
	r.connect().ok(cmdRead, 0, 0, 512, nil)
}

// Requests in pieces of any size are put together.
func TestPieces(t *testing.T) {
	r := newRig(t, Options{})
	k := r.connect()
	rng := rand.New(rand.NewPCG(4, 4))
	var stream []byte
	const requests = 60
	for i := range uint64(requests) {
		n := []int{512, 17 << 10, 300 << 10}[i%3]
		switch i % 4 {
		case 0:
			stream = append(stream, requestHeader(cmdRead, 0, i, 0, 512)...)
		case 1:
			stream = append(append(stream, requestHeader(cmdWrite, 0, i, 100, uint32(n))...), make([]byte, n)...) // refused, as it is not aligned
		default:
			stream = append(append(stream, requestHeader(cmdWrite, 0, i, i*512<<10, uint32(n))...), pattern(i, n)...)
		}
	}
	go func() {
		for len(stream) > 0 {
			n := min(1+rng.IntN([]int{3, 40, 70000}[rng.IntN(3)]), len(stream))
			if _, err := k.Write(stream[:n]); err != nil {
				return // the reader finds out
			}
			stream = stream[n:]
		}
	}()
	for range requests {
		got := k.reply(512)
		if want := map[bool]uint32{true: errnoInval}[got.cookie%4 == 1]; got.errno != want {
			t.Errorf("%+v, want error %d", got, want)
		}
	}
	for i := range uint64(requests) {
		if n := []int{512, 17 << 10, 300 << 10}[i%3]; i%4 > 1 && !bytes.Equal(r.stored(i*512<<10, n), pattern(i, n)) {
			t.Errorf("request %d has written something else", i)
		}
	}
}

// flatOut moves requests and replies without allocating.
type flatOut struct {
	k        *client
	requests []byte
	replies  []byte
}

func (f *flatOut) round() error {
	if _, err := f.k.Write(f.requests); err != nil {
		return err
	}
	_, err := io.ReadFull(f.k.Conn, f.replies)
	return err
}

// Requests of all kinds allocate nothing, one at a time or many.
func TestAllocations(t *testing.T) {
	r := newRig(t, Options{Queues: 1})
	for _, q := range r.opened {
		q.quiet = true
	}
	for _, c := range []struct {
		typ   uint16
		size  int
		depth int
	}{
		{cmdRead, 4096, 1}, {cmdRead, 4096, 32}, {cmdRead, 128 << 10, 4}, {cmdWrite, 4096, 1}, {cmdWrite, 4096, 32}, {cmdWrite, 128 << 10, 4},
		{cmdFlush, 0, 8}, {cmdTrim, 4096, 8}, {cmdWriteZeroes, 1 << 20, 4}, {cmdBlockStatus, 1 << 20, 4},
	} {
		t.Run(fmt.Sprintf("type %d of %d bytes, depth %d", c.typ, c.size, c.depth), func(t *testing.T) {
			k := r.connect()
			f := flatOut{k: k}
			for i := range c.depth {
				f.requests = append(f.requests, requestHeader(c.typ, 0, uint64(i), 0, uint32(c.size))...)
				n := simpleSize
				switch c.typ {
				case cmdWrite:
					f.requests = append(f.requests, make([]byte, c.size)...)
				case cmdRead:
					n = structuredSize + 8 + c.size
				case cmdBlockStatus:
					n = structuredSize + 12
				}
				f.replies = append(f.replies, make([]byte, n)...)
			}
			for range 20 { // memory, and room in queues
				r.must(f.round())
			}
			var failed error
			if n := testing.AllocsPerRun(50, func() { failed = f.round() }); n != 0 || failed != nil {
				t.Errorf("%v allocations for %d requests, %v", n, c.depth, failed)
			}
		})
	}
}

// Whatever a client sends in the transmission phase, the server lives, and the
// connection ends when the client ends it.
func FuzzRequests(f *testing.F) {
	f.Add(requestHeader(cmdRead, 0, 1, 0, 4096))
	f.Add(append(requestHeader(cmdWrite, cmdFlagFUA, 2, 512, 1024), make([]byte, 1000)...))
	f.Add(append(requestHeader(cmdTrim, cmdFlagFUA, 3, 0, 1<<20), requestHeader(cmdWriteZeroes, cmdFlagNoHole, 4, 0, 1<<20)...))
	f.Add(append(requestHeader(cmdBlockStatus, cmdFlagReqOne, 5, 0, 512), requestHeader(cmdFlush, 0, 6, 0, 0)...))
	f.Add(append(append(requestHeader(cmdWrite, 0, 1, 0, 9<<20), make([]byte, 99)...), requestHeader(cmdDisc, 0, 0, 0, 0)...))
	served := newRig(f, Options{Queues: 1})
	for _, q := range served.opened {
		q.quiet = true
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := *served
		r.TB = t
		k := r.connect()
		defer k.Close()
		go func() {
			_, _ = k.Write(b) // it may be cut
			_ = k.Conn.(*net.UnixConn).CloseWrite()
		}()
		if _, err := io.Copy(io.Discard, k.Conn); err != nil && !cut(err) {
			t.Fatal(err)
		}
	})
}

// cut says whether an error is that of a connection the server has cut.
func cut(err error) bool { return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) }

// Clients come and go without end.
func TestManyClients(t *testing.T) {
	r := newRig(t, Options{Queues: 1})
	rounds := 3000
	if testing.Short() {
		rounds = 600
	}
	for i := range rounds {
		k := r.connect()
		k.send(requestHeader(cmdRead, 0, 1, 0, 512)[:i%headerSize])
		k.closeWrite()
		k.gone()
		r.must(k.Close())
	}
	r.eventually("all are gone", func() bool { return r.srv.Clients() == 0 })
}
