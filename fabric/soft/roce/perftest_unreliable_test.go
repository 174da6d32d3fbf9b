//go:build lab

package roce

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// perftestQKey is the Q_Key of perftest's datagrams.
const perftestQKey = 0x11111111

// unreliablePeer is the server's end of a test without acknowledgements.
type unreliablePeer struct {
	*perftestPeer
	ud     fabric.DatagramQP
	handle fabric.AddressHandle
	client perftestClient
	size   int
	sent   int
	got    int
	header []byte // in front of the last datagram
}

// connectUnreliable makes the QP and connects it to the client's.
func (p *unreliablePeer) connectUnreliable(service string, remote netip.Addr, depth int) error {
	var err error
	if p.client, err = p.readKeys(); err != nil {
		return err
	}
	cfg := fabric.UnreliableConfig{SendCQ: p.CQ, RecvCQ: p.CQ, SendDepth: 64, RecvDepth: depth}
	if service == "UD" {
		if p.ud, err = p.Dev.(fabric.DatagramDevice).NewDatagramQP(cfg, perftestQKey); err != nil {
			return err
		}
		p.Cleanup(func() { p.ud.Close() })
		p.QP = p.ud
		if p.handle, err = p.Dev.(fabric.DatagramDevice).NewAddressHandle(remote, 0); err != nil {
			return err
		}
		p.Cleanup(func() { p.handle.Close() })
		return p.ready(depth)
	}
	qp, err := p.Dev.(fabric.UnreliableConnector).NewUnreliableQP(cfg)
	if err != nil {
		return err
	}
	p.Cleanup(func() { qp.Close() })
	p.QP = qp
	if err := qp.Connect(fabric.UnreliablePeer{Addr: remote, QPN: p.client.qpn, SendPSN: perftestPSN, RecvPSN: p.client.psn}); err != nil {
		return err
	}
	return p.ready(depth)
}

// ready posts the receives and says the keys.
func (p *unreliablePeer) ready(depth int) error {
	sge := []fabric.SGE{p.SGE(rpingData, fabric.GRHLen+p.size)}
	for range depth {
		if _, err := p.QP.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, sge); err != nil {
			return err
		}
	}
	return p.writeKeys(p.QP.Num())
}

// send sends one message to the client.
func (p *unreliablePeer) send() error {
	p.sent++
	sge := []fabric.SGE{p.SGE(0, p.size)}
	if p.ud != nil {
		_, err := p.ud.PostDatagrams([]fabric.DatagramWR{{Handle: p.handle.Num(), QPN: p.client.qpn, QKey: perftestQKey, NumSGE: 1, Flags: fabric.FlagSignaled}}, sge)
		return err
	}
	_, err := p.QP.PostSend([]fabric.SendWR{{Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}}, sge)
	return err
}

// serve polls until the client has closed. Once the client has sent something it
// is sent as many messages as answers say.
func (p *unreliablePeer) serve(answers int, done <-chan error) error {
	for {
		select {
		case err := <-done:
			return err
		default:
		}
		n, err := p.CQ.Poll(p.WC)
		if err != nil {
			return err
		}
		for _, c := range p.WC[:n] {
			if c.Status != fabric.StatusSuccess {
				return fmt.Errorf("%v: %v", c.Op, c.Status)
			}
			if c.Op != fabric.OpRecv {
				continue
			}
			p.got++
			if c.Flags&fabric.CompletionGRH != 0 {
				if c.SrcQPN != p.client.qpn {
					return fmt.Errorf("a datagram from QP %d, the client's is %d", c.SrcQPN, p.client.qpn)
				}
				p.header = bytes.Clone(p.Mem.Bytes()[rpingData : rpingData+fabric.GRHLen])
			}
		}
		if p.got > 0 && p.sent < answers { // one for each Poll: the guest's processor is emulated
			if err := p.send(); err != nil {
				return err
			}
		}
		if n == 0 {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// perftest's clients on the kernel's rxe, over UC and UD, against an end of ours;
// with -b ours sends too, and the client counts.
func TestInteropPerftestUnreliable(t *testing.T) {
	const iterations = 200
	for _, c := range []struct {
		service, tool string
		size          int
		both          bool
	}{
		{"UD", "ib_send_bw", 64, false}, {"UD", "ib_send_bw", 1024, true},
		{"UC", "ib_send_bw", 64, false}, {"UC", "ib_send_bw", 5000, true},
		{"UC", "ib_write_bw", 4096, false}, {"UC", "ib_write_bw", 65536, false},
	} {
		t.Run(fmt.Sprintf("%s/%s/%d", c.service, c.tool, c.size), func(t *testing.T) {
			l, err := net.Listen("tcp", ourAddrs[0]+":18515")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p := &unreliablePeer{size: c.size, perftestPeer: &perftestPeer{interopEnd: newInteropEnd(t, newProvider(t, Options{Port: Port}), ourAddrs[0])}}
			untouched := bytes.Repeat([]byte{0xa5}, c.size)
			copy(p.Mem.Bytes()[rpingData:], untouched)
			args := []string{"-d", "rxe0", "-F", "-c", c.service, "-n", fmt.Sprint(iterations), "-s", fmt.Sprint(c.size)}
			answers := 0
			if c.both {
				args, answers = append(args, "-b"), iterations
			}
			wait := onKernel(t, c.tool, append(args, ourAddrs[0])...)
			if p.tcp, err = l.Accept(); err != nil {
				t.Fatal(err)
			}
			defer p.tcp.Close()
			if err := p.connectUnreliable(c.service, netip.MustParseAddr(kernelAddrs[0]), 2*iterations); err != nil {
				t.Fatalf("%v\n%.3000s", err, wait())
			}
			done := make(chan error, 1)
			go func() { done <- p.echo() }()
			if err := p.serve(answers, done); err != nil {
				t.Errorf("%v; received %d", err, p.got)
			}
			out := wait()
			if !regexp.MustCompile(fmt.Sprintf(`(?m)^ %d +%d +\d`, c.size, iterations)).MatchString(out) {
				t.Errorf("no result:\n%.3000s", out)
			}
			drops := p.QP.(fabric.DropCounter).Drops()
			t.Logf("received %d, sent %d, dropped %+v; header %x", p.got, p.sent, drops, p.header)
			if drops != (fabric.Drops{}) || c.tool == "ib_send_bw" && p.got < iterations {
				t.Error("not all messages were received")
			}
			if bytes.Equal(p.Mem.Bytes()[rpingData:rpingData+c.size], untouched) {
				t.Error("nothing was written")
			}
			if c.service == "UD" {
				src, dst, ok := fabric.ParseGRH(p.header)
				if !ok || src.String() != kernelAddrs[0] || dst.String() != ourAddrs[0] {
					t.Errorf("header %x: from %v to %v", p.header, src, dst)
				}
			}
			if strings.Contains(out, "Failed") {
				t.Errorf("%.3000s", out)
			}
		})
	}
}
