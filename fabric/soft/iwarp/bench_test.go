package iwarp

import (
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// report adds processor time and system calls a message.
func report(b *testing.B, used time.Duration, ends ...*testEnd) {
	b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	var calls, vain uint64
	for _, e := range ends {
		calls += engineOf(e).calls
		vain += engineOf(e).vain
	}
	b.ReportMetric(float64(calls)/float64(b.N), "syscalls/op")
	b.ReportMetric(float64(vain)/float64(b.N), "in-vain/op")
}

// loads are what BenchmarkBandwidth and BenchmarkShare move.
func loads(b *testing.B, sizes []int, run func(b *testing.B, o Options, op fabric.Opcode, size int)) {
	for _, crc := range []CRC{CRCAuto, CRCOn} {
		for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead, fabric.OpSend} {
			for _, size := range sizes {
				name := fmt.Sprintf("%v/size=%d", op, size)
				if crc == CRCOn {
					name = "CRC/" + name
				}
				b.Run(name, func(b *testing.B) { run(b, Options{CRC: crc}, op, size) })
			}
		}
	}
}

// BenchmarkBandwidth is a stream of operations of one size, 32 of them outstanding.
// It is to be compared with BenchmarkBound.
func BenchmarkBandwidth(b *testing.B) {
	loads(b, []int{64, 4096, 131072}, func(b *testing.B, o Options, op fabric.Opcode, size int) {
		benchBandwidth(b, o, op, size, 32)
	})
	b.Run("Segments/WRITE/size=131072", func(b *testing.B) {
		benchBandwidth(b, Options{MaxFPDU: 1448}, fabric.OpWrite, 131072, 32)
	})
}

// BenchmarkShare is a bandwidth and BenchmarkBound in turns, with 128 operations
// outstanding, as many as perftest takes.
func BenchmarkShare(b *testing.B) {
	loads(b, []int{4096, 131072}, func(b *testing.B, o Options, op fabric.Opcode, size int) {
		s, _, _ := newStream(b, o, op, size, 128)
		defer s.Close()
		t := newBound(b)
		defer t.close()
		fabrictest.Share(b, t.run, func(n int) int64 { s.Run(n); return int64(n) * int64(size) })
	})
}

// newStream is a stream over a connection of its own.
func newStream(b *testing.B, o Options, op fabric.Opcode, size, depth int) (s *fabrictest.Stream, x, y *testEnd) {
	x, y = newPairFor(b, o, maxReads)
	return fabrictest.NewStream(x.End, y.End, op, size, depth), x, y
}

func benchBandwidth(b *testing.B, o Options, op fabric.Opcode, size, depth int) {
	s, x, y := newStream(b, o, op, size, depth)
	b.SetBytes(int64(size))
	b.ResetTimer()
	c0 := fabrictest.CPU()
	s.Run(b.N)
	b.StopTimer()
	used := fabrictest.CPU() - c0
	s.Close() // nobody polls any more: report reads what the engines count
	report(b, used, x, y)
}

// BenchmarkCPU has both ends on one goroutine, 16 operations at a time: the
// processor time of an operation, with nobody waiting. It is to be compared
// with BenchmarkCPU/bound, which moves 64 KiB by plain writes and reads.
func BenchmarkCPU(b *testing.B) {
	for _, crc := range []CRC{CRCAuto, CRCOn} {
		for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead, fabric.OpSend} {
			for _, size := range []int{64, 4096, 131072} {
				name := fmt.Sprintf("%v/size=%d", op, size)
				if crc == CRCOn {
					name = "CRC/" + name
				}
				b.Run(name, func(b *testing.B) { benchCPU(b, Options{CRC: crc}, op, size) })
			}
		}
	}
	b.Run("bound", benchCPUBound)
}

func benchCPU(b *testing.B, o Options, op fabric.Opcode, size int) {
	const depth = 16
	x, y := newPair(b, o)
	wrs, recvs, sges := make([]fabric.SendWR, depth), make([]fabric.RecvWR, depth), make([]fabric.SGE, depth)
	rsge := []fabric.SGE{y.SGE(0, size)}
	for i := range wrs {
		sges[i] = x.SGE(i*size, size)
		wrs[i] = fabric.SendWR{Op: op, NumSGE: 1, FirstSGE: uint32(i), RemoteAddr: y.Mem.Addr() + uint64(i*size), RKey: y.MR.RKey()}
		recvs[i].NumSGE = 1
	}
	wrs[depth-1].Flags = fabric.FlagSignaled
	b.SetBytes(int64(size))
	b.ResetTimer()
	c0 := fabrictest.CPU()
	for n := 0; n < b.N; n += depth {
		want := 1
		if op == fabric.OpSend {
			want += depth
			_, err := y.QP.PostRecv(recvs, rsge)
			y.Must(err)
		}
		_, err := x.QP.PostSend(wrs, sges)
		x.Must(err)
		for want > 0 || engineOf(x).stats.Sent != engineOf(y).stats.Received {
			want -= len(x.Poll()) + len(y.Poll())
		}
	}
	b.StopTimer()
	report(b, fabrictest.CPU()-c0, x, y)
}

func benchCPUBound(b *testing.B) {
	const size = 64 << 10
	fds, err := tcpPair()
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	in, out := make([]byte, endMemory), make([]byte, endMemory)
	b.SetBytes(size)
	b.ResetTimer()
	c0 := fabrictest.CPU()
	sent, got := 0, 0
	for got < b.N*size {
		for range 4 {
			n, err := unix.Write(fds[0], out[sent%endMemory/size*size:][:size])
			if err != nil {
				break
			}
			sent += n
		}
		for got < sent {
			n, err := unix.Read(fds[1], in[got%endMemory/size*size:][:size])
			if err != nil {
				break
			}
			got += n
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(fabrictest.CPU()-c0)/float64(b.N), "cpu-ns/op")
}

// BenchmarkLatency is the time of a READ, and of a SEND or WRITE there and one
// back.
func BenchmarkLatency(b *testing.B) {
	b.Run("READ/size=4096", func(b *testing.B) { benchBandwidth(b, Options{}, fabric.OpRead, 4096, 1) })
	b.Run("SEND/size=64", func(b *testing.B) { benchPingPong(b, fabric.OpSend) })
	b.Run("WRITE/size=64", func(b *testing.B) { benchPingPong(b, fabric.OpWrite) })
}

// pingPong sends one message when one has come, rounds times. A WRITE has come
// when its last byte has changed, which wakes nobody: it polls and never sleeps.
func (e *testEnd) pingPong(peer *testEnd, op fabric.Opcode, rounds int, first bool) {
	const size = 64
	in, out := &e.Mem.Bytes()[4096+size-1], &e.Mem.Bytes()[size-1]
	*in = 0
	sge := []fabric.SGE{e.SGE(0, size)}
	recv := []fabric.RecvWR{{NumSGE: 1}}
	wr := []fabric.SendWR{{Op: op, NumSGE: 1, RemoteAddr: peer.Mem.Addr() + 4096, RKey: peer.MR.RKey()}}
	_, err := e.QP.PostRecv(recv, sge)
	e.Must(err)
	mine := first
	for got := 0; got < rounds || mine; {
		if mine {
			wr[0].Flags = 0
			if got%64 == 0 {
				wr[0].Flags = fabric.FlagSignaled
			}
			if *out = byte(got); first {
				*out++
			}
			_, err := e.QP.PostSend(wr, sge)
			e.Must(err)
			mine = false
		}
		came := false
		for _, c := range e.Poll() {
			if c.Op == fabric.OpRecv {
				_, err := e.QP.PostRecv(recv, sge)
				e.Must(err)
				came = true
			}
		}
		if op == fabric.OpWrite && *in == byte(got+1) {
			came = true
		}
		if came {
			got++
			mine = !first || got < rounds
		}
	}
	for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
		e.Poll()
	}
}

func benchPingPong(b *testing.B, op fabric.Opcode) {
	x, y := newPair(b, Options{})
	done := make(chan struct{})
	b.ResetTimer()
	c0 := fabrictest.CPU()
	go func() { y.pingPong(x, op, b.N, false); close(done) }()
	x.pingPong(y, op, b.N, true)
	<-done
	b.StopTimer()
	report(b, fabrictest.CPU()-c0, x, y)
}

// bound is the plain use of TCP: writes of 64 KiB over as much memory as the others
// use, and a goroutine that does nothing but read. Neither sleeps.
type bound struct {
	b       *testing.B
	fds     [2]int
	in, out []byte
}

const boundSize = 64 << 10

func newBound(b *testing.B) *bound {
	fds, err := tcpPair()
	if err != nil {
		b.Fatal(err)
	}
	return &bound{b: b, fds: fds, in: make([]byte, endMemory), out: make([]byte, endMemory)}
}

func (t *bound) close() {
	unix.Close(t.fds[0])
	unix.Close(t.fds[1])
}

// run writes n times and returns the bytes when they have come.
func (t *bound) run(n int) int64 {
	total := int64(n) * boundSize
	done := make(chan struct{})
	go func() {
		defer close(done)
		for got := int64(0); got < total; {
			if k, err := unix.Read(t.fds[1], t.in[got%endMemory/boundSize*boundSize:][:boundSize]); err == nil {
				got += int64(k)
			}
		}
	}()
	for sent := int64(0); sent < total; {
		k, err := unix.Write(t.fds[0], t.out[sent%endMemory/boundSize*boundSize:][:min(boundSize, total-sent)])
		switch {
		case err == nil:
			sent += int64(k)
		case err != unix.EAGAIN:
			t.b.Fatal(err)
		}
	}
	<-done
	return total
}

// BenchmarkBound is what TCP does at best. One operation is a write of 64 KiB.
func BenchmarkBound(b *testing.B) {
	t := newBound(b)
	defer t.close()
	b.SetBytes(boundSize)
	b.ResetTimer()
	c0 := fabrictest.CPU()
	t.run(b.N)
	b.StopTimer()
	b.ReportMetric(float64(fabrictest.CPU()-c0)/float64(b.N), "cpu-ns/op")
}

// BenchmarkBoundLatency is a message of 84 bytes, as long as a SEND of 64 in its
// segment, there and one back, with both ends spinning.
func BenchmarkBoundLatency(b *testing.B) {
	fds, err := tcpPair()
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	play := func(fd, rounds int, mine bool) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var buf [84]byte
		for i := 0; i < rounds; {
			if mine {
				_, _ = unix.Write(fd, buf[:])
			}
			mine = false
			if n, _ := unix.Read(fd, buf[:]); n > 0 {
				i++
				mine = true
			}
		}
		if mine {
			_, _ = unix.Write(fd, buf[:])
		}
	}
	done := make(chan struct{})
	b.ResetTimer()
	go func() { play(fds[1], b.N, false); close(done) }()
	play(fds[0], b.N, true)
	<-done
}

// tcpPair is a connection as two descriptors that do not block.
func tcpPair() (fds [2]int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fds, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return fds, err
	}
	s, err := l.Accept()
	if err != nil {
		return fds, err
	}
	for i, c := range []net.Conn{c, s} {
		if fds[i], err = detach(c.(*net.TCPConn)); err != nil {
			return fds, err
		}
		if err := (&Options{Congestion: CongestionAuto}).chooseCongestion(fds[i]); err != nil {
			return fds, err
		}
	}
	return fds, nil
}
