package roce

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// BenchmarkBandwidth keeps 32 operations of one size outstanding.
func BenchmarkBandwidth(b *testing.B) {
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead, fabric.OpSend} {
		for _, size := range []int{64, 4096, 131072} {
			b.Run(fmt.Sprintf("%v/size=%d", op, size), func(b *testing.B) { benchBandwidth(b, op, size, 32) })
		}
	}
}

// BenchmarkShare is a bandwidth and BenchmarkBound in turns, with 128 operations
// outstanding, as many as perftest takes.
func BenchmarkShare(b *testing.B) {
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead, fabric.OpSend} {
		for _, size := range []int{4096, 131072} {
			b.Run(fmt.Sprintf("%v/size=%d", op, size), func(b *testing.B) {
				s, _, _ := newStream(b, op, size, 128)
				defer s.Close()
				fabrictest.Share(b, newBound(b).run, func(n int) int64 { s.Run(n); return int64(n) * int64(size) })
			})
		}
	}
}

// newStream is a stream over a connection of its own.
func newStream(b testing.TB, op fabric.Opcode, size, depth int) (s *fabrictest.Stream, x, y *fabrictest.End) {
	x, y = rcPair(b, Options{}, nil)
	return fabrictest.NewStream(x, y, op, size, depth), x, y
}

func benchBandwidth(b *testing.B, op fabric.Opcode, size, depth int) {
	s, x, y := newStream(b, op, size, depth)
	b.SetBytes(int64(size))
	b.ResetTimer()
	c0 := fabrictest.CPU()
	s.Run(b.N)
	b.StopTimer()
	used := fabrictest.CPU() - c0
	s.Close() // nobody polls any more: report reads what the engines count
	report(b, used, x, y)
}

// report adds processor time, system calls and losses a message.
func report(b *testing.B, used time.Duration, ends ...*fabrictest.End) {
	b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	var sends, lost uint64
	for _, e := range ends {
		en := engineOf(e)
		sends += en.tx.calls
		lost += en.stats.Resent + en.stats.ReadGaps + en.stats.Timeouts
	}
	b.ReportMetric(float64(sends)/float64(b.N), "sendmmsg/op")
	b.ReportMetric(float64(lost)/float64(b.N), "resent/op")
}

// BenchmarkLatency is the time from a post to the completion of the answer: of
// a WRITE the acknowledgement, of a SEND a SEND back.
func BenchmarkLatency(b *testing.B) {
	b.Run("WRITE/size=64", func(b *testing.B) { benchBandwidth(b, fabric.OpWrite, 64, 1) })
	b.Run("READ/size=4096", func(b *testing.B) { benchBandwidth(b, fabric.OpRead, 4096, 1) })
	b.Run("SEND/size=64", benchPingPong)
}

func benchPingPong(b *testing.B) {
	x, y := rcPair(b, Options{}, nil)
	play := func(e *fabrictest.End, rounds int, first bool) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		sge := []fabric.SGE{e.SGE(0, 64)}
		recv := []fabric.RecvWR{{NumSGE: 1}}
		send := []fabric.SendWR{{Op: fabric.OpSend, NumSGE: 1}}
		signaled := []fabric.SendWR{{Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}}
		_, _ = e.QP.PostRecv(recv, sge)
		mine := first
		for got := 0; got < rounds || mine; {
			if mine {
				wr := send
				if got%64 == 0 {
					wr = signaled
				}
				if _, err := e.QP.PostSend(wr, sge); err != nil {
					b.Error(err)
					return
				}
				mine = false
			}
			for _, c := range e.Poll() {
				if c.Op == fabric.OpRecv {
					got++
					mine = !first || got < rounds
					_, _ = e.QP.PostRecv(recv, sge)
				}
			}
		}
		for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
			e.Poll()
		}
	}
	done := make(chan struct{})
	b.ResetTimer()
	c0 := fabrictest.CPU()
	go func() { play(y, b.N, false); close(done) }()
	play(x, b.N, true)
	<-done
	b.StopTimer()
	report(b, fabrictest.CPU()-c0, x, y)
}

// bound is the plain use of the sockets: datagrams of 15 packets of 4 KiB and
// the headers of a WRITE, gathered, sent and received with offloads.
type bound struct {
	tx   int
	rx   receiver
	mem  *fabric.Memory
	off  int
	ms   [4]message
	ctl  [4][64]byte
	iovs []unix.Iovec
	head [32]byte
	to   rawAddr
}

const (
	boundPacket = 4096 + 32
	boundMsg    = 15 // packets of a datagram
)

func newBound(b *testing.B) *bound {
	x := &bound{iovs: make([]unix.Iovec, 0, 4*2*boundMsg), to: newRawAddr(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.5"), testPort), 0)}
	take := func(addr string) pair {
		o := Options{Port: testPort}
		if err := o.setDefaults(); err != nil {
			b.Fatal(err)
		}
		s, err := openSockets(netip.MustParseAddr(addr), 0, &o)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(s.close)
		_, p, err := s.take()
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	x.tx = take("127.0.0.4").tx
	if err := x.rx.init(take("127.0.0.5").rx, netip.AddrPort{}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(x.rx.close)
	x.head[6], x.head[7] = 2, 1 // QP 513, which is of the receiving socket
	var err error
	if x.mem, err = fabric.AllocMemory(4 << 20); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { x.mem.Close() })
	for i := 0; i < x.mem.Len(); i += 4096 {
		x.mem.Bytes()[i] = byte(i >> 12)
	}
	return x
}

// send sends a batch of datagrams and returns the number of packets.
func (x *bound) send() int {
	x.iovs = x.iovs[:0]
	for i := range x.ms {
		first := len(x.iovs)
		for range boundMsg {
			if x.off += 4096; x.off+4096 > x.mem.Len() {
				x.off = 0
			}
			x.iovs = append(x.iovs, unix.Iovec{Base: &x.head[0], Len: uint64(len(x.head))}, unix.Iovec{Base: &x.mem.Bytes()[x.off], Len: 4096})
		}
		x.ms[i].hdr = unix.Msghdr{Name: &x.to.b[0], Namelen: x.to.n, Iov: &x.iovs[first], Iovlen: 2 * boundMsg,
			Control: &x.ctl[i][0], Controllen: uint64(putCmsg(x.ctl[i][:], solUDP, udpSegment, boundPacket, 2))}
	}
	n, e := sendMessages(x.tx, x.ms[:])
	if e != 0 {
		panic(e)
	}
	return n * boundMsg
}

// receive takes what is there and returns the number of packets.
func (x *bound) receive() (packets int) {
	for i := range x.rx.receive() {
		_, p, _ := x.rx.datagram(i)
		packets += len(p) / boundPacket
	}
	return packets
}

// run sends n batches with a thread at each end that does nothing else, and
// returns the bytes of payload when they have come.
func (x *bound) run(n int) int64 {
	var received atomic.Int64
	total := int64(n * boundMsg * len(x.ms))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for idle := 0; received.Load() < total; idle++ {
			if n := x.receive(); n > 0 {
				received.Add(int64(n))
				idle = 0
			} else if idle > 100 {
				fds := []unix.PollFd{{Fd: int32(x.rx.fd), Events: unix.POLLIN}}
				_, _ = unix.Poll(fds, 10)
			}
		}
	}()
	for sent, quiet := int64(0), 0; sent < total; {
		if sent-received.Load() > 1024 {
			runtime.Gosched()
			if quiet++; quiet > 1e6 {
				received.Store(sent) // they were lost
			}
			continue
		}
		quiet = 0
		sent += int64(x.send())
	}
	<-done
	return total * 4096
}

// BenchmarkBound is what the sockets can do at best. One operation is a batch of
// 60 packets of 4 KiB.
func BenchmarkBound(b *testing.B) {
	x := newBound(b)
	b.SetBytes(boundMsg * int64(len(x.ms)) * 4096)
	b.ResetTimer()
	c0 := fabrictest.CPU()
	x.run(b.N)
	b.StopTimer()
	b.ReportMetric(float64(fabrictest.CPU()-c0)/float64(b.N), "cpu-ns/op")
}

// benchBoundCost is BenchmarkBound on one thread.
func benchBoundCost(b *testing.B) {
	x := newBound(b)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.SetBytes(4096)
	b.ResetTimer()
	c0 := threadCPU()
	var best [2][]time.Duration
	for n := 0; n < b.N; {
		s := time.Now()
		k := x.send()
		s2 := time.Now()
		for x.receive() > 0 {
		}
		best[0], best[1] = append(best[0], s2.Sub(s)/time.Duration(k)), append(best[1], time.Since(s2)/time.Duration(k))
		n += k
	}
	b.StopTimer()
	b.ReportMetric(float64(threadCPU()-c0)/float64(b.N), "cpu-ns/op")
	for i, name := range []string{"x-ns/op", "y-ns/op"} {
		slices.Sort(best[i])
		b.ReportMetric(float64(best[i][len(best[i])/4]), name)
	}
}

// BenchmarkCost runs both ends on one thread, so that its processor time is what
// a message costs at both ends together, however busy the machine is.
func BenchmarkCost(b *testing.B) {
	for _, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead} {
		for _, size := range []int{64, 4096, 131072} {
			b.Run(fmt.Sprintf("%v/size=%d", op, size), func(b *testing.B) { benchCost(b, op, size, 32) })
		}
	}
	b.Run("bound/size=4096", benchBoundCost)
}

func threadCPU() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func benchCost(b *testing.B, op fabric.Opcode, size, depth int) {
	x, y := rcPair(b, Options{}, nil)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	wrs := make([]fabric.SendWR, depth)
	sges := make([]fabric.SGE, depth)
	off := 0
	var best [2][]time.Duration // time of each end for a round
	b.SetBytes(int64(size))
	b.ResetTimer()
	c0 := threadCPU()
	for done := 0; done < b.N; done += depth {
		var spent [2]time.Duration
		s := time.Now()
		for i := range wrs {
			if off += size; off+size > depth*size {
				off = 0
			}
			sges[i] = x.SGE(off, size)
			wrs[i] = fabric.SendWR{Op: op, NumSGE: 1, FirstSGE: uint32(i), Flags: fabric.FlagSignaled, RemoteAddr: y.Mem.Addr() + uint64(off), RKey: y.MR.RKey()}
		}
		if _, err := x.QP.PostSend(wrs, sges); err != nil {
			b.Fatal(err)
		}
		for got := 0; got < depth; {
			got += len(x.Poll())
			s2 := time.Now()
			y.Poll()
			s3 := time.Now()
			spent[0], spent[1], s = spent[0]+s2.Sub(s), spent[1]+s3.Sub(s2), s3
		}
		for i := range best {
			best[i] = append(best[i], spent[i])
		}
	}
	b.StopTimer()
	report(b, threadCPU()-c0, x, y)
	for i, name := range []string{"x-ns/op", "y-ns/op"} { // the quarter that nobody disturbed
		slices.Sort(best[i])
		b.ReportMetric(float64(best[i][len(best[i])/4])/float64(depth), name)
	}
}
