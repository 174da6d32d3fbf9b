package initiator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/nvme"
)

// Namespace is a namespace of the NVM command set, to be read and written. Its
// methods are safe for concurrent use. It stays valid over reconnects; when the
// namespace is found to be gone, or replaced by one with another identity or
// block size, every call fails with ErrNamespaceChanged.
//
// Concurrent overlapping writes have no order, and one that had to be sent anew
// may be executed twice before it returns.
type Namespace struct {
	// Constant.

	nsid   uint32
	c      *Controller // that it was opened on; with a Multipath, one of many
	disp   *dispatcher
	bounce *bounce
	shared bool // of a Multipath

	info atomic.Pointer[nsInfo]
	gone atomic.Bool
}

// nsInfo is what is known of a namespace, immutable.
type nsInfo struct {
	id    nvme.IdentifyNamespace
	desc  nvme.NSDescriptors
	block int    // bytes
	count uint64 // blocks
	// Blocks of one command of each kind.
	transfer, zeroes, verify, discard uint64
	oncs                              uint16
}

// Namespaces opens every active namespace of the NVM command set.
func (c *Controller) Namespaces(ctx context.Context) ([]*Namespace, error) {
	nsids, err := c.ActiveNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	var list []*Namespace
	for _, nsid := range nsids {
		n, err := c.Namespace(ctx, nsid)
		if errors.Is(err, ErrNotSupported) || errors.Is(err, ErrNoNamespace) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// Namespace opens a namespace. The error matches ErrNoNamespace when it is not
// active, ErrNotSupported when it is of another command set, has metadata, or
// blocks larger than 64 KiB.
func (c *Controller) Namespace(ctx context.Context, nsid uint32) (*Namespace, error) {
	c.mu.Lock()
	n := c.namespaces[nsid]
	c.mu.Unlock()
	if n != nil && !n.gone.Load() {
		return n, nil
	}
	if !c.usable() {
		ctx, cancel := within(ctx, c.cfg.AdminTimeout)
		defer cancel()
		if err := c.waitLive(ctx, nil); err != nil {
			return nil, err
		}
	}
	info, err := c.examine(ctx, c.latest(), nsid)
	if err != nil {
		return nil, err
	}
	n = &Namespace{nsid: nsid, c: c, disp: c.disp, bounce: c.bounce}
	n.info.Store(info)
	c.mu.Lock()
	have := c.namespaces[nsid]
	if have == nil || have.gone.Load() {
		c.namespaces[nsid] = n
	}
	c.mu.Unlock()
	switch {
	case have == nil:
	case have.gone.Load():
		c.setAbsent(have, false) // nobody looks after it any more
	default:
		return have, nil
	}
	return n, nil
}

// maxBlock is the largest block that fits every way to move one.
const maxBlock = 64 << 10

// examine reads what there is to know of a namespace. a may be not installed
// yet.
func (c *Controller) examine(ctx context.Context, a *association, nsid uint32) (*nsInfo, error) {
	info := new(nsInfo)
	data, err := c.identify(ctx, nvme.CNSNamespace, nsid)
	if errors.Is(err, nvme.InvalidNamespace) {
		return nil, fmt.Errorf("%w: %d", ErrNoNamespace, nsid)
	}
	if err == nil {
		err = info.id.Unmarshal(data)
	}
	if err != nil {
		return nil, err
	}
	if info.id.NSZE == 0 {
		return nil, fmt.Errorf("%w: %d is not active", ErrNoNamespace, nsid)
	}
	data, err = c.identify(ctx, nvme.CNSDescriptors, nsid)
	if err == nil {
		err = info.desc.Unmarshal(data)
	}
	var status *nvme.StatusError
	if err != nil && !errors.As(err, &status) { // controllers before 1.3 do not have them
		return nil, err
	}
	if err := info.complete(a); err != nil {
		return nil, fmt.Errorf("namespace %d: %w", nsid, err)
	}
	return info, nil
}

// identify is Identify without waiting for a live controller.
func (c *Controller) identify(ctx context.Context, cns nvme.CNS, nsid uint32) ([]byte, error) {
	cmd, data := newCommand(), make([]byte, nvme.IdentifySize)
	cmd.Identify().Init(cns, nsid, nvme.CSINVM, 0)
	if _, err := c.run(ctx, cmd, data, c.cfg.AdminTimeout); err != nil {
		return nil, fmt.Errorf("Identify %v: %w", cns, err)
	}
	return data, nil
}

// complete judges the namespace and works out the limits of its commands.
func (i *nsInfo) complete(a *association) error {
	format := i.id.Format()
	i.block, i.count, i.oncs = int(format.BlockSize()), i.id.NSZE, a.id.ONCS
	switch {
	case i.desc.HasCSI && i.desc.CSI != nvme.CSINVM:
		return fmt.Errorf("command set %v: %w", i.desc.CSI, ErrNotSupported)
	case i.block == 0:
		return fmt.Errorf("%w: no such LBA format (FLBAS %#x, LBADS %d)", ErrProtocol, i.id.FLBAS, format.LBADS())
	case format.MS() != 0:
		return fmt.Errorf("%d bytes of metadata in each block: %w", format.MS(), ErrNotSupported)
	case i.block > maxBlock || i.block > a.transfer:
		return fmt.Errorf("blocks of %d bytes: %w", i.block, ErrNotSupported)
	case i.count > uint64(math.MaxInt64)/uint64(i.block):
		return fmt.Errorf("%w: %d blocks of %d bytes", ErrProtocol, i.count, i.block)
	}
	const most = 1 << 16 // NLB has 16 bits
	limit := func(shift uint8, none uint64) uint64 {
		if shift == 0 || shift > 31 {
			return none
		}
		return max(min(uint64(4096)<<a.cap.MPSMIN()<<shift/uint64(i.block), most), 1)
	}
	i.transfer = min(uint64(a.transfer/i.block), most)
	i.zeroes = limit(a.idNVM.WZSL, i.transfer)
	i.verify = limit(a.idNVM.VSL, i.transfer)
	i.discard = math.MaxUint32
	if a.idNVM.DMRSL != 0 {
		i.discard = uint64(a.idNVM.DMRSL)
	}
	return nil
}

// same says whether o is of the namespace that i is of: no identifier that both
// have differs, and blocks have the same size.
func (i *nsInfo) same(o *nsInfo) bool {
	differ := func(a, b interface{ IsZero() bool }) bool { return !a.IsZero() && !b.IsZero() && a != b }
	switch {
	case differ(i.desc.UUID, o.desc.UUID), differ(i.desc.NGUID, o.desc.NGUID), differ(i.desc.EUI64, o.desc.EUI64):
		return false
	case differ(i.id.NGUID, o.id.NGUID), differ(i.id.EUI64, o.id.EUI64):
		return false
	}
	return i.block == o.block
}

// recheck brings the namespaces that are open up to date: after a reconnect,
// before any I/O is sent, and when the controller says that something changed.
func (c *Controller) recheck(ctx context.Context) error {
	c.mu.Lock()
	open := make([]*Namespace, 0, len(c.namespaces))
	for _, n := range c.namespaces {
		open = append(open, n)
	}
	for _, n := range c.attached {
		open = append(open, n)
	}
	c.mu.Unlock()
	for _, n := range open {
		if err := c.recheckOne(ctx, n); err != nil {
			return fmt.Errorf("namespace %d: %w", n.nsid, err)
		}
	}
	c.changed()
	return nil
}

// recheckOne fails only when nothing could be found out.
func (c *Controller) recheckOne(ctx context.Context, n *Namespace) error {
	a := c.building.Load()
	if a == nil {
		a = c.latest()
	}
	info, err := c.examine(ctx, a, n.nsid)
	have := n.info.Load()
	switch {
	case errors.Is(err, ErrNoNamespace), errors.Is(err, ErrNotSupported):
		c.log().Warnf("initiator: %v: namespace %d: %v", c, n.nsid, err)
	case err != nil:
		return err
	case !have.same(info):
		c.log().Warnf("initiator: %v: namespace %d is another one now", c, n.nsid)
	default:
		c.setAbsent(n, false)
		n.update(info)
		n.gone.Store(false)
		return nil
	}
	c.setAbsent(n, true)
	n.gone.Store(n.disp.absent(n))
	return nil
}

// update takes over what changed. The limits of a Multipath's namespace are
// those that hold on every path.
func (n *Namespace) update(info *nsInfo) {
	for {
		have := n.info.Load()
		next := *info
		if n.shared {
			next.transfer, next.zeroes = min(next.transfer, have.transfer), min(next.zeroes, have.zeroes)
			next.verify, next.discard = min(next.verify, have.verify), min(next.discard, have.discard)
			next.oncs &= have.oncs
		}
		if n.info.CompareAndSwap(have, &next) {
			return
		}
	}
}

// setAbsent notes whether a namespace is missing on this controller.
func (c *Controller) setAbsent(n *Namespace, absent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*Namespace
	if have := c.absent.Load(); have != nil {
		list = slices.DeleteFunc(slices.Clone(*have), func(o *Namespace) bool { return o == n })
	}
	if absent {
		list = append(list, n)
	}
	if len(list) == 0 {
		c.absent.Store(nil)
		return
	}
	c.absent.Store(&list)
}

// lacks says whether a namespace is missing on this controller.
func (c *Controller) lacks(n *Namespace) bool {
	list := c.absent.Load()
	return list != nil && slices.Contains(*list, n)
}

// absent says whether a namespace is missing on every controller.
func (d *dispatcher) absent(n *Namespace) bool {
	for _, c := range *d.paths.Load() {
		if !c.lacks(n) {
			return false
		}
	}
	return true
}

// ID is the namespace's identifier.
func (n *Namespace) ID() uint32 { return n.nsid }

// Controller is the controller that the namespace was opened on; of a
// Multipath's namespace, one of them.
func (n *Namespace) Controller() *Controller { return n.c }

// Size is the size in bytes, as last heard.
func (n *Namespace) Size() int64 {
	i := n.info.Load()
	return int64(i.count) * int64(i.block)
}

// BlockSize is the size of a block in bytes: a power of two from 512 to 65536.
func (n *Namespace) BlockSize() int { return n.info.Load().block }

// Blocks is the number of blocks, as last heard.
func (n *Namespace) Blocks() uint64 { return n.info.Load().count }

// MaxTransfer is the number of bytes that one command may move, a multiple of
// the block size. ReadAt and WriteAt take any number.
func (n *Namespace) MaxTransfer() int {
	i := n.info.Load()
	return int(i.transfer) * i.block
}

// MaxDiscard is the number of bytes that one Dataset Management command may
// deallocate, a multiple of the block size. Discard takes any number.
func (n *Namespace) MaxDiscard() int64 {
	i := n.info.Load()
	return int64(i.discard) * int64(i.block)
}

// MaxWriteZeroes is the number of bytes that one Write Zeroes command may clear,
// a multiple of the block size. WriteZeroes takes any number.
func (n *Namespace) MaxWriteZeroes() int64 {
	i := n.info.Load()
	return int64(i.zeroes) * int64(i.block)
}

// Identity is Identify Namespace, and the namespace's identifiers, as last
// heard.
func (n *Namespace) Identity() (nvme.IdentifyNamespace, nvme.NSDescriptors) {
	i := n.info.Load()
	return i.id, i.desc
}

// supports looks a bit of ONCS up.
func (n *Namespace) supports(bit uint16) bool { return n.info.Load().oncs&bit != 0 }

// CanDiscard says whether Discard works (ONCS).
func (n *Namespace) CanDiscard() bool { return n.supports(nvme.ONCSDSM) }

// CanWriteZeroes says whether WriteZeroes works (ONCS).
func (n *Namespace) CanWriteZeroes() bool { return n.supports(nvme.ONCSWriteZeroes) }

// CanCompare says whether Compare works (ONCS).
func (n *Namespace) CanCompare() bool { return n.supports(nvme.ONCSCompare) }

// CanVerify says whether Verify works (ONCS).
func (n *Namespace) CanVerify() bool { return n.supports(nvme.ONCSVerify) }

// Refresh reads the namespace's size anew, which also happens whenever the
// controller says that it has changed.
func (n *Namespace) Refresh(ctx context.Context) error {
	for _, c := range *n.disp.paths.Load() {
		if !c.usable() {
			continue
		}
		if err := c.recheckOne(ctx, n); err != nil {
			return err
		}
	}
	return n.check()
}

// check fails when the namespace cannot be used any more.
func (n *Namespace) check() error {
	if n.gone.Load() {
		return fmt.Errorf("namespace %d: %w", n.nsid, ErrNamespaceChanged)
	}
	return nil
}

// shift is the block size as a power of two.
func (i *nsInfo) shift() int { return bits.TrailingZeros(uint(i.block)) }
