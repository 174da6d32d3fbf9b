//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nvmf-go/nvmf/fabric"
)

// inlineProbe is the largest inline size asked for when a device is probed.
const inlineProbe = 1024

// query describes the device. maxInline is what a probe was granted.
func query(name string, ctx *C.struct_ibv_context, maxInline uint32) (fabric.DeviceInfo, error) {
	var i C.struct_vb_info
	if r := C.vb_query(ctx, &i); r != 0 {
		return fabric.DeviceInfo{}, errno(int(r))
	}
	info := fabric.DeviceInfo{
		Name:      name,
		Provider:  ProviderName,
		Transport: transportOf(&i),
		GUID:      uint64(i.guid),
		Firmware:  C.GoString(&i.firmware[0]),
		Vendor:    uint32(i.vendor),
		PortUp:    i.port_up != 0,
		MTU:       int(i.mtu),
		Note:      noteOf(&i),
	}
	info.NetDev, info.Addrs = addresses(interfacesOf(name, &i))
	info.Limits = limitsOf(&i, info.Transport)
	info.Limits.MaxInline = int(maxInline)
	return info, nil
}

func transportOf(i *C.struct_vb_info) fabric.Transport {
	switch {
	case i.transport == C.IBV_TRANSPORT_IWARP:
		return fabric.TransportIWARP
	case i.transport != C.IBV_TRANSPORT_IB:
		return fabric.TransportUnknown
	case i.link_layer == C.IBV_LINK_LAYER_ETHERNET:
		return fabric.TransportRoCE
	}
	return fabric.TransportInfiniBand
}

// noteOf says what is particular. The memory that package fabric registers is
// never of the Go heap, so fork is a matter of note only.
func noteOf(i *C.struct_vb_info) string {
	var notes []string
	if i.ports > 1 {
		notes = append(notes, fmt.Sprintf("port %d of %d", i.port, i.ports))
	}
	if _, err := os.Stat(cmDevice); err != nil {
		notes = append(notes, "cannot connect: rdma_cm is not loaded (modprobe rdma_ucm)")
	}
	if C.vb_fork_safe() == 0 {
		notes = append(notes, "child processes must not touch registered memory (kernel before 5.12)")
	}
	return strings.Join(notes, "; ")
}

// vendorRXE is how the kernel's software RoCE calls itself. It sets the flag of
// a receive that ended a key for consumers in the kernel only, and a local
// invalidate of a window whose key has ended already is a NULL pointer
// dereference in it (Linux 6.1).
const vendorRXE = 0xffffff

// limitsOf clips the read depths to 254: 255 means "the most" to librdmacm.
func limitsOf(i *C.struct_vb_info, t fabric.Transport) fabric.Limits {
	iwarp := t == fabric.TransportIWARP
	return fabric.Limits{
		MaxQP: int(i.max_qp), MaxCQ: int(i.max_cq), MaxMR: int(i.max_mr), MaxSRQ: int(i.max_srq),
		MaxQPDepth: int(i.max_qp_wr), MaxCQDepth: int(i.max_cqe), MaxSRQDepth: int(i.max_srq_wr),
		MaxSGE: int(i.max_sge), MaxReadSGE: int(i.max_sge_rd),
		MaxORD: min(int(i.max_ord), 254), MaxIRD: min(int(i.max_ird), 254),
		MaxMRSize: uint64(i.max_mr_size), MaxMessage: uint32(i.max_message),
		Atomics:          i.atomics != 0 && !iwarp,
		MemoryWindows:    i.windows != 0,
		SendInvalidate:   i.send_inv != 0,
		InvalidateUntold: i.vendor == vendorRXE,
		RNR:              !iwarp,
		// InfiniBand's paths would have to be asked of a subnet manager.
		UnreliableConnections: t == fabric.TransportRoCE,
		Datagrams:             t == fabric.TransportRoCE,
		ReadNeedsRemoteWrite:  iwarp,
	}
}

// interfacesOf finds the network interfaces of a device: those of its GID
// table (RoCE), else those of the same piece of hardware (InfiniBand's IPoIB,
// iWARP), else those whose MAC made its GUID (siw).
func interfacesOf(name string, i *C.struct_vb_info) (ifis []net.Interface) {
	for _, x := range i.ifindex[:i.num_ifindex] {
		if ifi, err := net.InterfaceByIndex(int(x)); err == nil {
			ifis = append(ifis, *ifi)
		}
	}
	if len(ifis) > 0 {
		return ifis
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	siblings, _ := filepath.Glob(filepath.Join(sysfsRoot, "infiniband", name, "device/net/*"))
	for _, ifi := range all {
		if slices.ContainsFunc(siblings, func(s string) bool { return filepath.Base(s) == ifi.Name }) {
			ifis = append(ifis, ifi)
		}
	}
	if len(ifis) == 0 {
		ifis = slices.DeleteFunc(all, func(ifi net.Interface) bool { return guidOf(ifi.HardwareAddr) != uint64(i.guid) })
	}
	return ifis
}

// guidOf is the EUI-64 of an Ethernet address as software devices use it, 0 for
// other addresses.
func guidOf(mac net.HardwareAddr) (guid uint64) {
	if len(mac) != 6 {
		return 0
	}
	for _, b := range []byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]} {
		guid = guid<<8 | uint64(b)
	}
	return guid
}

// addresses are what the interfaces can be reached at, link-local ones scoped,
// and the name of the first.
func addresses(ifis []net.Interface) (netdev string, addrs []netip.Addr) {
	for _, ifi := range ifis {
		if netdev == "" {
			netdev = ifi.Name
		}
		as, err := ifi.Addrs()
		if err != nil {
			continue
		}
		for _, a := range as {
			if pfx, err := netip.ParsePrefix(a.String()); err == nil {
				addrs = append(addrs, scoped(pfx.Addr(), ifi.Name))
			}
		}
	}
	return netdev, addrs
}

func scoped(addr netip.Addr, zone string) netip.Addr {
	if addr.IsLinkLocalUnicast() && addr.Is6() {
		return addr.WithZone(zone)
	}
	return addr
}

// hasAddr compares link-local addresses with their zone, which may be given
// as a number.
func hasAddr(addrs []netip.Addr, want netip.Addr) bool {
	want = want.Unmap()
	if scope, err := scopeOf(want); err == nil && scope != 0 {
		want = want.WithZone(zoneName(scope))
	}
	return slices.Contains(addrs, want)
}

// describeAll lists devices with their addresses for an error message.
func describeAll(infos []fabric.DeviceInfo) string {
	if len(infos) == 0 {
		return diagnose(sysfsRoot)
	}
	var parts []string
	for _, i := range infos {
		s := i.Name
		if i.NetDev != "" {
			s += " on " + i.NetDev
		}
		for _, a := range i.Addrs {
			s += " " + a.String()
		}
		parts = append(parts, s)
	}
	return "devices: " + strings.Join(parts, "; ")
}
