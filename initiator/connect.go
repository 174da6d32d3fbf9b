package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// maxKeyed is the most that one command moves: a keyed descriptor has 24 bits
// of length.
const maxKeyed = 1<<24 - 4096

// Layout of the builder's scratch memory.
const (
	scratchIdentify = 0
	scratchConnect  = nvme.IdentifySize
	scratchSize     = 2 * nvme.IdentifySize
)

// builder makes an association, step by step. It is used by one goroutine: the
// caller of Connect, later the controller's manager.
type builder struct {
	c   *Controller
	a   *association
	cid uint16
	io  []*qconn // connected I/O queues that were not given to their owners
}

// build connects the controller: all of it, or an error, which is a
// *ConnectError.
func (c *Controller) build(ctx context.Context) (*association, error) {
	dom, err := c.devices.acquire(ctx, c.provider, c.cfg.LocalAddr, c.cfg.Addr.Addr(), c.invalidate())
	if err != nil {
		return nil, newConnectError(StageDevice, &c.cfg, 0, err)
	}
	if _, err := c.scratch.register(dom); err != nil {
		return nil, newConnectError(StageDevice, &c.cfg, 0, errors.Join(err, dom.release()))
	}
	b := &builder{c: c, a: c.newAssociation(dom)}
	c.building.Store(b.a)
	defer c.building.Store(nil)
	for _, step := range []struct {
		stage Stage
		run   func(context.Context) error
	}{
		{StageFabrics, b.connectAdmin},
		{StageQueues, b.configure},
		{StageQueues, b.connectIO},
		{StageQueues, b.listen},
		{StageNamespaces, c.recheck},
	} {
		if err := step.run(ctx); err != nil {
			if b.a.gone.Load() && errors.Is(err, ErrPathLost) {
				err = b.a.reason()
			}
			b.discard(err)
			return nil, newConnectError(step.stage, &c.cfg, 0, err)
		}
	}
	b.install()
	return b.a, nil
}

// discard ends an association that did not come about.
func (b *builder) discard(err error) {
	b.a.fail(err)
	for _, qc := range b.io {
		qc.close()
	}
	b.c.tearDown(b.a)
}

// within bounds a step.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%v have passed", d))
}

// connectAdmin connects the admin queue, enables the controller and learns what
// it is, then gives the queue to its engine.
func (b *builder) connectAdmin(ctx context.Context) error {
	qc, err := b.connectQueue(ctx, 0, adminDepth)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		stage Stage
		run   func(context.Context, *qconn) error
	}{{StageEnable, b.enable}, {StageIdentify, b.identify}} {
		if err := step.run(ctx, qc); err != nil {
			err = newConnectError(step.stage, &b.c.cfg, 0, err)
			b.a.fail(err)
			qc.close()
			return err
		}
	}
	b.give(b.c.admin.q, qc)
	return nil
}

// give hands a connection to the owner of its queue.
func (b *builder) give(q *queue, qc *qconn) {
	q.depth.Store(int32(qc.depth))
	q.next.Store(qc)
	q.w.Wake()
}

// connectQueue connects one queue: the RDMA connection and the Connect command.
func (b *builder) connectQueue(ctx context.Context, qid uint16, depth int) (*qconn, error) {
	ctx, cancel := within(ctx, b.c.cfg.ConnectTimeout)
	defer cancel()
	qc, err := b.a.dial(ctx, qid, depth)
	if err != nil {
		return nil, err
	}
	result, err := b.sendConnect(ctx, qc, depth)
	if err == nil {
		err = b.accepted(qid, nvme.ConnectResult(result))
	}
	if err != nil {
		err = newConnectError(StageFabrics, &b.c.cfg, qid, err)
		b.a.fail(err)
		qc.close()
		return nil, err
	}
	return qc, nil
}

// sendConnect sends Connect. Its data is keyed on the admin queue, for nothing
// is known of the controller's capsules before Identify.
func (b *builder) sendConnect(ctx context.Context, qc *qconn, depth int) (uint64, error) {
	cfg, r := &b.c.cfg, b.c.scratch.region(b.a.dom)
	attr, kato, cntlid := nvme.ConnectAttr(0), uint32(0), b.a.cntlid
	if cfg.DisableSQFlow {
		attr = nvme.ConnectDisableSQFlow
	}
	if qc.qid == 0 {
		kato, cntlid = cfg.katoMillis(), nvme.CNTLIDDynamic
	}
	data := b.c.scratch.Bytes()[scratchConnect:][:nvme.ConnectDataSize]
	nvme.ConnectData(data).Put(cfg.HostID, cntlid, cfg.Subsystem, cfg.HostNQN)
	cmd := b.command()
	cmd.Connect().Init(qc.qid, uint16(depth), attr, kato)
	cmd.SetCID(b.cid)
	addr := b.c.scratch.addr() + scratchConnect
	if qc.qid != 0 && b.a.inCapsule >= len(data) {
		cmd.SGL1().SetInCapsule(0, uint32(len(data)))
		return qc.exec(ctx, cmd, fabric.SGE{Addr: addr, Length: uint32(len(data)), LKey: r.lkey})
	}
	cmd.SGL1().SetKeyed(addr, uint32(len(data)), r.rkey, nvme.SGLAddress)
	return qc.exec(ctx, cmd, fabric.SGE{})
}

// accepted judges the result of a Connect that succeeded.
func (b *builder) accepted(qid uint16, r nvme.ConnectResult) error {
	switch {
	case r.AuthRequired():
		return errAuthentication
	case qid != 0 && r.CNTLID() != b.a.cntlid:
		return fmt.Errorf("%w: the queue is of controller %d, not %d", ErrProtocol, r.CNTLID(), b.a.cntlid)
	case r.CNTLID() > nvme.CNTLIDMax:
		return fmt.Errorf("%w: the controller ID %#x is reserved", ErrProtocol, r.CNTLID())
	}
	b.a.cntlid = r.CNTLID()
	return nil
}

// command is an empty SQE with a CID of its own.
func (b *builder) command() nvme.Command {
	b.cid++
	return make(nvme.Command, nvme.SQESize)
}

func (b *builder) propertyGet(ctx context.Context, qc *qconn, p nvme.Property) (uint64, error) {
	ctx, cancel := within(ctx, b.c.cfg.ConnectTimeout)
	defer cancel()
	cmd := b.command()
	cmd.Property().InitGet(p)
	cmd.SetCID(b.cid)
	v, err := qc.exec(ctx, cmd, fabric.SGE{})
	if err != nil {
		return 0, fmt.Errorf("read %v: %w", p, err)
	}
	if p.Size() == 4 {
		v &= 1<<32 - 1
	}
	return v, nil
}

func (b *builder) writeCC(ctx context.Context, qc *qconn, v nvme.Configuration) error {
	ctx, cancel := within(ctx, b.c.cfg.ConnectTimeout)
	defer cancel()
	cmd := b.command()
	cmd.Property().InitSet(nvme.PropCC, uint64(v))
	cmd.SetCID(b.cid)
	if _, err := qc.exec(ctx, cmd, fabric.SGE{}); err != nil {
		return fmt.Errorf("write %v: %w", nvme.PropCC, err)
	}
	return nil
}

// enable makes the controller ready.
func (b *builder) enable(ctx context.Context, qc *qconn) error {
	v, err := b.propertyGet(ctx, qc, nvme.PropCAP)
	if err != nil {
		return err
	}
	b.a.cap = nvme.Capabilities(v)
	if err := b.writeCC(ctx, qc, b.a.enabled()); err != nil {
		return err
	}
	if err := b.waitReady(ctx, qc); err != nil {
		return err
	}
	v, err = b.propertyGet(ctx, qc, nvme.PropVS)
	b.a.version = nvme.Version(v)
	return err
}

// enabled is the CC of a controller that is to work: entries of 64 and 16 bytes
// and the least page size.
func (a *association) enabled() nvme.Configuration {
	return nvme.Configuration(0).WithIOSQES(6).WithIOCQES(4).WithMPS(a.cap.MPSMIN()).WithCSS(commandSet(a.cap)).WithEN(true)
}

// commandSet is the CC.CSS for what CAP.CSS offers.
func commandSet(c nvme.Capabilities) uint8 {
	switch css := c.CSS(); {
	case css&nvme.CapCSSIOCS != 0:
		return nvme.CCCSSAll
	case css&nvme.CapCSSNVM == 0 && css&nvme.CapCSSNoIOC != 0:
		return nvme.CCCSSAdmin
	}
	return nvme.CCCSSNVM
}

// waitReady waits for CSTS.RDY as long as the controller may take, but not
// longer than Config.ReadyTimeout.
func (b *builder) waitReady(ctx context.Context, qc *qconn) error {
	bound := b.a.cap.Timeout() + 500*time.Millisecond
	if b.a.cap.CRMS()&nvme.CapCRWMS != 0 {
		v, err := b.propertyGet(ctx, qc, nvme.PropCRTO)
		if err != nil {
			return err
		}
		bound = max(bound, nvme.ReadyTimeouts(v).WithMedia())
	}
	ctx, cancel := within(ctx, min(bound, b.c.cfg.ReadyTimeout))
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		v, err := b.propertyGet(ctx, qc, nvme.PropCSTS)
		if err != nil {
			return err
		}
		switch csts := nvme.ControllerStatus(v); {
		case csts.CFS():
			return errors.New("the controller reports a fatal error (CSTS.CFS)")
		case csts.RDY():
			return nil
		}
		if err := sleep(ctx, qc.assoc.done, pause); err != nil {
			return fmt.Errorf("the controller does not become ready (CSTS.RDY): %w: %w", ErrTimeout, err)
		}
	}
}

// sleep waits for d, or until ctx ends or done is closed.
func sleep(ctx context.Context, done <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-done:
		return nil
	case <-ctx.Done():
		return ctxError(ctx)
	}
}

// identify reads Identify Controller and judges it.
func (b *builder) identify(ctx context.Context, qc *qconn) error {
	ctx, cancel := within(ctx, b.c.cfg.ConnectTimeout)
	defer cancel()
	data := b.c.scratch.Bytes()[scratchIdentify:][:nvme.IdentifySize]
	clear(data)
	cmd := b.command()
	cmd.Identify().Init(nvme.CNSController, 0, nvme.CSINVM, 0)
	cmd.SetCID(b.cid)
	cmd.SGL1().SetKeyed(b.c.scratch.addr()+scratchIdentify, nvme.IdentifySize, b.c.scratch.region(b.a.dom).rkey, nvme.SGLAddress)
	if _, err := qc.exec(ctx, cmd, fabric.SGE{}); err != nil {
		return err
	}
	if err := b.a.id.Unmarshal(data); err != nil {
		return err
	}
	if err := b.a.judge(b.c.discovery(&b.a.id)); err != nil {
		return err
	}
	b.a.derive()
	return nil
}

// discovery says whether the controller is one of a discovery service.
func (c *Controller) discovery(id *nvme.IdentifyController) bool {
	return c.cfg.discovery || c.cfg.Subsystem.IsDiscovery() || id.CNTRLTYPE == nvme.ControllerDiscovery
}

// judge refuses a controller that this host cannot work with.
func (a *association) judge(discovery bool) error {
	id := &a.id
	refuse := func(format string, v ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, v...)...)
	}
	switch {
	case id.CNTLID != a.cntlid:
		return refuse("mismatching controller ID: Connect said %d, Identify says %d", a.cntlid, id.CNTLID)
	case id.SGLS&nvme.SGLSKeyed == 0:
		return refuse("it does not support keyed SGLs (SGLS %#x), which RDMA needs", id.SGLS)
	case discovery:
		return nil
	case id.KAS == 0 && a.ctrl.cfg.KeepAlive > 0:
		return refuse("it does not support keep alive (KAS 0), which fabrics demand")
	case id.IOCCSZ < nvme.SQESize/16:
		return refuse("I/O command capsules of %d bytes (IOCCSZ %d) do not hold a command", 16*uint64(id.IOCCSZ), id.IOCCSZ)
	case id.MAXCMD == 0:
		return refuse("it allows no commands at all (MAXCMD 0)")
	case a.cap.MQES() == 0:
		return refuse("it allows queues of one entry only (CAP.MQES 0)")
	}
	return nil
}

// derive works out the limits of I/O.
func (a *association) derive() {
	cfg, id := &a.ctrl.cfg, &a.id
	a.tbkas = id.CTRATT&nvme.CTRATTTBKAS != 0
	a.transfer = maxKeyed
	if shift := uint(id.MDTS) + 12 + uint(a.cap.MPSMIN()); id.MDTS > 0 && shift < 24 {
		a.transfer = 1 << shift
	}
	// Data at an offset behind the SQE, which is what ICDOFF means, is not
	// worth its trouble: it is keyed then.
	if id.SGLS&nvme.SGLSOffset != 0 && id.ICDOFF == 0 && !cfg.NoInCapsule && id.IOCCSZ > nvme.SQESize/16 {
		a.inCapsule = int(min(16*uint64(id.IOCCSZ)-nvme.SQESize, uint64(a.transfer)))
	}
	limits := a.dom.dev.Limits()
	a.ioDepth = min(cfg.QueueDepth, int(a.cap.MQES()), max(int(id.MAXCMD)-1, 1))
	if limits.MaxQPDepth > 0 {
		a.ioDepth = min(a.ioDepth, max((limits.MaxQPDepth-16)/4, 1))
	}
	if limits.MaxCQDepth > 0 {
		a.ioDepth = min(a.ioDepth, max((limits.MaxCQDepth-17)/5, 1))
	}
	if a.ioDepth < cfg.QueueDepth && cfg.IOQueues > 0 {
		a.ctrl.log().Debugf("initiator: queue depth %d instead of %d (MQES %d, MAXCMD %d)", a.ioDepth, cfg.QueueDepth, a.cap.MQES(), id.MAXCMD)
	}
	a.ioQueues = cfg.IOQueues
	if a.ctrl.discovery(id) {
		a.ioQueues = 0
	}
}

// configure tells the controller what this host can do and asks for queues.
func (b *builder) configure(ctx context.Context) error {
	b.a.startKeepAlive()
	if b.a.id.CRDT[0] != 0 {
		b.announceRetryDelay(ctx)
	}
	if b.a.ioQueues == 0 {
		return nil
	}
	cmd := b.command()
	cmd.Features().InitSet(nvme.FeatNumQueues, 0, uint32(nvme.MakeNumQueues(b.a.ioQueues, b.a.ioQueues)), false)
	v, err := b.c.run(ctx, cmd, nil, b.c.cfg.AdminTimeout)
	if err != nil {
		return fmt.Errorf("ask for %d I/O queues: %w", b.a.ioQueues, err)
	}
	granted := nvme.NumQueues(v)
	b.a.ioQueues = min(b.a.ioQueues, granted.SQ(), granted.CQ())
	b.readLimits(ctx)
	return nil
}

// announceRetryDelay lets the controller say when to retry (ACRE). One that
// does not know the feature goes without.
func (b *builder) announceRetryDelay(ctx context.Context) {
	data := make([]byte, nvme.HostBehaviorSize)
	(&nvme.HostBehavior{ACRE: 1}).MarshalTo(data)
	cmd := b.command()
	cmd.Features().InitSet(nvme.FeatHostBehavior, 0, 0, false)
	if _, err := b.c.run(ctx, cmd, data, b.c.cfg.AdminTimeout); err != nil {
		b.c.log().Debugf("initiator: advanced command retry: %v", err)
	}
}

// readLimits reads the limits of the commands that MDTS is not about. Old
// controllers do not have them.
func (b *builder) readLimits(ctx context.Context) {
	if b.a.version < nvme.MakeVersion(2, 0, 0) && b.a.cap.CSS()&nvme.CapCSSIOCS == 0 {
		return
	}
	cmd := b.command()
	cmd.Identify().Init(nvme.CNSControllerCS, 0, nvme.CSINVM, 0)
	data := make([]byte, nvme.IdentifySize)
	if _, err := b.c.run(ctx, cmd, data, b.c.cfg.AdminTimeout); err != nil {
		b.c.log().Debugf("initiator: Identify %v: %v", nvme.CNSControllerCS, err)
		return
	}
	_ = b.a.idNVM.Unmarshal(data) // fails for a wrong length only
}

// connectIO connects the I/O queues.
func (b *builder) connectIO(ctx context.Context) error {
	for qid := 1; qid <= b.a.ioQueues; qid++ {
		if b.a.gone.Load() {
			return b.a.reason()
		}
		qc, err := b.connectQueue(ctx, uint16(qid), b.a.ioDepth)
		if err != nil {
			return err
		}
		b.io = append(b.io, qc)
	}
	return nil
}

// listen asks for events.
func (b *builder) listen(ctx context.Context) error {
	wanted := b.a.id.OAES & (nvme.EventNSAttribute | nvme.EventFirmware | nvme.EventANA | nvme.EventDiscovery)
	if wanted != 0 {
		cmd := b.command()
		cmd.Features().InitSet(nvme.FeatAsyncEvent, 0, uint32(wanted), false)
		if _, err := b.c.run(ctx, cmd, nil, b.c.cfg.AdminTimeout); err != nil {
			if b.a.gone.Load() {
				return err
			}
			b.c.log().Warnf("initiator: %v: events %#x: %v", b.c, uint32(wanted), err)
		}
	}
	b.c.readANA(ctx, b.a)
	if b.a.gone.Load() {
		return b.a.reason()
	}
	return nil
}

// install makes the association the controller's.
func (b *builder) install() {
	for _, qc := range b.io {
		b.give(b.c.queues[qc.qid-1], qc)
	}
	b.c.installed(b.a)
	b.a.askForEvents()
}
