package initiator

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// ParseAddr makes the address of a target of the two texts that NVMe tools
// take: traddr, which is an IP address (IPv6 with or without brackets,
// link-local with its %interface) or a host name, and trsvcid, a port; an empty
// one is DefaultPort. A name is resolved, IPv4 first.
func ParseAddr(ctx context.Context, traddr, trsvcid string) (netip.AddrPort, error) {
	port := uint64(DefaultPort)
	if trsvcid != "" {
		var err error
		if port, err = strconv.ParseUint(trsvcid, 10, 16); err != nil || port == 0 {
			return netip.AddrPort{}, fmt.Errorf("port %q: expected a number from 1 to 65535", trsvcid)
		}
	}
	host := strings.TrimSpace(traddr)
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if host == "" {
		return netip.AddrPort{}, fmt.Errorf("address %q: expected an IP address or a host name", traddr)
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		if addr, err = resolve(ctx, host); err != nil {
			return netip.AddrPort{}, fmt.Errorf("address %q: %w", traddr, err)
		}
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), nil
}

func resolve(ctx context.Context, host string) (netip.Addr, error) {
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range list {
		if a.Unmap().Is4() {
			return a.Unmap(), nil
		}
	}
	if len(list) == 0 {
		return netip.Addr{}, fmt.Errorf("no address for this name")
	}
	return list[0], nil
}
