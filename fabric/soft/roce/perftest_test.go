//go:build lab

package roce

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// perftest's programs exchange QP numbers and keys over TCP and connect their
// QPs themselves. The client writes and waits for an answer of the same size
// each time: keys first, barriers and results later, for all of which an echo
// will do.
const perftestKeys = 108 // bytes of a message with keys

// perftestPeer is the server's end.
type perftestPeer struct {
	*interopEnd
	tcp  net.Conn
	keys string
}

// perftestClient is what the client's keys say of its QP.
type perftestClient struct {
	qpn, psn uint32
}

// readKeys answers the client until it says its keys.
func (p *perftestPeer) readKeys() (c perftestClient, err error) {
	b := make([]byte, 4096)
	for n := 0; n != perftestKeys; { // before the keys: version, sizes, path MTU
		if n, err = p.tcp.Read(b); err == nil && n != perftestKeys {
			_, err = p.tcp.Write(b[:n])
		}
		if err != nil {
			return c, err
		}
	}
	b = b[:perftestKeys]
	var lid, reads, rkey uint32
	var va uint64
	if _, err := fmt.Sscanf(string(b), "%x:%x:%x:%x:%x:%x:", &lid, &reads, &c.qpn, &c.psn, &rkey, &va); err != nil {
		return c, fmt.Errorf("keys %q: %w", b, err)
	}
	return c, nil
}

// perftestPSN is where our sequence numbers begin.
const perftestPSN = 0x123456

// writeKeys says ours.
func (p *perftestPeer) writeKeys(qpn uint32) error {
	gid := p.Dev.(*device).addr.As16()
	var hex []string
	for _, v := range gid {
		hex = append(hex, fmt.Sprintf("%02x", v))
	}
	p.keys = fmt.Sprintf("%04x:%04x:%06x:%06x:%08x:%016x:%s:%08x:", 0, 1, qpn, perftestPSN, p.MR.RKey(), p.Mem.Addr()+rpingData, strings.Join(hex, ":"), 0)
	p.keys += "\x00" // the size of the message counts it
	if len(p.keys) < perftestKeys {
		p.keys += strings.Repeat("\x00", perftestKeys-len(p.keys))
	}
	_, err := io.WriteString(p.tcp, p.keys[:perftestKeys])
	return err
}

// connect answers the client's keys and connects the QPs.
func (p *perftestPeer) connect(remote netip.Addr) error {
	client, err := p.readKeys()
	if err != nil {
		return err
	}
	d := p.Dev.(*device)
	cfg := p.Config
	cfg.Setup = nil
	c, err := newConn(d, &cfg)
	if err != nil {
		return err
	}
	c.Remote = netip.AddrPortFrom(remote, 0)
	c.recvPSN = psn.New(client.psn)
	err = c.start(rc.Config{
		MTU: d.mtu().Bytes(), DestQPN: client.qpn, SendPSN: perftestPSN, ORD: 1, IRD: maxReads, RetryCount: 7, RNRRetry: 7, AckTimeout: wire.AckTimeout(17),
	})
	if err != nil {
		return err
	}
	p.Conn, p.QP = c, c.qp
	return p.writeKeys(c.qp.Num())
}

// echo answers until the client closes.
func (p *perftestPeer) echo() error {
	b := make([]byte, 4096)
	for {
		n, err := p.tcp.Read(b)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET): // it closes with our last answer unread
			return nil
		case err != nil:
			return err
		case n == perftestKeys:
			_, err = io.WriteString(p.tcp, p.keys[:perftestKeys])
		default:
			_, err = p.tcp.Write(b[:n])
		}
		if err != nil {
			return nil //nolint:nilerr // the client has closed behind its last message
		}
	}
}

// serve polls until the client has closed, with receives of size bytes posted.
func (p *perftestPeer) serve(size int, done <-chan error) (received int, err error) {
	post := func(n int) {
		sge := []fabric.SGE{p.SGE(rpingData, size)}
		for range n {
			_, _ = p.QP.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, sge)
		}
	}
	post(60)
	for {
		select {
		case err := <-done:
			return received, err
		default:
		}
		n, err := p.CQ.Poll(p.WC)
		if err != nil {
			return received, err
		}
		for _, c := range p.WC[:n] {
			if c.Status != fabric.StatusSuccess {
				return received, fmt.Errorf("%v: %v", c.Op, c.Status)
			}
			received++
		}
		post(n)
		if n == 0 {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// perftest's clients on the kernel's rxe against a responder of ours.
func TestInteropPerftest(t *testing.T) {
	const iterations = 200
	for _, c := range []struct {
		tool string
		size int
		args []string
	}{
		{"ib_send_bw", 64, nil}, {"ib_send_bw", 65536, nil}, {"ib_write_bw", 4096, nil}, {"ib_write_bw", 65536, nil},
		{"ib_read_bw", 4096, nil}, {"ib_read_bw", 65536, nil},
		{"ib_atomic_bw", 8, []string{"-A", "FETCH_AND_ADD"}}, {"ib_atomic_bw", 8, []string{"-A", "CMP_AND_SWAP"}},
	} {
		t.Run(fmt.Sprintf("%s/%d/%s", c.tool, c.size, strings.Join(c.args, "")), func(t *testing.T) {
			l, err := net.Listen("tcp", ourAddrs[0]+":18515")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p := &perftestPeer{interopEnd: newInteropEnd(t, newProvider(t, Options{Port: Port}), ourAddrs[0])}
			args := append([]string{"-d", "rxe0", "-F", "-n", fmt.Sprint(iterations)}, c.args...)
			if c.tool != "ib_atomic_bw" {
				args = append(args, "-s", fmt.Sprint(c.size))
			}
			wait := onKernel(t, c.tool, append(args, ourAddrs[0])...)
			if p.tcp, err = l.Accept(); err != nil {
				t.Fatal(err)
			}
			defer p.tcp.Close()
			if err := p.connect(netip.MustParseAddr(kernelAddrs[0])); err != nil {
				t.Fatalf("%v\n%.3000s", err, wait())
			}
			done := make(chan error, 1)
			go func() { done <- p.echo() }()
			received, err := p.serve(c.size, done)
			if err != nil {
				t.Errorf("%v; %v", err, stats(p.End))
			}
			if c.tool == "ib_send_bw" && received < iterations {
				t.Errorf("%d of %d messages received", received, iterations)
			}
			out := wait()
			if !regexp.MustCompile(fmt.Sprintf(`(?m)^ %d +%d +\d`, c.size, iterations)).MatchString(out) {
				t.Errorf("no result:\n%.3000s", out)
			}
			t.Logf("%v", stats(p.End))
		})
	}
}
