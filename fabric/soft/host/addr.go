package host

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Addr is an address of a network interface.
type Addr struct {
	// IP has a zone when it is link-local.
	IP    netip.Addr
	Iface string
	Index int // of the interface
	MTU   int // of the interface, in bytes
	Up    bool
	// First says that it is the interface's first address, IPv4 before IPv6:
	// the one that a device named after the interface has.
	First bool
}

// Plain is the address without zone.
func (a Addr) Plain() netip.Addr { return a.IP.WithZone("") }

// Name is the name of the device with the address: "iwarp-eth0" of the
// interface's first, "iwarp-eth0-192.0.2.7" of the others.
func (a Addr) Name(provider string) string {
	name := provider + "-" + a.Iface
	if !a.First {
		name += "-" + a.Plain().String()
	}
	return name
}

// Addrs are the addresses of all interfaces, of each IPv4 first.
func Addrs() (all []Addr, err error) {
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	for _, n := range ifaces {
		all = append(all, addrsOf(&n)...)
	}
	return all, nil
}

// addrsOf are the addresses of an interface; none when it has gone meanwhile.
func addrsOf(n *net.Interface) (list []Addr) {
	addrs, err := n.Addrs()
	if err != nil {
		return nil
	}
	var v6 []Addr
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		x := Addr{IP: prefix.Addr().Unmap(), Iface: n.Name, Index: n.Index, MTU: n.MTU, Up: n.Flags&net.FlagUp != 0}
		switch {
		case x.IP.Is4():
			list = append(list, x)
			continue
		case x.IP.IsLinkLocalUnicast():
			x.IP = x.IP.WithZone(n.Name)
		}
		v6 = append(v6, x)
	}
	if list = append(list, v6...); len(list) > 0 {
		list[0].First = true
	}
	return list
}

// Find is the entry of an address. Every address of 127.0.0.0/8 is on the
// loopback interface, listed or not; a link-local one without zone is the first
// that fits.
func Find(list []Addr, ip netip.Addr) (Addr, bool) {
	ip = ip.Unmap()
	for _, a := range list {
		if a.IP == ip || ip.Zone() == "" && a.Plain() == ip {
			return a, true
		}
	}
	if !ip.Is4() || !ip.IsLoopback() {
		return Addr{}, false
	}
	for _, a := range list {
		if a.IP.Is4() && a.IP.IsLoopback() {
			a.IP, a.First = ip, false
			return a, true
		}
	}
	return Addr{}, false
}

// FindName is the entry that a device's name means.
func FindName(list []Addr, provider, name string) (Addr, bool) {
	for _, a := range list {
		if a.Name(provider) == name {
			return a, true
		}
	}
	// A loopback address that is not listed.
	ip, err := netip.ParseAddr(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil {
		return Addr{}, false
	}
	a, ok := Find(list, ip)
	return a, ok && a.Name(provider) == name
}

// Source is the local address from which the system's routing reaches remote.
func Source(remote netip.Addr) (netip.Addr, error) {
	const discard = 9 // nothing is sent
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, discard)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
