package roce

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// iface is an address of a network interface: what becomes a device.
type iface struct {
	addr  netip.Addr // with zone when link-local
	dev   string
	index int
	mtu   int // IP MTU in bytes
	up    bool
	first bool // the interface's first address: its device has the short name
}

const namePrefix = Name + "-"

// name is the device's name: that of the interface, with the address unless it
// is the interface's first.
func (i iface) name() string {
	if i.first {
		return namePrefix + i.dev
	}
	return namePrefix + i.dev + "-" + i.addr.WithZone("").String()
}

// interfaces lists the addresses of all interfaces, IPv4 first.
func interfaces() ([]iface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var list []iface
	for _, n := range all {
		addrs, err := n.Addrs()
		if err != nil {
			continue // it has gone meanwhile
		}
		var v4, v6 []iface
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			i := iface{addr: prefix.Addr().Unmap(), dev: n.Name, index: n.Index, mtu: n.MTU, up: n.Flags&net.FlagUp != 0}
			if i.addr.Is4() {
				v4 = append(v4, i)
				continue
			}
			if i.addr.IsLinkLocalUnicast() {
				i.addr = i.addr.WithZone(n.Name)
			}
			v6 = append(v6, i)
		}
		if v4 = append(v4, v6...); len(v4) > 0 {
			v4[0].first = true
		}
		list = append(list, v4...)
	}
	return list, nil
}

// lookup is the interface address a. Any address of 127.0.0.0/8 is on the
// loopback interface; a link-local one without a zone is the first that fits.
func lookup(list []iface, a netip.Addr) (iface, bool) {
	for _, i := range list {
		if i.addr == a || a.Zone() == "" && i.addr.WithZone("") == a {
			return i, true
		}
	}
	if a.Is4() && a.IsLoopback() {
		for _, i := range list {
			if i.addr.Is4() && i.addr.IsLoopback() {
				i.addr, i.first = a, false
				return i, true
			}
		}
	}
	return iface{}, false
}

// loopbackNamed is the loopback address that a device name is made of.
func loopbackNamed(list []iface, name string) (iface, bool) {
	text := name[strings.LastIndexByte(name, '-')+1:]
	a, err := netip.ParseAddr(text)
	if err != nil {
		return iface{}, false
	}
	i, ok := lookup(list, a)
	return i, ok && i.name() == name
}

// isLocal says whether a is an address of this host.
func isLocal(list []iface, a netip.Addr) bool {
	_, ok := lookup(list, a)
	return ok
}

// besides lists addresses from which a local address can be reached when its
// own is taken: any other of the host, and for IPv4 loopback addresses that
// are this process's own unless chance has it.
func besides(list []iface, a netip.Addr) (others []iface) {
	if a.Is4() {
		h := fnv.New32a()
		for try := range 16 {
			fmt.Fprintf(h, "%d %d", os.Getpid(), try)
			v := h.Sum32()
			own := netip.AddrFrom4([4]byte{127, byte(v>>16)%254 + 1, byte(v >> 8), byte(v)%253 + 1})
			if i, ok := lookup(list, own); ok {
				others = append(others, i)
			}
		}
		return others
	}
	for _, i := range list {
		if i.addr.Is6() && i.addr != a && i.up && !i.addr.IsLinkLocalUnicast() {
			others = append(others, i)
		}
	}
	return others
}

// routeTo is the source address that the system's routing chooses.
func routeTo(remote netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, Port)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// pathMTU is the largest path MTU on an interface of that IP MTU, in bytes; 0
// when there is none.
func (p *Provider) pathMTU(ipMTU int, v6 bool) int {
	return min(wire.MTUFor(ipMTU, v6).Bytes(), p.opts.MTU)
}

// describe is the device of an interface address.
func (p *Provider) describe(i iface) fabric.DeviceInfo {
	mtu := p.pathMTU(i.mtu, i.addr.Is6())
	note := "software RNIC"
	switch {
	case mtu == 0:
		note = fmt.Sprintf("the interface MTU of %d is too small for RoCE", i.mtu)
	case p.opts.NoGSO && p.opts.NoGRO:
		note += ", segmentation and receive offload off"
	case p.opts.NoGSO:
		note += ", segmentation offload off"
	case p.opts.NoGRO:
		note += ", receive offload off"
	default:
		note += ", segmentation and receive offload on"
	}
	a := i.addr.WithZone("").As16()
	guid := p.guid
	for _, b := range a {
		guid = guid*0x100000001b3 ^ uint64(b)
	}
	return fabric.DeviceInfo{
		Name: i.name(), Provider: Name, Transport: fabric.TransportRoCE, GUID: guid, NetDev: i.dev,
		Addrs: []netip.Addr{i.addr.WithZone("")}, PortUp: i.up, MTU: mtu, Limits: limits(), Note: note,
	}
}
