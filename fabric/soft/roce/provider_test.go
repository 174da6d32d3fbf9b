package roce

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// A second program that wants an address of this host on which another speaks
// RoCEv2 already is told so, and reaches it from an address of its own.
func TestSameAddress(t *testing.T) {
	list, err := interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if !i.up || i.addr.IsLinkLocalUnicast() {
			continue
		}
		t.Run(i.addr.String(), func(t *testing.T) {
			daemon, client := newProvider(t, Options{}), newProvider(t, Options{})
			y := newEnd(t, daemon, i.addr.String())
			if d, err := client.DeviceFor(context.Background(), i.addr, i.addr); !errors.Is(err, fabric.ErrAddrInUse) {
				t.Fatalf("the same address twice: %v, %v", d, err)
			} else if text := err.Error(); !strings.Contains(text, "another process holds UDP") && !strings.Contains(text, "rmmod rdma_rxe") {
				t.Errorf("the error does not say why: %s", text)
			}
			if len(besides(list, i.addr)) == 0 {
				t.Skip("the host has no other address of that family")
			}
			x := fabrictest.NewEnd(t, client, netip.Addr{}, i.addr, endMemory, endConfig)
			fabrictest.Connect(x, y)
			if x.Conn.LocalAddr().Addr() == i.addr {
				t.Errorf("dialled from %v", x.Conn.LocalAddr())
			}
			exchange(t, x, y, 20, rand.New(rand.NewPCG(1, 1)))
		})
	}
}

func TestDevices(t *testing.T) {
	p := newProvider(t, Options{MTU: 2048})
	list, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]fabric.DeviceInfo{}
	for _, i := range list {
		if _, again := byName[i.Name]; again {
			t.Errorf("two devices are called %s", i.Name)
		}
		byName[i.Name] = i
	}
	lo, ok := byName["roce-lo"]
	if !ok || lo.NetDev != "lo" || lo.MTU != 2048 || !lo.PortUp || lo.Addrs[0] != netip.MustParseAddr("127.0.0.1") || !strings.Contains(lo.Note, "offload") {
		t.Errorf("loopback: %+v", lo)
	}
	for _, name := range []string{"roce-lo-127.9.8.7", "roce-lo"} {
		d, err := p.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if d.Name() != name || d.Info().Name != name {
			t.Errorf("opened %s, got %s", name, d.Name())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "roce-", "roce-lo-10.0.0.1", "roce-eth0-127.0.0.9", "roce-lo-x"} {
		if d, err := p.Open(name); !errors.Is(err, fabric.ErrNoDevice) {
			t.Errorf("open %q: %v, %v", name, d, err)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{MTU: 1000}, {MTU: 8192}, {AckTimeout: 32}, {DSCP: 64}, {Window: -1}, {RecvBuffer: -1}} {
		if _, err := New(o); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Name() != "roce" || p.opts.Port != 4791 || p.opts.MTU != wire.MTU4096.Bytes() {
		t.Errorf("%+v", p.opts)
	}
}

// A port of its own keeps a pair apart from everybody on another.
func TestOtherPort(t *testing.T) {
	d := newEnd(t, newProvider(t, Options{}), "127.0.0.2")
	defer d.Close()
	x, y := rcPair(t, Options{Port: testPort + 1, MTU: 256, DSCP: 26, NoGSO: true, NoGRO: true}, nil)
	exchange(t, x, y, 30, rand.New(rand.NewPCG(5, 5)))
	if mtu := x.QP.(*queuePair).Config().MTU; mtu != 256 {
		t.Errorf("path MTU %d", mtu)
	}
}

// Nobody speaks RoCEv2 at the address: ICMP says so, and Dial need not wait.
func TestUnreachable(t *testing.T) {
	p := newProvider(t, Options{})
	x, y := newEnd(t, p, "127.0.0.2"), newEnd(t, p, "127.0.0.3")
	for range 3 {
		_, err := x.Dev.Dial(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.99:4420"), fabric.ConnConfig{SendCQ: x.CQ, RecvCQ: x.CQ})
		if !errors.Is(err, fabric.ErrUnreachable) {
			t.Errorf("%v", err)
		}
	}
	fabrictest.Connect(x, y) // the connection manager is well
	for _, remote := range []string{"[::1]:4420", "[fd00::1]:1"} {
		if _, err := x.Dev.Dial(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort(remote), fabric.ConnConfig{SendCQ: x.CQ, RecvCQ: x.CQ}); !errors.Is(err, fabric.ErrUnreachable) {
			t.Errorf("%s: %v", remote, err)
		}
	}
	if n := x.Dev.Counts().QPs; n != 1 {
		t.Errorf("%d QPs are left", n)
	}
}

func TestClosed(t *testing.T) {
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := p.Open("roce-lo"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("open: %v", err)
	}
	if _, err := p.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"), fabric.ListenConfig{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("listen: %v", err)
	}
}

// A device that is opened while its last reference is given back is there or
// is made anew: nobody is told that the address is taken.
func TestReopen(t *testing.T) {
	p := newProvider(t, Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				d, err := p.Open("roce-lo-127.0.0.7")
				if err != nil {
					t.Error(err)
					return
				}
				d.Close()
			}
		})
	}
	wg.Wait()
}

// The last reference to a device is a listener's, and completion queues are
// still open when that is closed: they can be used and closed.
func TestListenerOutlivesDevice(t *testing.T) {
	p := newProvider(t, Options{})
	x, y := rcPair(t, Options{}, nil)
	l, err := p.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.7:0"), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	d := l.(*listener).devices[0]
	cq, err := d.NewCompletionQueue(16, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.engines.For(cq.(*completionQueue), cq.(*completionQueue)); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var wc [1]fabric.Completion
	if _, err := cq.Poll(wc[:]); err != nil {
		t.Error(err)
	}
	if err := cq.Arm(); err != nil {
		t.Error(err)
	}
	if err := cq.Close(); err != nil {
		t.Error(err)
	}
	if d, err := p.Open("roce-lo-127.0.0.7"); err != nil {
		t.Error(err)
	} else {
		d.Close()
	}
	exchange(t, x, y, 5, rand.New(rand.NewPCG(1, 2))) // others notice nothing
}

// Link-local addresses need the interface to be said.
func TestLinkLocal(t *testing.T) {
	list, err := interfaces()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(i iface) bool { return i.up && i.addr.IsLinkLocalUnicast() && i.addr.Is6() })
	if i < 0 {
		t.Skip("the host has no link-local address")
	}
	p := newProvider(t, Options{})
	x, y := newEnd(t, p, list[i].addr.String()), newEnd(t, p, list[i].addr.String())
	fabrictest.Connect(x, y)
	exchange(t, x, y, 20, rand.New(rand.NewPCG(6, 6)))
}
