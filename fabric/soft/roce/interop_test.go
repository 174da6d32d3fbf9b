//go:build lab

package roce

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// These tests run in the lab's guest, in the network namespace "peer", and talk
// to programs of rdma-core in the first namespace, on the kernel's rxe:
//
//	go test -tags lab -exec "$PWD/lab/run exec -- ip netns exec peer" -run Interop ./fabric/soft/roce

// kernelAddrs and ourAddrs are the two ends of the lab's veth pair.
var (
	kernelAddrs = []string{"10.9.0.1", "fd09::1"}
	ourAddrs    = []string{"10.9.0.2", "fd09::2"}
)

// onKernel runs a command in the first network namespace.
func onKernel(t *testing.T, name string, args ...string) (wait func() string) {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=/proc/1/ns/net", "timeout", "40", name}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() string {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out.String())
		}
		return out.String()
	}
}

// interopEnd is an end of ours with a connection in the lab.
type interopEnd struct {
	*fabrictest.End
	done map[fabric.Opcode]int // completions not waited for yet
}

func newInteropEnd(t *testing.T, p *Provider, addr string) *interopEnd {
	a := netip.MustParseAddr(addr)
	cfg := fabric.ConnConfig{SendDepth: 64, RecvDepth: 64, ORD: 16, IRD: 16, RetryCount: 7, RNRRetry: 7}
	e := &interopEnd{End: fabrictest.NewEnd(t, p, a, a, endMemory, cfg), done: make(map[fabric.Opcode]int)}
	e.Config.Setup = func(qp fabric.QueuePair) error {
		e.QP = qp
		return e.postRecv()
	}
	return e
}

// The messages of rping lie at the beginning of the memory, the data at 1 MiB.
const rpingMessage, rpingData = 16, 1 << 20

func (e *interopEnd) postRecv() error {
	_, err := e.QP.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{e.SGE(0, rpingMessage)})
	return err
}

// await polls until there is a completion of that operation.
func (e *interopEnd) await(op fabric.Opcode) error {
	for end := time.Now().Add(20 * time.Second); e.done[op] == 0; {
		n, err := e.CQ.Poll(e.WC)
		if err != nil {
			return err
		}
		for _, c := range e.WC[:n] {
			if c.Status != fabric.StatusSuccess {
				return fmt.Errorf("%v: %v", c.Op, c.Status)
			}
			e.done[c.Op]++
		}
		if n == 0 {
			time.Sleep(10 * time.Microsecond)
		}
		if time.Now().After(end) {
			return fmt.Errorf("no completion of %v", op)
		}
	}
	e.done[op]--
	return nil
}

// rpingInfo is what rping tells its peer: where to read from or write to.
type rpingInfo struct {
	Addr uint64
	Key  uint32
	Size uint32
}

func (e *interopEnd) send(i rpingInfo) error {
	b := e.Mem.Bytes()[4096 : 4096+rpingMessage]
	if _, err := binary.Encode(b, binary.BigEndian, i); err != nil {
		return err
	}
	sge := []fabric.SGE{e.SGE(4096, rpingMessage)}
	if _, err := e.QP.PostSend([]fabric.SendWR{{Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}}, sge); err != nil {
		return err
	}
	return e.await(fabric.OpSend)
}

// receive waits for a message and posts the next receive.
func (e *interopEnd) receive() (i rpingInfo, err error) {
	if err = e.await(fabric.OpRecv); err == nil {
		_, err = binary.Decode(e.Mem.Bytes()[:rpingMessage], binary.BigEndian, &i)
		if perr := e.postRecv(); perr != nil {
			return i, perr
		}
	}
	return i, err
}

// move reads or writes the data.
func (e *interopEnd) move(op fabric.Opcode, i rpingInfo, n uint32) error {
	sge := []fabric.SGE{e.SGE(rpingData, int(n))}
	wr := []fabric.SendWR{{Op: op, NumSGE: 1, RemoteAddr: i.Addr, RKey: i.Key, Flags: fabric.FlagSignaled}}
	if _, err := e.QP.PostSend(wr, sge); err != nil {
		return err
	}
	return e.await(op)
}

// rpingServe is rping's server: it reads the client's data and writes it back.
func (e *interopEnd) rpingServe(rounds int) error {
	for r := range rounds {
		source, err := e.receive()
		if err != nil {
			return fmt.Errorf("round %d: source: %w", r, err)
		}
		if err := e.move(fabric.OpRead, source, source.Size); err != nil {
			return fmt.Errorf("round %d: %w", r, err)
		}
		if err := e.send(rpingInfo{}); err != nil {
			return fmt.Errorf("round %d: %w", r, err)
		}
		sink, err := e.receive()
		if err != nil {
			return fmt.Errorf("round %d: sink: %w", r, err)
		}
		if err := e.move(fabric.OpWrite, sink, source.Size); err != nil {
			return fmt.Errorf("round %d: %w", r, err)
		}
		if err := e.send(rpingInfo{}); err != nil && r < rounds-1 { // the client may be gone before its last ACK has arrived
			return fmt.Errorf("round %d: %w", r, err)
		}
	}
	return nil
}

// settle polls until the peer has disconnected.
func (e *interopEnd) settle() {
	for end := time.Now().Add(10 * time.Second); e.Conn.Err() == nil && time.Now().Before(end); {
		_, _ = e.CQ.Poll(e.WC)
		time.Sleep(time.Millisecond)
	}
}

// rpingClient runs rping's client on the kernel's rxe against a server of ours.
func rpingClient(t *testing.T, i, size, rounds int) {
	t.Helper()
	addr := ourAddrs[i]
	p := newProvider(t, Options{Port: Port})
	e := newInteropEnd(t, p, addr)
	l, err := p.Listen(context.Background(), netip.AddrPortFrom(netip.MustParseAddr(addr), 7174), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wait := onKernel(t, "rping", "-c", "-a", addr, "-p", "7174", "-C", fmt.Sprint(rounds), "-S", fmt.Sprint(size), "-v", "-V")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r.RemoteAddr().Addr().String() != kernelAddrs[i] {
		t.Errorf("request from %v", r.RemoteAddr())
	}
	if e.Conn, err = r.Accept(ctx, e.Config); err != nil {
		t.Fatal(err)
	}
	if err := e.rpingServe(rounds); err != nil {
		t.Errorf("%v; %v", err, stats(e.End))
	}
	e.settle()
	out := wait()
	if n := strings.Count(out, "ping data: "); n != rounds {
		t.Errorf("rping printed %d rounds:\n%.2000s", n, out)
	}
	t.Logf("path MTU %d, %v", e.QP.(*queuePair).Config().MTU, stats(e.End))
}

// SEND, READ and WRITE, verified by rping.
func TestInteropRpingClient(t *testing.T) {
	for i, addr := range ourAddrs {
		for _, size := range []int{64, 5000, 65000} {
			t.Run(fmt.Sprintf("%s/%d", addr, size), func(t *testing.T) { rpingClient(t, i, size, 20) })
		}
	}
}

// The same when both directions lose, repeat and reorder packets.
func TestInteropLoss(t *testing.T) {
	for _, netem := range []string{"loss 1%", "loss 5%", "loss 20%", "delay 2ms 1ms reorder 20%", "duplicate 10%", "corrupt 2%"} {
		t.Run(netem, func(t *testing.T) {
			for _, ns := range [][]string{nil, {"nsenter", "--net=/proc/1/ns/net"}} {
				tc := func(words ...string) error {
					words = append(append(ns[:len(ns):len(ns)], "tc", "qdisc"), words...)
					return exec.Command(words[0], words[1:]...).Run()
				}
				if err := tc(append([]string{"add", "dev", "eth0", "root", "netem"}, strings.Fields(netem)...)...); err != nil {
					t.Fatal(err)
				}
				defer tc("del", "dev", "eth0", "root")
			}
			rpingClient(t, 0, 20000, 6)
		})
	}
}

// dial connects as soon as somebody listens.
func (e *interopEnd) dial(ctx context.Context, to netip.AddrPort) {
	e.Helper()
	for {
		conn, err := e.Dev.Dial(ctx, netip.AddrPort{}, to, e.Config)
		var r *fabric.RejectError
		switch {
		case err == nil:
			e.Conn = conn
			return
		case !errors.As(err, &r) || r.Reason != fabric.RejectBadServiceID:
			e.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// A client of ours against rping's server.
func TestInteropRpingServer(t *testing.T) {
	for i, addr := range kernelAddrs {
		t.Run(addr, func(t *testing.T) {
			const rounds, size = 20, 5000
			wait := onKernel(t, "rping", "-s", "-a", addr, "-p", "7175", "-C", fmt.Sprint(rounds), "-S", fmt.Sprint(size))
			e := newInteropEnd(t, newProvider(t, Options{Port: Port}), ourAddrs[i])
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			e.dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(addr), 7175))
			data := e.Mem.Bytes()[rpingData : rpingData+size]
			here := rpingInfo{e.Mem.Addr() + rpingData, e.MR.RKey(), size}
			there := rpingInfo{e.Mem.Addr() + 2*rpingData, e.MR.RKey(), size}
			for r := range rounds {
				for k := range data { // rping writes a string back
					data[k] = 'A' + byte((k+r)%50)
				}
				data[size-1] = 0
				for _, info := range []rpingInfo{here, there} {
					if err := e.send(info); err != nil {
						t.Fatalf("round %d: %v", r, err)
					}
					if _, err := e.receive(); err != nil {
						t.Fatalf("round %d: %v", r, err)
					}
				}
				if got := e.Mem.Bytes()[2*rpingData : 2*rpingData+size]; !bytes.Equal(got, data) {
					t.Fatalf("round %d: the data that came back differ", r)
				}
			}
			e.Conn.Disconnect()
			wait()
		})
	}
}
