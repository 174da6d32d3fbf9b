package initiator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nvmf-go/nvmf/nvme"
)

// LogPage reads a log page: r.Length bytes from r.Offset on, in one command when
// the controller can move so much, else in pieces. The size of a page is for
// the caller to know.
func (c *Controller) LogPage(ctx context.Context, nsid uint32, r nvme.LogRequest) ([]byte, error) {
	const most = 64 << 20
	if r.Length > most || r.Length%4 != 0 {
		return nil, fmt.Errorf("%s: %d bytes: expected a multiple of 4, at most %d", logName(r.LID), r.Length, most)
	}
	data := make([]byte, r.Length)
	piece := min(len(data), c.MaxTransfer())
	for done := 0; done < len(data); done += piece {
		piece = min(piece, len(data)-done)
		part := r
		part.Length = uint64(piece)
		part.Offset += uint64(done)
		// The event is cleared by the last piece only.
		part.RAE = r.RAE || done+piece < len(data)
		cmd := newCommand()
		cmd.GetLogPage().Init(nsid, part)
		if _, err := c.Admin(ctx, cmd, data[done:][:piece]); err != nil {
			return nil, fmt.Errorf("%s: %w", logName(r.LID), err)
		}
	}
	return data, nil
}

// SMARTLog reads log page 02h, of the controller when nsid is
// nvme.NSIDBroadcast.
func (c *Controller) SMARTLog(ctx context.Context, nsid uint32) (*nvme.SMARTLog, error) {
	return readLog[nvme.SMARTLog](ctx, c, nsid, nvme.LogSMART, nvme.SMARTLogSize)
}

// FirmwareLog reads log page 03h.
func (c *Controller) FirmwareLog(ctx context.Context) (*nvme.FirmwareLog, error) {
	return readLog[nvme.FirmwareLog](ctx, c, nvme.NSIDBroadcast, nvme.LogFirmware, nvme.FirmwareLogSize)
}

// readLog reads a log page that is one structure.
func readLog[T any, P interface {
	*T
	Unmarshal([]byte) error
}](ctx context.Context, c *Controller, nsid uint32, lid nvme.LogPage, size uint64) (*T, error) {
	b, err := c.LogPage(ctx, nsid, nvme.LogRequest{LID: lid, Length: size})
	if err != nil {
		return nil, err
	}
	v := new(T)
	return v, P(v).Unmarshal(b)
}

// ErrorLog reads up to n entries of log page 01h, the newest first; n of 0 reads
// as many as the controller keeps. Entries that are not used are left out.
func (c *Controller) ErrorLog(ctx context.Context, n int) ([]nvme.ErrorEntry, error) {
	most := int(c.latest().id.ELPE) + 1
	if n <= 0 || n > most {
		n = most
	}
	b, err := c.LogPage(ctx, nvme.NSIDBroadcast, nvme.LogRequest{LID: nvme.LogError, Length: uint64(n) * nvme.ErrorEntrySize})
	if err != nil {
		return nil, err
	}
	var list []nvme.ErrorEntry
	for ; len(b) > 0; b = b[nvme.ErrorEntrySize:] {
		var e nvme.ErrorEntry
		if err := e.Unmarshal(b[:nvme.ErrorEntrySize]); err != nil {
			return nil, err
		}
		if e.Count != 0 {
			list = append(list, e)
		}
	}
	return list, nil
}

// EffectsLog reads log page 05h of a command set.
func (c *Controller) EffectsLog(ctx context.Context, csi nvme.CSI) (nvme.EffectsLog, error) {
	return c.LogPage(ctx, 0, nvme.LogRequest{LID: nvme.LogEffects, Length: nvme.EffectsLogSize, CSI: csi})
}

// SupportedLogs reads log page 00h.
func (c *Controller) SupportedLogs(ctx context.Context) (nvme.SupportedPages, error) {
	return c.LogPage(ctx, 0, nvme.LogRequest{LID: nvme.LogSupported, Length: nvme.SupportedPagesSize})
}

// SupportedFeatures reads log page 12h.
func (c *Controller) SupportedFeatures(ctx context.Context) (nvme.FeatureEffects, error) {
	return c.LogPage(ctx, 0, nvme.LogRequest{LID: nvme.LogFeatureEffects, Length: nvme.FeatureEffectsSize})
}

// ChangedNamespaces reads log page 04h, which clears it.
func (c *Controller) ChangedNamespaces(ctx context.Context) (nvme.NSList, error) {
	return c.LogPage(ctx, nvme.NSIDBroadcast, nvme.LogRequest{LID: nvme.LogChangedNS, Length: nvme.IdentifySize})
}

// ANALog reads log page 0Ch.
func (c *Controller) ANALog(ctx context.Context) (change uint64, groups []nvme.ANAGroup, err error) {
	size, err := c.latest().anaLogSize()
	if err != nil {
		return 0, nil, err
	}
	b, err := c.LogPage(ctx, nvme.NSIDBroadcast, nvme.LogRequest{LID: nvme.LogANA, Length: uint64(size)})
	if err != nil {
		return 0, nil, err
	}
	return nvme.ParseANALog(b)
}

// errNoANA: the controller does not report asymmetric access.
var errNoANA = errors.New("the controller does not report asymmetric namespace access")

// anaLogSize is the size of log page 0Ch. It has to fit one command, for some
// targets know no offset there.
func (a *association) anaLogSize() (int, error) {
	if a.id.CMIC&nvme.CMICANA == 0 {
		return 0, errNoANA
	}
	namespaces := a.id.MNAN
	if namespaces == 0 || namespaces > a.id.NN {
		namespaces = a.id.NN
	}
	size := uint64(nvme.ANAHeaderSize) + uint64(a.id.NANAGRPID)*nvme.ANAGroupSize + 4*uint64(namespaces)
	if size > uint64(a.transfer) {
		return 0, fmt.Errorf("an ANA log of %d bytes (%d groups, %d namespaces): %w: %d", size, a.id.NANAGRPID, namespaces, ErrTooLarge, a.transfer)
	}
	return int(size+3) &^ 3, nil
}

// logName is how messages name a log page; one without a name says already what
// it is.
func logName(p nvme.LogPage) string {
	name := p.String()
	if strings.HasPrefix(name, "log page ") {
		return name
	}
	return "log page " + name
}
