//go:build lab

package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// These tests run in the lab's guest, in the network namespace "peer", and talk
// to rping of rdma-core in the first namespace, on the kernel's siw:
//
//	go test -tags lab -exec "$PWD/lab/run exec -- ip netns exec peer" -run Interop ./fabric/soft/iwarp

// kernelAddrs and ourAddrs are the two ends of the wire.
var (
	kernelAddrs = []string{"10.9.2.1", "fd09:2::1"}
	ourAddrs    = []string{"10.9.2.2", "fd09:2::2"}
)

// The messages of rping lie at the beginning of the memory, the data behind.
const (
	rpingMessage = 16
	rpingOut     = 4096
	rpingData    = 1 << 20
	rpingPort    = "7174"
)

// shell runs a script in the first network namespace.
func shell(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command("nsenter", "--net=/proc/1/ns/net", "bash", "-ec", script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// wire makes siw0 and the pair of interfaces between the namespaces, once.
func wire(t *testing.T) {
	t.Helper()
	shell(t, fmt.Sprintf(`
		rdma link show siw0/1 >/dev/null 2>&1 && exit 0
		modprobe siw
		ip link add iw0 type veth peer name iw0 netns %[1]d
		ip addr add 10.9.2.1/24 dev iw0; ip -6 addr add fd09:2::1/64 dev iw0 nodad; ip link set iw0 up
		nsenter --net=/proc/%[1]d/ns/net bash -ec 'ip addr add 10.9.2.2/24 dev iw0; ip -6 addr add fd09:2::2/64 dev iw0 nodad; ip link set iw0 up'
		rdma link add siw0 type siw netdev iw0`, os.Getpid()))
}

// rping starts the kernel's side.
func rping(t *testing.T, args ...string) (wait func() string) {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=/proc/1/ns/net", "timeout", "60", "rping", "-p", rpingPort}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() string {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Errorf("rping %s: %v\n%s", strings.Join(args, " "), err, out.String())
		}
		return out.String()
	}
}

// rpingEnd is an end of ours that plays rping.
type rpingEnd struct {
	*testEnd
	done map[fabric.Opcode]int // completions not waited for yet
}

func newRpingEnd(t *testing.T, p *Provider, addr string) *rpingEnd {
	e := &rpingEnd{newEnd(t, p, netip.MustParseAddr(addr)), make(map[fabric.Opcode]int)}
	e.Config.Setup = func(qp fabric.QueuePair) error {
		e.QP = qp
		e.postRecv()
		return nil
	}
	return e
}

func (e *rpingEnd) postRecv() {
	_, err := e.QP.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{e.SGE(0, rpingMessage)})
	e.Must(err)
}

// await polls until there is a completion of that operation.
func (e *rpingEnd) await(op fabric.Opcode) {
	e.Helper()
	for end := time.Now().Add(20 * time.Second); e.done[op] == 0; {
		n, err := e.CQ.Poll(e.WC)
		e.Must(err)
		for _, c := range e.WC[:n] {
			if c.Status == fabric.StatusSuccess { // the peer may end right behind its last message
				e.done[c.Op]++
			}
		}
		if time.Now().After(end) {
			e.Fatalf("no completion of %v", op)
		}
	}
	e.done[op]--
}

// rpingInfo is what rping tells its peer: where to read from or write to.
type rpingInfo struct {
	Addr uint64
	Key  uint32
	Size uint32
}

func (e *rpingEnd) send(i rpingInfo) {
	e.Helper()
	_, err := binary.Encode(e.Mem.Bytes()[rpingOut:][:rpingMessage], binary.BigEndian, i)
	e.Must(err)
	e.post(fabric.SendWR{Op: fabric.OpSend}, rpingOut, rpingMessage)
}

func (e *rpingEnd) receive() (i rpingInfo) {
	e.Helper()
	e.await(fabric.OpRecv)
	_, err := binary.Decode(e.Mem.Bytes()[:rpingMessage], binary.BigEndian, &i)
	e.Must(err)
	e.postRecv()
	return i
}

// post posts a WR on n bytes at off and waits for it.
func (e *rpingEnd) post(wr fabric.SendWR, off int, n uint32) {
	e.Helper()
	wr.NumSGE, wr.Flags = 1, fabric.FlagSignaled
	_, err := e.QP.PostSend([]fabric.SendWR{wr}, []fabric.SGE{e.SGE(off, int(n))})
	e.Must(err)
	e.await(wr.Op)
}

// move reads or writes the peer's data.
func (e *rpingEnd) move(op fabric.Opcode, i rpingInfo) {
	e.Helper()
	e.post(fabric.SendWR{Op: op, RemoteAddr: i.Addr, RKey: i.Key}, rpingData, i.Size)
}

// modes are the ways of framing.
var modes = map[string]Options{"default": {}, "CRC": {CRC: CRCOn}, "long FPDUs": {MaxFPDU: 16 << 10}}

// The kernel's client, which verifies what a server of ours has read from it
// and written back.
func TestInteropRpingClient(t *testing.T) {
	wire(t)
	for i, addr := range ourAddrs {
		for mode, o := range modes {
			for _, size := range []uint32{64, 5000, 65000} {
				t.Run(fmt.Sprintf("%s/%s/%d", addr, mode, size), func(t *testing.T) { rpingServe(t, o, i, size) })
			}
		}
	}
}

func rpingServe(t *testing.T, o Options, i int, size uint32) {
	const rounds = 20
	p := newProvider(t, o)
	e := newRpingEnd(t, p, ourAddrs[i])
	l, err := p.Listen(context.Background(), netip.MustParseAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ourAddrs[i]), 7174).String()), fabric.ListenConfig{})
	e.Must(err)
	defer l.Close()
	wait := rping(t, "-c", "-a", ourAddrs[i], "-C", fmt.Sprint(rounds), "-S", fmt.Sprint(size), "-v", "-V")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := l.Accept(ctx)
	e.Must(err)
	if r.RemoteAddr().Addr().String() != kernelAddrs[i] {
		t.Errorf("request from %v", r.RemoteAddr())
	}
	e.Conn, err = r.Accept(ctx, e.Config)
	e.Must(err)
	for range rounds {
		source := e.receive()
		e.move(fabric.OpRead, source)
		e.send(rpingInfo{})
		sink := e.receive()
		sink.Size = source.Size
		e.move(fabric.OpWrite, sink)
		e.send(rpingInfo{})
	}
	until(t, "the client's disconnect", func() bool { return isDone(e.Conn) }, e.testEnd)
	if out := wait(); strings.Count(out, "ping data: ") != rounds {
		t.Errorf("rping printed:\n%.2000s", out)
	}
}

// A client of ours against rping's server, which READs and WRITEs our memory.
func TestInteropRpingServer(t *testing.T) {
	wire(t)
	for i, addr := range kernelAddrs {
		for mode, o := range modes {
			t.Run(addr+"/"+mode, func(t *testing.T) { rpingDial(t, o, i) })
		}
	}
}

func rpingDial(t *testing.T, o Options, i int) {
	const rounds, size = 20, 5000
	wait := rping(t, "-s", "-a", kernelAddrs[i], "-C", fmt.Sprint(rounds), "-S", fmt.Sprint(size))
	e := newRpingEnd(t, newProvider(t, o), ourAddrs[i])
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for e.Conn == nil { // it may not listen yet
		conn, err := e.Dev.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(kernelAddrs[i]), 7174), e.Config)
		var r *fabric.RejectError
		switch {
		case err == nil:
			e.Conn = conn
		case !errors.As(err, &r) || r.Reason != fabric.RejectBadServiceID:
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	data := e.Mem.Bytes()[rpingData : rpingData+size]
	here, there := rpingInfo{e.Mem.Addr() + rpingData, e.MR.RKey(), size}, rpingInfo{e.Mem.Addr() + 2*rpingData, e.MR.RKey(), size}
	for r := range rounds {
		for k := range data { // rping writes a string back
			data[k] = 'A' + byte((k+r)%50)
		}
		data[size-1] = 0
		for _, info := range []rpingInfo{here, there} {
			e.send(info)
			e.receive()
		}
		if got := e.Mem.Bytes()[2*rpingData : 2*rpingData+size]; !bytes.Equal(got, data) {
			t.Fatalf("round %d: the data that came back differ", r)
		}
	}
	e.Must(e.Conn.Disconnect())
	until(t, "our end", func() bool { return isDone(e.Conn) }, e.testEnd)
	e.Must(e.Conn.Close()) // nobody polls any more: the peer would not learn of the end
	wait()
}
