package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Admin runs an admin command: any, as the caller has filled it in; CID, PSDT
// and SGL are set here. data is sent or filled, as the opcode's direction says
// (for a fabrics command its type's); nil for none. It returns dwords 0 and 1
// of the completion; a status other than success is a *nvme.StatusError.
//
// While the controller is reconnecting the command waits, for at most
// Config.AdminTimeout. One that is in flight when the association is lost fails
// with ErrPathLost; it may have been executed.
func (c *Controller) Admin(ctx context.Context, cmd nvme.Command, data []byte) (uint64, error) {
	ctx, cancel := within(ctx, c.cfg.AdminTimeout)
	defer cancel()
	if len(cmd) != nvme.SQESize {
		return 0, fmt.Errorf("an SQE of %d bytes: expected %d", len(cmd), nvme.SQESize)
	}
	if !c.usable() {
		if err := c.waitLive(ctx, nil); err != nil {
			return 0, err
		}
	}
	if len(data) > c.MaxTransfer() {
		return 0, fmt.Errorf("%d bytes: %w: %d", len(data), ErrTooLarge, c.MaxTransfer())
	}
	return c.run(ctx, cmd, data, c.cfg.AdminTimeout)
}

// run runs an admin command on the association there is. ctx bounds the
// caller's patience, timeout the controller's time.
func (c *Controller) run(ctx context.Context, cmd nvme.Command, data []byte, timeout time.Duration) (uint64, error) {
	r, err := newDataRequest(cmd, data, timeout)
	if err != nil {
		return 0, err
	}
	if !c.admin.push(r) {
		r.discard(r)
		return 0, c.lostError()
	}
	return finishData(ctx, r, data)
}

// newDataRequest makes a request with a buffer of its own for data.
func newDataRequest(cmd nvme.Command, data []byte, timeout time.Duration) (*request, error) {
	r := &request{done: make(chan struct{}, 1), discard: func(*request) {}}
	r.fill(cmd, timeout)
	r.cmd().SetFlags(nvme.FlagsSGL | cmd.Fuse())
	r.cmd().SGL1().SetNull()
	if len(data) == 0 {
		return r, nil
	}
	buf, err := newPlainBuffer(len(data))
	if err != nil {
		return nil, err
	}
	r.buf, r.n = buf, len(data)
	r.discard = func(*request) { _ = buf.Close() } // it is registered, or was, and mapped: nothing can fail
	if direction(cmd)&nvme.DataToController != 0 {
		copy(buf.Bytes(), data)
	}
	return r, nil
}

// finishData waits for a request of newDataRequest and takes its data.
func finishData(ctx context.Context, r *request, data []byte) (uint64, error) {
	if err := r.wait(ctx); r.abandoned() {
		return 0, err
	}
	defer r.discard(r)
	if err := r.outcome(); err != nil {
		return r.result, err
	}
	if r.n > 0 && direction(r.cmd())&nvme.DataToHost != 0 {
		copy(data, r.buf.Bytes())
	}
	return r.result, nil
}

// direction is the direction of a command's data.
func direction(cmd nvme.Command) nvme.DataDirection {
	if cmd.Opcode() == nvme.CmdFabrics {
		return cmd.FCType().Direction()
	}
	return cmd.Opcode().Direction()
}

// IOCommand runs an I/O command: any, as Admin does admin commands. While the
// controller is reconnecting it is held like other I/O; changes says that the
// command changes data, see the package comment on what is replayed.
func (c *Controller) IOCommand(ctx context.Context, cmd nvme.Command, data []byte, changes bool) (uint64, error) {
	if len(cmd) != nvme.SQESize {
		return 0, fmt.Errorf("an SQE of %d bytes: expected %d", len(cmd), nvme.SQESize)
	}
	if most := c.MaxTransfer(); most > 0 && len(data) > most {
		return 0, fmt.Errorf("%d bytes: %w: %d", len(data), ErrTooLarge, most)
	}
	r, err := newDataRequest(cmd, data, c.cfg.IOTimeout)
	if err != nil {
		return 0, err
	}
	r.route, r.changes, r.nsid = c.disp, changes, cmd.NSID()
	c.disp.submit(r)
	return finishData(ctx, r, data)
}

func newCommand() nvme.Command { return make(nvme.Command, nvme.SQESize) }

// PropertyGet reads a property of the controller.
func (c *Controller) PropertyGet(ctx context.Context, p nvme.Property) (uint64, error) {
	cmd := newCommand()
	cmd.Property().InitGet(p)
	v, err := c.Admin(ctx, cmd, nil)
	return propertyValue(p, v), err
}

// PropertySet writes a property of the controller. Writing CC behind the back
// of the package is at the caller's risk; Reset and Close do it in order.
func (c *Controller) PropertySet(ctx context.Context, p nvme.Property, v uint64) error {
	cmd := newCommand()
	cmd.Property().InitSet(p, v)
	_, err := c.Admin(ctx, cmd, nil)
	return err
}

func propertyValue(p nvme.Property, v uint64) uint64 {
	if p.Size() == 4 {
		v &= 1<<32 - 1
	}
	return v
}

// readCSTS is PropertyGet of CSTS that does not wait for a live controller.
func (c *Controller) readCSTS(ctx context.Context) (nvme.ControllerStatus, error) {
	cmd := newCommand()
	cmd.Property().InitGet(nvme.PropCSTS)
	v, err := c.run(ctx, cmd, nil, c.cfg.AdminTimeout)
	return nvme.ControllerStatus(v), err
}

// writeCC is PropertySet of CC that does not wait for a live controller.
func (c *Controller) writeCC(ctx context.Context, v nvme.Configuration) error {
	cmd := newCommand()
	cmd.Property().InitSet(nvme.PropCC, uint64(v))
	_, err := c.run(ctx, cmd, nil, c.cfg.AdminTimeout)
	return err
}

// Ping is the time of a round trip: a Property Get of CSTS, which a controller
// answers without touching anything.
func (c *Controller) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	_, err := c.PropertyGet(ctx, nvme.PropCSTS)
	return time.Since(start), err
}

// Identify reads a data structure of Identify, nvme.IdentifySize bytes.
func (c *Controller) Identify(ctx context.Context, cns nvme.CNS, nsid uint32, csi nvme.CSI, cntid uint16) ([]byte, error) {
	cmd := newCommand()
	cmd.Identify().Init(cns, nsid, csi, cntid)
	data := make([]byte, nvme.IdentifySize)
	if _, err := c.Admin(ctx, cmd, data); err != nil {
		return nil, fmt.Errorf("Identify %v: %w", cns, err)
	}
	return data, nil
}

// IdentifyController reads Identify Controller anew; Identity is what was read
// at connect.
func (c *Controller) IdentifyController(ctx context.Context) (*nvme.IdentifyController, error) {
	b, err := c.Identify(ctx, nvme.CNSController, 0, 0, 0)
	if err != nil {
		return nil, err
	}
	id := new(nvme.IdentifyController)
	return id, id.Unmarshal(b)
}

// IdentifyNamespace reads CNS 00h of a namespace. The data of one that is not
// active is zero, which is ErrNoNamespace.
func (c *Controller) IdentifyNamespace(ctx context.Context, nsid uint32) (*nvme.IdentifyNamespace, error) {
	b, err := c.Identify(ctx, nvme.CNSNamespace, nsid, 0, 0)
	if errors.Is(err, nvme.InvalidNamespace) {
		return nil, fmt.Errorf("%w: %d: %w", ErrNoNamespace, nsid, err)
	}
	if err != nil {
		return nil, err
	}
	id := new(nvme.IdentifyNamespace)
	if err := id.Unmarshal(b); err != nil {
		return nil, err
	}
	if id.NSZE == 0 && id.LBAF[0] == 0 {
		return nil, fmt.Errorf("%w: %d is not active", ErrNoNamespace, nsid)
	}
	return id, nil
}

// NamespaceDescriptors reads CNS 03h, the identifiers of a namespace.
func (c *Controller) NamespaceDescriptors(ctx context.Context, nsid uint32) (*nvme.NSDescriptors, error) {
	b, err := c.Identify(ctx, nvme.CNSDescriptors, nsid, 0, 0)
	if err != nil {
		return nil, err
	}
	d := new(nvme.NSDescriptors)
	return d, d.Unmarshal(b)
}

// ActiveNamespaces lists the active namespaces of the controller, ascending.
func (c *Controller) ActiveNamespaces(ctx context.Context) ([]uint32, error) {
	var list []uint32
	for last := uint32(0); ; {
		b, err := c.Identify(ctx, nvme.CNSActiveList, last, 0, 0)
		if err != nil {
			return nil, err
		}
		page := nvme.NSList(b)
		for nsid := range page.All() {
			if nsid <= last {
				return nil, fmt.Errorf("Identify %v: %w: %d follows %d", nvme.CNSActiveList, ErrProtocol, nsid, last)
			}
			list = append(list, nsid)
			last = nsid
		}
		if page.Len() < nvme.NSListMax || last >= nvme.NSIDBroadcast-1 {
			return list, nil
		}
	}
}

// GetFeature reads a feature: its value, and its data into data when it has
// some.
func (c *Controller) GetFeature(ctx context.Context, id nvme.FeatureID, sel nvme.FeatureSelect, nsid, cdw11 uint32, data []byte) (uint32, error) {
	cmd := newCommand()
	cmd.Features().InitGet(id, sel, nsid, cdw11)
	v, err := c.Admin(ctx, cmd, data)
	if err != nil {
		return 0, fmt.Errorf("feature %v: %w", id, err)
	}
	return uint32(v), nil
}

// SetFeature sets a feature to v, with data when it has some; save makes it
// last. The result is command specific.
func (c *Controller) SetFeature(ctx context.Context, id nvme.FeatureID, nsid, v uint32, save bool, data []byte) (uint32, error) {
	cmd := newCommand()
	cmd.Features().InitSet(id, nsid, v, save)
	r, err := c.Admin(ctx, cmd, data)
	if err != nil {
		return 0, fmt.Errorf("feature %v: %w", id, err)
	}
	return uint32(r), nil
}
