package host

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func list() []Addr {
	ip := netip.MustParseAddr
	return []Addr{
		{IP: ip("127.0.0.1"), Iface: "lo", First: true, Up: true},
		{IP: ip("::1"), Iface: "lo", Up: true},
		{IP: ip("192.0.2.1"), Iface: "eth0", First: true},
		{IP: ip("192.0.2.2"), Iface: "eth0"},
		{IP: ip("fe80::1%eth0"), Iface: "eth0"},
		{IP: ip("fe80::1%eth1"), Iface: "eth1", First: true},
	}
}

func TestFind(t *testing.T) {
	for addr, name := range map[string]string{
		"127.0.0.1": "x-lo", "::1": "x-lo-::1", "192.0.2.1": "x-eth0", "192.0.2.2": "x-eth0-192.0.2.2", "::ffff:192.0.2.2": "x-eth0-192.0.2.2",
		"127.3.2.1": "x-lo-127.3.2.1", "fe80::1": "x-eth0-fe80::1", "fe80::1%eth1": "x-eth1",
	} {
		ip := netip.MustParseAddr(addr)
		a, ok := Find(list(), ip)
		if !ok || a.Name("x") != name || a.Plain() != ip.Unmap().WithZone("") {
			t.Errorf("%s: %v, %+v", addr, ok, a)
		}
		if b, ok := FindName(list(), "x", name); !ok || b != a {
			t.Errorf("name %s: %v, %+v", name, ok, b)
		}
	}
	for _, addr := range []string{"192.0.2.3", "::2", "fe80::1%eth2", "128.0.0.1"} {
		if a, ok := Find(list(), netip.MustParseAddr(addr)); ok {
			t.Errorf("%s: %+v", addr, a)
		}
	}
	for _, name := range []string{"", "x", "x-", "x-eth2", "x-eth0-192.0.2.1", "y-eth0", "x-eth0-127.0.0.9", "x-lo-127.0.0.1"} {
		if a, ok := FindName(list(), "x", name); ok {
			t.Errorf("name %q: %+v", name, a)
		}
	}
}

func TestAddrs(t *testing.T) {
	all, err := Addrs()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, a := range all {
		if n := a.Name("x"); names[n] {
			t.Errorf("two addresses have the name %s", n)
		} else {
			names[n] = true
		}
	}
	lo, ok := Find(all, netip.MustParseAddr("127.0.0.1"))
	if !ok || !lo.Up || lo.MTU == 0 || lo.Index == 0 {
		t.Errorf("loopback: %v, %+v", ok, lo)
	}
	if src, err := Source(netip.MustParseAddr("127.9.9.9")); err != nil || src != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("source to loopback: %v, %v", src, err)
	}
}

// waiterAndPipe makes a waiter and the two ends of a pipe that does not block.
func waiterAndPipe(t *testing.T) (w *Waiter, fds []int) {
	t.Helper()
	w, err := NewWaiter()
	if err != nil {
		t.Fatal(err)
	}
	fds = make([]int, 2)
	if err := unix.Pipe2(fds, unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		w.Close()
		t.Fatal(err)
	}
	return w, fds
}

// One event for one Watch, and none without.
func TestWaiter(t *testing.T) {
	w, fds := waiterAndPipe(t)
	defer w.Close()
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	woken := make(chan struct{}, 16)
	if err := w.Add(fds[0], func() { woken <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	put := func() {
		if _, err := unix.Write(fds[1], []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	wait := func(what string) {
		t.Helper()
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			t.Fatal(what)
		}
	}
	put() // nobody watches
	if err := w.Watch(fds[0], unix.EPOLLIN); err != nil {
		t.Fatal(err)
	}
	wait("not woken by what was there")
	put()
	put()
	if err := w.Watch(fds[0], unix.EPOLLIN); err != nil {
		t.Fatal(err)
	}
	wait("not woken a second time")
	time.Sleep(10 * time.Millisecond)
	if n := len(woken); n != 0 {
		t.Errorf("woken %d times too often", n)
	}
	w.Remove(fds[0])
	if err := w.Watch(fds[0], unix.EPOLLIN); err == nil {
		t.Error("a removed descriptor is watched")
	}
}

// What is kept is handled as often as it comes, and an error too; what is removed
// is not.
func TestWaiterKeep(t *testing.T) {
	w, fds := waiterAndPipe(t)
	defer w.Close()
	defer unix.Close(fds[1])
	got, broken := make(chan byte, 16), make(chan struct{}, 1)
	handle := func() {
		var b [1]byte
		if n, _ := unix.Read(fds[0], b[:]); n == 1 {
			got <- b[0]
		}
	}
	fail := func() {
		w.Remove(fds[1]) // else it is an event for ever
		broken <- struct{}{}
	}
	if err := errors.Join(w.Keep(fds[0], unix.EPOLLIN, handle), w.Keep(fds[1], 0, fail)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fds[1], []byte{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	for want := range byte(3) {
		select {
		case b := <-got:
			if b != want+1 {
				t.Errorf("byte %d is %d", want, b)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("not handled")
		}
	}
	w.Remove(fds[0])
	if len(broken) > 0 {
		t.Error("an error before there is one")
	}
	unix.Close(fds[0]) // nobody reads
	select {
	case <-broken:
	case <-time.After(10 * time.Second):
		t.Fatal("the error is not handled")
	}
	if err := w.Keep(fds[0], unix.EPOLLIN, handle); err == nil {
		t.Error("a closed descriptor is kept")
	}
}
