package nvme

import "fmt"

// Sizes in bytes of the private data of RDMA connection management (RDMA).
// InfiniBand pads what is shorter than its message has room for; iWARP carries
// the exact length.
const (
	CMRequestSize = 32
	CMAcceptSize  = 32
	CMRejectSize  = 4
)

// CMRequest is the private data of a connection request.
type CMRequest struct {
	RecFmt uint16 // 0
	QID    uint16
	// HRQSize is the number of receives the host posts, hence the most
	// responses that may be outstanding.
	HRQSize uint16
	// HSQSize is the number of capsules the host may have outstanding, 0-based.
	HSQSize uint16
	// CNTLID is the controller of an I/O queue; hosts before RDMA 1.0 send 0.
	CNTLID uint16
}

func (r *CMRequest) layout(l layout) {
	u16(l, 0, &r.RecFmt)
	u16(l, 2, &r.QID)
	u16(l, 4, &r.HRQSize)
	u16(l, 6, &r.HSQSize)
	u16(l, 8, &r.CNTLID)
}

// MarshalTo fills b, CMRequestSize bytes.
func (r *CMRequest) MarshalTo(b []byte) { r.layout(encoder("RDMA CM request", b, CMRequestSize)) }

// Unmarshal reads the first CMRequestSize bytes: what follows is padding. The
// record format is not checked.
func (r *CMRequest) Unmarshal(b []byte) error {
	if len(b) < CMRequestSize {
		return &LengthError{"RDMA CM request", len(b), CMRequestSize}
	}
	r.layout(decoder(b))
	return nil
}

// CMAccept is the private data of an accepted connection.
type CMAccept struct {
	RecFmt  uint16 // 0
	CRQSize uint16 // receives the controller posts
}

func (a *CMAccept) layout(l layout) {
	u16(l, 0, &a.RecFmt)
	u16(l, 2, &a.CRQSize)
}

// MarshalTo fills b, CMAcceptSize bytes.
func (a *CMAccept) MarshalTo(b []byte) { a.layout(encoder("RDMA CM accept", b, CMAcceptSize)) }

// Unmarshal reads the first CMAcceptSize bytes: what follows is padding.
func (a *CMAccept) Unmarshal(b []byte) error {
	if len(b) < CMAcceptSize {
		return &LengthError{"RDMA CM accept", len(b), CMAcceptSize}
	}
	a.layout(decoder(b))
	return nil
}

// CMStatus is why a controller rejected a connection.
type CMStatus uint16

// Reject statuses.
const (
	CMInvalidLength  CMStatus = 1
	CMInvalidRecFmt  CMStatus = 2
	CMInvalidQID     CMStatus = 3
	CMInvalidHSQSize CMStatus = 4
	CMInvalidHRQSize CMStatus = 5
	CMNoResources    CMStatus = 6
	CMInvalidIRD     CMStatus = 7
	CMInvalidORD     CMStatus = 8
	CMInvalidCNTLID  CMStatus = 9
)

var cmStatusNames = [...]string{
	CMInvalidLength:  "invalid private data length",
	CMInvalidRecFmt:  "invalid record format",
	CMInvalidQID:     "invalid queue id",
	CMInvalidHSQSize: "invalid host SQ size",
	CMInvalidHRQSize: "invalid host RQ size",
	CMNoResources:    "no resources",
	CMInvalidIRD:     "invalid IRD: too few RDMA READs as responder",
	CMInvalidORD:     "invalid ORD: too few RDMA READs as requester",
	CMInvalidCNTLID:  "invalid controller id",
}

// String is the status in words, with its number.
func (s CMStatus) String() string {
	if int(s) < len(cmStatusNames) && s != 0 {
		return fmt.Sprintf("%s (%d)", cmStatusNames[s], uint16(s))
	}
	return fmt.Sprintf("reject status %d", uint16(s))
}

// Error makes a CMStatus an error.
func (s CMStatus) Error() string { return s.String() }

// CMReject is the private data of a rejected connection.
type CMReject struct {
	RecFmt uint16 // 0
	Status CMStatus
}

func (r *CMReject) layout(l layout) {
	u16(l, 0, &r.RecFmt)
	u16(l, 2, &r.Status)
}

// MarshalTo fills b, CMRejectSize bytes.
func (r *CMReject) MarshalTo(b []byte) { r.layout(encoder("RDMA CM reject", b, CMRejectSize)) }

// Unmarshal reads the first CMRejectSize bytes: what follows is padding.
func (r *CMReject) Unmarshal(b []byte) error {
	if len(b) < CMRejectSize {
		return &LengthError{"RDMA CM reject", len(b), CMRejectSize}
	}
	r.layout(decoder(b))
	return nil
}
