package initiator

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
)

// fake is a target that answers from a script: a good one by default, whatever a
// test wants otherwise.
type fake struct {
	t     testing.TB
	ctx   context.Context
	net   *fabrictest.Network
	hosts *fabrictest.Provider
	addr  netip.AddrPort
	log   *logBuffer

	script
	scripts sync.RWMutex // guards script once something is connected

	connects  atomic.Int32 // admin queues ever connected
	shutdowns atomic.Int32 // CC.SHN seen
	commands  atomic.Int32 // of I/O queues

	mu    sync.Mutex
	disk  []byte
	conns map[*fakeConn]struct{}
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// script is what a fake does.
type script struct {
	// request judges a connection request: nil accepts, else the private data
	// of the rejection.
	request func(nvme.CMRequest) []byte
	accept  fabric.ConnConfig // ORD and PrivateData
	cap     nvme.Capabilities
	csts    func(reads int) nvme.ControllerStatus
	id      func(*nvme.IdentifyController)
	ns      func(*nvme.IdentifyNamespace)
	desc    nvme.NSDescriptors
	nsids   []uint32
	queues  nvme.NumQueues
	logs    func(nvme.LogRequest) []byte
	// command sees every command first. It returns the answer, or nil for the
	// usual one.
	command func(fc *fakeConn, cmd nvme.Command) *answer
}

// set changes the script while things go on.
func (f *fake) set(change func(*script)) {
	f.scripts.Lock()
	defer f.scripts.Unlock()
	change(&f.script)
}

// obey sets what sees every command first.
func (f *fake) obey(fn func(*fakeConn, nvme.Command) *answer) {
	f.set(func(s *script) { s.command = fn })
}

// judge sets what judges connection requests.
func (f *fake) judge(fn func(nvme.CMRequest) []byte) { f.set(func(s *script) { s.request = fn }) }

// now is the script.
func (f *fake) now() script {
	f.scripts.RLock()
	defer f.scripts.RUnlock()
	return f.script
}

const (
	fakeBlocks  = 1 << 12
	fakeRecv    = nvme.SQESize + 8192
	fakeDepth   = 64
	fakeData    = 1 << 20
	fakeCNTLID  = 7
	fakeSubsys  = nvme.NQN("nqn.2026-11.io.nvmf:fake")
	fakeTimeout = time.Hour // virtual, mostly
)

// answer is what the fake sends for a command.
type answer struct {
	status nvme.Status
	result uint64
	data   []byte // for the host, first
	// What is wrong with it:
	silent bool          // nothing is sent
	cid    int           // instead of the command's, when not 0
	sqid   uint16        // added to the queue's
	short  int           // bytes of the capsule, when not 0
	times  int           // sent so often; 0 is once
	late   time.Duration // sent so much later
	inv    bool          // as SEND with invalidate
	key    uint32        // of the invalidate, added to the command's
	cut    bool          // the connection is cut instead
}

func newFake(t testing.TB) *fake {
	ctx, cancel := context.WithTimeout(context.Background(), fakeTimeout)
	f := &fake{
		t: t, ctx: ctx, net: fabrictest.NewNetwork(fabrictest.Options{}), log: &logBuffer{},
		script: script{
			cap:   nvme.Capabilities(0).WithMQES(127).WithCQR(true).WithTO(10).WithCSS(nvme.CapCSSNVM),
			csts:  func(int) nvme.ControllerStatus { return nvme.ControllerStatus(0).WithRDY(true) },
			nsids: []uint32{1}, queues: nvme.MakeNumQueues(4, 4),
			desc: nvme.NSDescriptors{UUID: nvme.UUID{1, 2, 3}},
		},
		disk: make([]byte, fakeBlocks*512), conns: make(map[*fakeConn]struct{}),
	}
	f.accept.ORD = 4
	f.hosts = f.net.NewProvider(fabrictest.DeviceOptions{Name: "host0", Addrs: []netip.Addr{hostIP}, PadPrivateData: true})
	targets := f.net.NewProvider(fabrictest.DeviceOptions{Name: "fake0", Addrs: targetIPs, PadPrivateData: true})
	f.addr = targetAddr(0)
	before := fabric.LiveMemory()
	for i := range targetIPs {
		l, err := targets.Listen(ctx, targetAddr(i), fabric.ListenConfig{})
		f.must(err)
		f.wg.Go(func() {
			f.acceptAll(l, i)
			_ = l.Close()
		})
	}
	f.stop = cancel
	t.Cleanup(func() {
		cancel()
		f.wg.Wait()
		if live := fabric.LiveMemory(); live != before {
			t.Errorf("%d bytes of registered memory leaked", live-before)
		}
		dev, err := f.hosts.Open("host0")
		f.must(err)
		if n := dev.Counts(); n != (fabric.ObjectCounts{}) {
			t.Errorf("left open on the host's device: %+v", n)
		}
		f.must(dev.Close())
		if t.Failed() && testing.Verbose() {
			t.Log(f.log.b.String())
		}
	})
	return f
}

func (f *fake) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// config is a Config for the fake, with short times.
func (f *fake) config(change ...func(*Config)) Config {
	cfg := Config{
		Addr: f.addr, Subsystem: fakeSubsys, HostNQN: hostNQN, IOQueues: 1, QueueDepth: 16, Log: f.log.logger(),
		ConnectTimeout: 200 * time.Millisecond, ReconnectDelay: 10 * time.Millisecond, MaxReconnectDelay: 200 * time.Millisecond,
		ReadyTimeout: 100 * time.Millisecond, ShutdownTimeout: 100 * time.Millisecond, ReplayDelay: -1,
		AdminTimeout: 2 * time.Second, IOTimeout: 2 * time.Second, Spin: -1,
	}
	for _, fn := range change {
		fn(&cfg)
	}
	return cfg
}

func (f *fake) connect(change ...func(*Config)) *Controller {
	f.t.Helper()
	c, err := Connect(f.ctx, f.hosts, f.config(change...))
	f.must(err)
	f.t.Cleanup(func() { f.must(c.Close()) })
	return c
}

func (f *fake) acceptAll(l fabric.Listener, portal int) {
	for {
		r, err := l.Accept(f.ctx)
		if err != nil {
			return
		}
		var req nvme.CMRequest
		if err := req.Unmarshal(r.PrivateData()); err != nil {
			f.t.Error(err)
		}
		if judge := f.now().request; judge != nil {
			if private := judge(req); private != nil {
				_ = r.Reject(private)
				continue
			}
		}
		f.wg.Go(func() { f.serve(r, req, portal) })
	}
}

// fakeConn is a connection of the fake, run by one goroutine.
type fakeConn struct {
	f      *fake
	req    nvme.CMRequest
	cq     fabric.CompletionQueue
	conn   fabric.Conn
	qp     fabric.QueuePair
	mem    *fabric.Memory
	mr     fabric.MemoryRegion
	wake   chan struct{}
	done   map[uint64]fabric.Status // sends that have completed
	next   uint64
	got    []fabric.Completion // capsules not yet looked at
	csts   int                 // reads of CSTS
	shut   bool
	parked nvme.Command // an event request
	tell   chan nvme.AsyncEvent
	late   []lateAnswer

	portal  int    // that the host came through
	capsule []byte // data of the capsule at hand
}

type lateAnswer struct {
	at  time.Time
	cmd nvme.Command
	a   answer
}

func (f *fake) serve(r fabric.Request, req nvme.CMRequest, portal int) {
	dev := r.Device()
	fc := &fakeConn{f: f, req: req, portal: portal, tell: make(chan nvme.AsyncEvent, 8), wake: make(chan struct{}, 1), done: make(map[uint64]fabric.Status)}
	var err error
	fc.cq, err = dev.NewCompletionQueue(1024, func() {
		select {
		case fc.wake <- struct{}{}:
		default:
		}
	})
	f.must(err)
	fc.mem, err = fabric.AllocMemory(fakeDepth*fakeRecv + fakeData)
	f.must(err)
	fc.mr, err = dev.Register(fc.mem, fabric.AccessLocalWrite)
	f.must(err)
	defer func() {
		_ = fc.cq.Close()
		_ = fc.mr.Close()
		_ = fc.mem.Close()
	}()
	cfg := f.now().accept
	cfg.SendCQ, cfg.RecvCQ, cfg.SendDepth, cfg.RecvDepth = fc.cq, fc.cq, 256, fakeDepth
	cfg.RetryCount, cfg.RNRRetry = 7, 7
	if cfg.PrivateData == nil {
		cfg.PrivateData = make([]byte, nvme.CMAcceptSize)
		(&nvme.CMAccept{CRQSize: fakeDepth}).MarshalTo(cfg.PrivateData)
	}
	cfg.Setup = func(qp fabric.QueuePair) error {
		fc.qp = qp
		for i := range uint64(fakeDepth) {
			fc.recv(i)
		}
		return nil
	}
	if fc.conn, err = r.Accept(f.ctx, cfg); err != nil {
		return
	}
	f.mu.Lock()
	f.conns[fc] = struct{}{}
	f.mu.Unlock()
	fc.run()
	f.mu.Lock()
	delete(f.conns, fc)
	f.mu.Unlock()
	_ = fc.conn.Close()
}

// cutAll cuts every connection, cutPortal those of a portal.
func (f *fake) cutAll() {
	for i := range targetIPs {
		f.cutPortal(i)
	}
}

// emit sends an event to every host of a portal.
func (f *fake) emit(portal int, e nvme.AsyncEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fc := range f.conns {
		if fc.portal == portal && fc.req.QID == 0 {
			fc.tell <- e
			select {
			case fc.wake <- struct{}{}:
			default:
			}
		}
	}
}

func (f *fake) cutPortal(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fc := range f.conns {
		if fc.portal == i {
			_ = fc.conn.Disconnect()
		}
	}
}

func (fc *fakeConn) recv(i uint64) {
	_, _ = fc.qp.PostRecv([]fabric.RecvWR{{ID: i << 1, NumSGE: 1}},
		[]fabric.SGE{{Addr: fc.mem.Addr() + i*fakeRecv, Length: fakeRecv, LKey: fc.mr.LKey()}})
}

func (fc *fakeConn) run() {
	for fc.conn.Err() == nil && fc.f.ctx.Err() == nil {
		fc.poll()
		for len(fc.got) > 0 {
			c := fc.got[0]
			fc.got = fc.got[1:]
			i := c.ID >> 1
			capsule := append([]byte(nil), fc.mem.Bytes()[i*fakeRecv:][:c.ByteLen]...)
			fc.recv(i)
			fc.handle(capsule[:nvme.SQESize], capsule[nvme.SQESize:])
		}
		fc.sendLate()
		if fc.parked != nil && len(fc.tell) > 0 {
			cmd := fc.parked
			fc.parked = nil
			fc.reply(cmd, &answer{result: uint64(<-fc.tell)})
		}
		_ = fc.cq.Arm()
		if fc.poll() > 0 {
			continue
		}
		select {
		case <-fc.wake:
		case <-fc.conn.Done():
		case <-fc.f.ctx.Done():
		case <-time.After(fc.untilLate()):
		}
	}
}

func (fc *fakeConn) untilLate() time.Duration {
	wait := time.Hour
	for _, l := range fc.late {
		wait = min(wait, time.Until(l.at))
	}
	return max(wait, 0)
}

func (fc *fakeConn) sendLate() {
	var keep []lateAnswer
	for _, l := range fc.late {
		if time.Now().Before(l.at) {
			keep = append(keep, l)
			continue
		}
		l.a.late = 0
		fc.reply(l.cmd, &l.a)
	}
	fc.late = keep
}

func (fc *fakeConn) poll() int {
	var wc [16]fabric.Completion
	n, _ := fc.cq.Poll(wc[:])
	for _, c := range wc[:n] {
		switch {
		case c.ID&1 == 1:
			fc.done[c.ID] = c.Status
		case c.Status == fabric.StatusSuccess:
			fc.got = append(fc.got, c)
		}
	}
	return n
}

var errFakeConn = errors.New("connection ended")

// post posts one send and waits for its end.
func (fc *fakeConn) post(wr fabric.SendWR, off, n int) error {
	fc.next += 2
	wr.ID, wr.Flags = fc.next|1, fabric.FlagSignaled
	var sges []fabric.SGE
	if n > 0 {
		wr.NumSGE = 1
		sges = []fabric.SGE{{Addr: fc.mem.Addr() + uint64(fakeDepth*fakeRecv+off), Length: uint32(n), LKey: fc.mr.LKey()}}
	}
	if _, err := fc.qp.PostSend([]fabric.SendWR{wr}, sges); err != nil {
		return err
	}
	for {
		if st, ok := fc.done[wr.ID]; ok {
			delete(fc.done, wr.ID)
			if st != fabric.StatusSuccess {
				return errFakeConn
			}
			return nil
		}
		if fc.conn.Err() != nil || fc.f.ctx.Err() != nil {
			return errFakeConn
		}
		if fc.poll() == 0 {
			time.Sleep(10 * time.Microsecond)
		}
	}
}

// data is the memory for data.
func (fc *fakeConn) data(n int) []byte { return fc.mem.Bytes()[fakeDepth*fakeRecv:][:n] }

// fetch brings the data of a command.
func (fc *fakeConn) fetch(cmd nvme.Command, capsule []byte) []byte {
	s := cmd.SGL1()
	if s.InCapsule() {
		return capsule[:s.Length()]
	}
	n := int(s.KeyedLength())
	if n == 0 || fc.post(fabric.SendWR{Op: fabric.OpRead, RemoteAddr: s.Address(), RKey: s.Key()}, 0, n) != nil {
		return nil
	}
	return append([]byte(nil), fc.data(n)...)
}

func (fc *fakeConn) handle(cmd nvme.Command, capsule []byte) {
	if fc.req.QID != 0 {
		fc.f.commands.Add(1)
	}
	var a *answer
	fc.capsule = capsule
	if fn := fc.f.now().command; fn != nil {
		a = fn(fc, cmd)
	}
	if a == nil {
		a = fc.usual(cmd, capsule)
	}
	fc.reply(cmd, a)
}

// reply sends an answer, with all that is wrong with it.
func (fc *fakeConn) reply(cmd nvme.Command, a *answer) {
	if a.late > 0 {
		fc.late = append(fc.late, lateAnswer{time.Now().Add(a.late), cmd, *a})
		return
	}
	if a.cut {
		_ = fc.conn.Disconnect()
		return
	}
	if s := cmd.SGL1(); len(a.data) > 0 && s.Keyed() {
		n := copy(fc.data(fakeData), a.data[:min(len(a.data), int(s.KeyedLength()))])
		_ = fc.post(fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: s.Address(), RKey: s.Key()}, 0, n)
	}
	if a.silent {
		return
	}
	cid := cmd.CID()
	if a.cid != 0 {
		cid = uint16(a.cid)
	}
	n := nvme.CQESize
	if a.short != 0 {
		n = a.short
	}
	for range max(a.times, 1) {
		nvme.Completion(fc.data(nvme.CQESize)).Put(a.result, 1, fc.req.QID+a.sqid, cid, a.status)
		wr := fabric.SendWR{Op: fabric.OpSend}
		if a.inv {
			wr = fabric.SendWR{Op: fabric.OpSendInv, RKey: cmd.SGL1().Key() + a.key}
		}
		if fc.post(wr, 0, n) != nil {
			return
		}
	}
}

// usual is what a good target does.
func (fc *fakeConn) usual(cmd nvme.Command, capsule []byte) *answer {
	if cmd.Opcode() == nvme.CmdFabrics {
		return fc.fabrics(cmd, capsule)
	}
	if fc.req.QID != 0 {
		return fc.io(cmd, capsule)
	}
	switch cmd.Opcode() {
	case nvme.AdminIdentify:
		return fc.identify(cmd)
	case nvme.AdminSetFeatures:
		fc.fetch(cmd, capsule)
		if cmd.Features().FID() == nvme.FeatNumQueues {
			return &answer{result: uint64(fc.f.now().queues)}
		}
		return &answer{}
	case nvme.AdminAsyncEvent:
		fc.parked = append(nvme.Command(nil), cmd...)
		return &answer{silent: true}
	case nvme.AdminGetLogPage:
		r := cmd.GetLogPage().Request()
		if fc.f.now().logs == nil {
			return &answer{data: make([]byte, r.Length)}
		}
		return &answer{data: fc.f.now().logs(r)}
	case nvme.AdminKeepAlive, nvme.AdminGetFeatures:
		return &answer{}
	}
	return &answer{status: nvme.InvalidOpcode | nvme.StatusDNR}
}

func (fc *fakeConn) fabrics(cmd nvme.Command, capsule []byte) *answer {
	switch cmd.FCType() {
	case nvme.FabricsConnect:
		fc.fetch(cmd, capsule)
		if fc.req.QID == 0 {
			fc.f.connects.Add(1)
		}
		return &answer{result: uint64(fakeCNTLID + fc.portal)}
	case nvme.FabricsPropertySet:
		if nvme.Configuration(cmd.Property().Value()).SHN() != nvme.ShutdownNone {
			fc.shut = true
			fc.f.shutdowns.Add(1)
		}
		return &answer{}
	}
	switch cmd.Property().Offset() {
	case nvme.PropCAP:
		return &answer{result: uint64(fc.f.now().cap)}
	case nvme.PropVS:
		return &answer{result: uint64(nvme.MakeVersion(1, 4, 0))}
	case nvme.PropCSTS:
		s := fc.f.now().csts(fc.csts)
		fc.csts++
		if fc.shut {
			s = s.WithSHST(nvme.ShutdownComplete)
		}
		return &answer{result: uint64(s)}
	}
	return &answer{status: nvme.InvalidField | nvme.StatusDNR}
}

func (fc *fakeConn) identify(cmd nvme.Command) *answer {
	data := make([]byte, nvme.IdentifySize)
	switch cmd.Identify().CNS() {
	case nvme.CNSController:
		id := nvme.IdentifyController{
			CNTLID: uint16(fakeCNTLID + fc.portal), VER: nvme.MakeVersion(1, 4, 0), KAS: 10, MAXCMD: 128, NN: 16, MDTS: 5,
			SGLS: nvme.SGLSSupported | nvme.SGLSKeyed | nvme.SGLSOffset, IOCCSZ: (64 + 4096) / 16, IORCSZ: 1,
			OAES: nvme.EventNSAttribute, ONCS: nvme.ONCSDSM, ELPE: 3,
		}
		if fc.f.now().id != nil {
			fc.f.now().id(&id)
		}
		id.MarshalTo(data)
	case nvme.CNSNamespace:
		id := nvme.IdentifyNamespace{NSZE: fakeBlocks, NCAP: fakeBlocks}
		id.LBAF[0] = nvme.MakeLBAFormat(9, 0, 0)
		if fc.f.now().ns != nil {
			fc.f.now().ns(&id)
		}
		id.MarshalTo(data)
	case nvme.CNSDescriptors:
		desc := fc.f.now().desc
		desc.MarshalTo(data)
	case nvme.CNSActiveList:
		nvme.NSList(data).Put(fc.f.now().nsids)
	default:
		return &answer{status: nvme.InvalidField | nvme.StatusDNR}
	}
	return &answer{data: data}
}

func (fc *fakeConn) io(cmd nvme.Command, capsule []byte) *answer {
	f := fc.f
	switch cmd.Opcode() {
	case nvme.CmdFlush, nvme.CmdDatasetManagement:
		fc.fetch(cmd, capsule)
		return &answer{}
	case nvme.CmdRead, nvme.CmdWrite, nvme.CmdCompare:
	default:
		return &answer{status: nvme.InvalidOpcode | nvme.StatusDNR}
	}
	off, n := cmd.SLBA()*512, uint64(cmd.NLB())*512
	if off > uint64(len(f.disk)) || n > uint64(len(f.disk))-off {
		return &answer{status: nvme.LBAOutOfRange | nvme.StatusDNR}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if cmd.Opcode() == nvme.CmdRead {
		return &answer{data: append([]byte(nil), f.disk[off:][:n]...)}
	}
	copy(f.disk[off:][:n], fc.fetch(cmd, capsule))
	return &answer{}
}
