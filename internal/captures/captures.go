// Package captures holds recorded sessions of NVMe over RDMA as test data: the
// Linux kernel's host and target (6.1) over RoCEv2 (rxe) and iWARP (siw), among
// themselves and against programs on plain sockets. It reads them without any
// other package: classic pcap, Ethernet, IP, UDP and TCP.
//
//	for _, p := range captures.RoCE(captures.RoCEv2MTU1024) {
//		use(p.IP, p.Payload) // p.Payload starts at the BTH and ends with the ICRC
//	}
//	for _, c := range captures.Conns(captures.IWARP) {
//		use(c.FromClient, c.FromServer) // MPA request and reply, then FPDUs
//	}
//
// What it returns shares memory between calls and is not to be changed.
package captures

import (
	"bytes"
	"compress/bzip2"
	"embed"
	"fmt"
	"net/netip"
	"sync"
)

//go:embed testdata/*.pcap.bz2
var files embed.FS

// The captures. Where a comment does not say otherwise a kernel host discovers,
// connects, identifies, writes 4 KiB in the capsule, reads it, writes and reads
// 128 KiB, flushes, keeps alive and disconnects.
const (
	RoCEv2MTU1024 = "roce-nvme-mtu1024" // kernel host and nvmet, IPv4, path MTU 1024
	RoCEv2MTU4096 = "roce-nvme-mtu4096" // the same, path MTU 4096
	RoCEv2IPv6    = "roce-nvme-ipv6"    // the same over IPv6
	// RoCEv2UserInitiator is an initiator on a UDP socket against nvmet.
	RoCEv2UserInitiator = "roce-user-initiator-vs-nvmet"
	// RoCEv2UserTarget is a kernel host against a target on a UDP socket.
	RoCEv2UserTarget = "roce-kernel-host-vs-user-target"

	IWARP = "siw-nvme-default" // kernel host and nvmet over siw
	// IWARPTerminate is an initiator on a TCP socket against nvmet, with CRC, and
	// what makes siw send each of its Terminate messages.
	IWARPTerminate = "siw-user-crc-terminate"
	// IWARPUserTarget is a kernel host against a target on a TCP socket.
	IWARPUserTarget = "siw-kernel-host-vs-user-target"
)

// PortRoCE is the UDP port of RoCEv2, PortNVMe the TCP port of the targets.
const (
	PortRoCE uint16 = 4791
	PortNVMe uint16 = 4420
)

// Names are the names of all captures.
func Names() []string {
	return []string{
		RoCEv2MTU1024, RoCEv2MTU4096, RoCEv2IPv6, RoCEv2UserInitiator, RoCEv2UserTarget,
		IWARP, IWARPTerminate, IWARPUserTarget,
	}
}

var (
	mu     sync.Mutex
	loaded = map[string][]Frame{}
)

// Frames are all frames of a capture, in order. It panics when there is no
// capture of that name.
func Frames(name string) []Frame {
	mu.Lock()
	defer mu.Unlock()
	if frames, ok := loaded[name]; ok {
		return frames
	}
	b, err := files.ReadFile("testdata/" + name + ".pcap.bz2")
	if err != nil {
		panic(fmt.Sprintf("captures: no capture %q, only %q", name, Names()))
	}
	frames, err := Read(bzip2.NewReader(bytes.NewReader(b)))
	if err != nil {
		panic(fmt.Sprintf("captures: %s: %v", name, err))
	}
	loaded[name] = frames
	return frames
}

// Packets are all UDP and TCP packets of a capture, in order.
func Packets(name string) (ps []Packet) {
	for i, f := range Frames(name) {
		if p, ok := parse(f.Data); ok {
			p.Frame, p.Time = i+1, f.Time
			ps = append(ps, p)
		}
	}
	return ps
}

// RoCE are the packets to UDP port 4791, in order, of both directions.
func RoCE(name string) (ps []Packet) {
	for _, p := range Packets(name) {
		if p.Proto == ProtoUDP && p.Dst.Port() == PortRoCE {
			ps = append(ps, p)
		}
	}
	return ps
}

// Conn is a TCP connection as two byte streams, retransmissions removed.
type Conn struct {
	Client, Server         netip.AddrPort
	FromClient, FromServer []byte
	// Gaps says that bytes of either stream are missing in the capture; the
	// stream then ends before the first of them.
	Gaps bool
}

// Conns are the TCP connections of a capture, in the order of their SYNs.
func Conns(name string) []Conn { return assemble(Packets(name)) }
