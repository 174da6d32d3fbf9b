package roce

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// watcher follows the host's interfaces as long as the provider has a device
// open: devices say when their port or address goes and comes, and listeners
// on a wildcard take requests on new addresses.
type watcher struct {
	p    *Provider
	file *os.File
	done chan struct{}
}

// settle is how long changes are collected: one `ip` command makes several.
const settle = 20 * time.Millisecond

// newWatcher subscribes to the kernel's messages about links and addresses.
func newWatcher(p *Provider) (*watcher, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	w := &watcher{p: p, file: os.NewFile(uintptr(fd), "roce interface watcher"), done: make(chan struct{})}
	raw, err := w.file.SyscallConn()
	if err != nil {
		w.file.Close()
		return nil, err
	}
	go w.routineWatch(raw)
	return w, nil
}

// routineWatch runs until close.
func (w *watcher) routineWatch(raw syscall.RawConn) {
	defer close(w.done)
	for {
		changed := false
		err := raw.Read(func(fd uintptr) bool {
			changed = drainMessages(int(fd))
			return changed // else park until there is one
		})
		if err != nil {
			return
		}
		time.Sleep(settle)
		_ = raw.Control(func(fd uintptr) { drainMessages(int(fd)) })
		w.p.rescan()
	}
}

// drainMessages takes all messages. What they say is looked up afresh, so that
// one that is lost does no harm.
func drainMessages(fd int) (any bool) {
	var b [8192]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT)
		if n <= 0 && err != unix.ENOBUFS {
			return any
		}
		any = true
	}
}

func (w *watcher) close() {
	w.file.Close()
	<-w.done
}

// rescan holds the open devices against the interfaces as they are now.
func (p *Provider) rescan() {
	list, err := interfaces()
	if err != nil {
		return
	}
	p.mu.Lock()
	var devices []*device
	for _, d := range p.devices {
		devices = append(devices, d)
	}
	p.mu.Unlock()
	for _, d := range devices {
		i, ok := lookup(list, d.addr)
		d.follow(ok, ok && i.up)
	}
	p.extendListeners(list)
}

// follow emits what has changed of the device's address and port.
func (d *device) follow(present, up bool) {
	d.mu.Lock()
	was, wasUp := d.present, d.up
	d.present, d.up = present, up
	d.mu.Unlock()
	if present != was {
		d.Emit(fabric.Event{Kind: fabric.EventAddrChange, Port: 1, Time: time.Now()})
	}
	switch {
	case up && !wasUp:
		d.Emit(fabric.Event{Kind: fabric.EventPortUp, Port: 1, Time: time.Now()})
	case !up && wasUp:
		d.Emit(fabric.Event{Kind: fabric.EventPortDown, Port: 1, Time: time.Now()})
	}
}

// extendListeners opens new addresses for the listeners on a wildcard. An
// address that cannot be had stays out: it was not there when they were made.
func (p *Provider) extendListeners(list []iface) {
	p.mu.Lock()
	var wild []*listener
	for l := range p.listeners {
		if l.addr.Addr().IsUnspecified() {
			wild = append(wild, l)
		}
	}
	p.mu.Unlock()
	for _, l := range wild {
		for _, i := range list {
			if l.covers(i.addr.WithZone("")) && !l.has(i.addr.WithZone("")) {
				if d, err := p.open(i); err == nil && !l.add(d) {
					d.Release()
				}
			}
		}
	}
}
