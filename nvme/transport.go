package nvme

import "fmt"

// TransportType is TRTYPE of a discovery log entry and of the error log.
type TransportType uint8

// Transport types (Base 5.16.1, log page 70h).
const (
	TransportNone  TransportType = 0 // error log: not of a transport
	TransportRDMA  TransportType = 1
	TransportFC    TransportType = 2
	TransportTCP   TransportType = 3
	TransportLocal TransportType = 254 // intra-host
)

var transportNames = map[TransportType]string{
	TransportNone: "none", TransportRDMA: "rdma", TransportFC: "fc",
	TransportTCP: "tcp", TransportLocal: "loop",
}

// String is the name that hosts' tools use ("rdma").
func (t TransportType) String() string { return nameOf(transportNames, t, "transport") }

// ParseTransportType is the reverse of String for the named types.
func ParseTransportType(s string) (TransportType, error) {
	for t, name := range transportNames {
		if name == s && t != TransportNone {
			return t, nil
		}
	}
	return 0, fmt.Errorf("nvme: transport type %q: not one of rdma, tcp, fc, loop", s)
}

// AddressFamily is ADRFAM of a discovery log entry.
type AddressFamily uint8

// Address families (Base 5.16.1, log page 70h).
const (
	FamilyIPv4  AddressFamily = 1
	FamilyIPv6  AddressFamily = 2
	FamilyIB    AddressFamily = 3
	FamilyFC    AddressFamily = 4
	FamilyLocal AddressFamily = 254
)

var familyNames = map[AddressFamily]string{
	FamilyIPv4: "ipv4", FamilyIPv6: "ipv6", FamilyIB: "ib", FamilyFC: "fc", FamilyLocal: "loop",
}

func (f AddressFamily) String() string { return nameOf(familyNames, f, "address family") }

// SubsystemType is SUBTYPE of a discovery log entry.
type SubsystemType uint8

// Subsystem types (Base 5.16.1, log page 70h).
const (
	SubsystemReferral  SubsystemType = 1 // another discovery service
	SubsystemNVM       SubsystemType = 2
	SubsystemDiscovery SubsystemType = 3 // the discovery service that answers
)

var subsystemNames = map[SubsystemType]string{
	SubsystemReferral: "discovery subsystem referral", SubsystemNVM: "nvme subsystem",
	SubsystemDiscovery: "current discovery subsystem",
}

func (s SubsystemType) String() string { return nameOf(subsystemNames, s, "subsystem type") }

// RDMAQPType is the RDMA QP service type of TSAS.
type RDMAQPType uint8

// QP service types (RDMA, transport specific address subtype).
const (
	RDMAConnected RDMAQPType = 1
	RDMADatagram  RDMAQPType = 2
)

var qpTypeNames = map[RDMAQPType]string{RDMAConnected: "connected", RDMADatagram: "datagram"}

func (t RDMAQPType) String() string { return nameOf(qpTypeNames, t, "QP type") }

// RDMAProvider is the RDMA provider type of TSAS.
type RDMAProvider uint8

// RDMA provider types (RDMA, transport specific address subtype).
const (
	RDMAUnspecified RDMAProvider = 1
	RDMAInfiniBand  RDMAProvider = 2
	RDMARoCE        RDMAProvider = 3
	RDMARoCEv2      RDMAProvider = 4
	RDMAiWARP       RDMAProvider = 5
)

var providerNames = map[RDMAProvider]string{
	RDMAUnspecified: "not specified", RDMAInfiniBand: "infiniband", RDMARoCE: "roce",
	RDMARoCEv2: "roce-v2", RDMAiWARP: "iwarp",
}

func (p RDMAProvider) String() string { return nameOf(providerNames, p, "RDMA provider") }

// RDMACM is the RDMA connection management service of TSAS.
type RDMACM uint8

// RDMACMIP is connection management by rdma_cm, over IP addresses.
const RDMACMIP RDMACM = 1

func (c RDMACM) String() string {
	if c == RDMACMIP {
		return "rdma-cm"
	}
	return fmt.Sprintf("connection management %d", uint8(c))
}

// nameOf is the name of an enum value, or what it is and its number.
func nameOf[T ~uint8](names map[T]string, v T, what string) string {
	if s, ok := names[v]; ok {
		return s
	}
	return fmt.Sprintf("%s %#02x", what, uint8(v))
}
