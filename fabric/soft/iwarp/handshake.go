package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// negotiated is what two ends agreed on.
type negotiated struct {
	ord, ird int
	crc      bool
	large    bool // the peer takes FPDUs of any length
	passive  bool // we are the responder: the peer sends first
	rtr      mpa.RTR
}

// readFrame reads an MPA frame. f.Private is a slice of its own.
func readFrame(r io.Reader, f *mpa.Frame, reply bool) error {
	var head [mpa.FrameLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n, err := f.ParseHeader(head[:], reply)
	if err != nil {
		return err
	}
	private := make([]byte, n)
	if _, err := io.ReadFull(r, private); err != nil {
		return err
	}
	return f.ParsePrivate(private)
}

// depth is a negotiable number of READs as it goes over the wire.
func depth(n int) uint16 { return uint16(min(n, maxReads)) }

// peerReads is what the peer said of its READs.
func (o *Options) peerReads(f *mpa.Frame, said uint16) int {
	if !f.Enhanced() || said == mpa.NoNegotiation {
		return o.UntoldReads
	}
	return int(said)
}

// request is the frame that a dialler begins with.
func (o *Options) request(cfg *fabric.ConnConfig) mpa.Frame {
	f := mpa.Frame{Revision: uint8(o.Revision), Flags: mpa.FlagLarge, Private: cfg.PrivateData}
	if o.CRC == CRCOn {
		f.Flags |= mpa.FlagCRC
	}
	if o.Revision < 2 {
		return f
	}
	f.Flags |= mpa.FlagEnhanced
	f.IRD, f.ORD = depth(cfg.IRD), depth(cfg.ORD)
	if !o.NoPeerToPeer {
		f.PeerToPeer, f.RTR = true, mpa.RTRWrite
		if f.ORD > 0 {
			f.RTR |= mpa.RTRRead
		}
	}
	return f
}

// refusal is why the initiator ends a connection that was accepted: the peer
// is told by a Terminate.
type refusal struct {
	cause mpa.Cause
	err   error
}

func (r *refusal) Error() string { return fmt.Sprintf("%v: %v", r.err, r.cause) }
func (r *refusal) Unwrap() error { return r.err }

// accepted is what the reply to req means.
func (o *Options) accepted(req, reply *mpa.Frame) (*negotiated, error) {
	n := &negotiated{
		crc: req.Has(mpa.FlagCRC) || reply.Has(mpa.FlagCRC), large: reply.Has(mpa.FlagLarge),
		ord: min(int(req.ORD), o.peerReads(reply, reply.IRD)), ird: int(req.IRD),
	}
	if req.Revision < 2 {
		n.ord, n.ird = o.UntoldReads, o.UntoldReads
	}
	switch {
	case reply.Has(mpa.FlagReject):
		return nil, &fabric.RejectError{Reason: fabric.RejectConsumer, Private: reply.Private}
	case reply.Has(mpa.FlagMarkers):
		return nil, &refusal{mpa.BadMPA, fmt.Errorf("%w: the peer insists on MPA markers", fabric.ErrNotSupported)}
	case n.crc && o.CRC == CRCOff:
		return nil, &refusal{mpa.BadMPA, fmt.Errorf("%w: the peer insists on CRC", fabric.ErrNotSupported)}
	case !reply.Enhanced():
		return n, nil
	case int(reply.ORD) > n.ird && reply.ORD != mpa.NoNegotiation:
		// It wants more than we offered: that is fine as long as we can.
		if n.ird = int(reply.ORD); n.ird > maxReads {
			return nil, &refusal{mpa.InsufficientIRD, fmt.Errorf("%w: the peer wants %d outstanding READs", fabric.ErrNotSupported, n.ird)}
		}
	}
	if !reply.PeerToPeer || !req.PeerToPeer {
		return n, nil
	}
	switch both := req.RTR & reply.RTR; {
	case both&mpa.RTRWrite != 0:
		n.rtr = mpa.RTRWrite
	case both&mpa.RTRRead != 0 && n.ord > 0:
		n.rtr = mpa.RTRRead
	default:
		return nil, &refusal{mpa.NoRTR, fmt.Errorf("%w: the peer wants another RTR frame", fabric.ErrNotSupported)}
	}
	return n, nil
}

// errMarkers and errCRC are why a request is refused.
var (
	errMarkers = fmt.Errorf("%w: the peer insists on MPA markers", fabric.ErrNotSupported)
	errCRC     = fmt.Errorf("%w: the peer insists on CRC", fabric.ErrNotSupported)
)

// acceptable says why a request is refused without asking the consumer.
func (o *Options) acceptable(req *mpa.Frame) error {
	switch {
	case req.Has(mpa.FlagMarkers):
		return errMarkers
	case req.Has(mpa.FlagCRC) && o.CRC == CRCOff:
		return errCRC
	}
	return nil
}

// answer begins the reply to a request: what is repeated of it.
func answer(req *mpa.Frame) mpa.Frame {
	return mpa.Frame{Revision: req.Revision, Flags: req.Flags & (mpa.FlagEnhanced | mpa.FlagCRC | mpa.FlagLarge)}
}

// rejection is the reply that refuses a request.
func rejection(req *mpa.Frame, private []byte) mpa.Frame {
	f := answer(req)
	f.Flags |= mpa.FlagReject
	f.Private = private
	return f
}

// acceptance is the reply that accepts a request, and what it means.
func (o *Options) acceptance(req *mpa.Frame, cfg *fabric.ConnConfig) (mpa.Frame, *negotiated) {
	f := answer(req)
	if o.CRC == CRCOn {
		f.Flags |= mpa.FlagCRC
	}
	n := &negotiated{
		crc: f.Has(mpa.FlagCRC), large: f.Has(mpa.FlagLarge), passive: true,
		ord: min(cfg.ORD, maxReads, o.peerReads(req, req.IRD)), ird: min(cfg.IRD, maxReads, o.peerReads(req, req.ORD)),
	}
	if req.PeerToPeer {
		for _, rtr := range []mpa.RTR{mpa.RTRWrite, mpa.RTRRead, mpa.RTREmpty} {
			if f.RTR == 0 && req.RTR&rtr != 0 {
				f.PeerToPeer, f.RTR = true, rtr
			}
		}
	}
	if f.RTR == mpa.RTRRead {
		n.ird = max(n.ird, 1)
	}
	f.IRD, f.ORD, f.Private = uint16(n.ird), uint16(n.ord), cfg.PrivateData
	return f, n
}

// terminateFPDU is a Terminate as the first FPDU of a stream.
func terminateFPDU(c mpa.Cause) []byte {
	b := make([]byte, mpa.LengthLen+mpa.UntaggedLen, 64)
	h := mpa.Header{Op: mpa.OpTerminate, Last: true, MSN: 1}
	h.Put(b[mpa.LengthLen:])
	b = (&mpa.Terminate{Cause: c}).Append(b)
	n := len(b) - mpa.LengthLen
	b[0], b[1] = byte(n>>8), byte(n)
	b = append(b, make([]byte, mpa.Pad(n))...)
	crc := mpa.CRC(b)
	b = append(b, 0, 0, 0, 0)
	mpa.PutCRC(b[len(b)-mpa.CRCLen:], crc)
	return b
}

// bounded runs step, which talks to the peer, for at most d and until ctx ends.
func bounded(ctx context.Context, c *net.TCPConn, d time.Duration, step func() error) error {
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // fails when it is closed
	defer stop()
	err := step()
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return setupError(err)
}

// setupError says what an error means while a connection is set up.
func setupError(err error) error {
	var errno unix.Errno
	errors.As(err, &errno)
	switch {
	case err == nil:
		return nil
	case errno == unix.ECONNREFUSED:
		return &fabric.RejectError{Reason: fabric.RejectBadServiceID}
	case errno == unix.EADDRNOTAVAIL:
		return fmt.Errorf("%w: %w", fabric.ErrAddrNotAvailable, err)
	case errno == unix.EADDRINUSE:
		return fmt.Errorf("%w: %w", fabric.ErrAddrInUse, err)
	case errno == unix.EHOSTUNREACH, errno == unix.ENETUNREACH:
		return fmt.Errorf("%w: %w", fabric.ErrUnreachable, err)
	case errno == unix.ECONNRESET, errno == unix.EPIPE, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the peer closed the connection during its set-up", fabric.ErrUnreachable)
	case errno == unix.ETIMEDOUT, errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: the peer does not answer", fabric.ErrTimeout)
	}
	return err
}
