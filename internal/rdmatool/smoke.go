package rdmatool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// SmokeConfig says what Smoke tries.
type SmokeConfig struct {
	Device  string        // "" means the first that is up and has an address
	Address netip.Addr    // one of the device's; invalid means its first, link-local last
	Timeout time.Duration // for each step; 0 means 10 s
}

// Step is one step of a trial.
type Step struct {
	Name    string        `json:"name"`
	Detail  string        `json:"detail,omitempty"`
	Skipped string        `json:"skipped,omitempty"` // why the device cannot do it
	Error   string        `json:"error,omitempty"`
	Took    time.Duration `json:"took_ns"`
}

// SmokeResult is a trial that has ended.
type SmokeResult struct {
	Device    string        `json:"device"`
	Provider  string        `json:"provider"`
	Transport string        `json:"transport"`
	Address   string        `json:"address"`
	Steps     []Step        `json:"steps"`
	Took      time.Duration `json:"took_ns"`
}

// WriteJSON writes the result as one indented object.
func (r *SmokeResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// errSkip is what a step returns that the device cannot do.
type errSkip string

func (e errSkip) Error() string { return string(e) }

// Smoke makes everything there is on one device, connects it with itself over
// its own address, moves data in every way that the device has, verifies it,
// takes all down, and checks that nothing is left. Each step goes to report,
// which may be nil, as it ends. The error is that of the step that failed; what
// the steps before it made is taken down all the same.
func Smoke(ctx context.Context, p fabric.Provider, cfg SmokeConfig, report func(Step)) (*SmokeResult, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	s := &smoke{ctx: ctx, p: p, cfg: cfg, report: report, result: &SmokeResult{Provider: p.Name()}}
	start := time.Now()
	err := s.run()
	s.result.Took = time.Since(start)
	return s.result, err
}

// smoke is a trial.
type smoke struct {
	ctx    context.Context
	p      fabric.Provider
	cfg    SmokeConfig
	report func(Step)
	result *SmokeResult

	dev    fabric.Device
	addr   netip.Addr
	before fabric.ObjectCounts
	wake   chan struct{}
	a, b   *party // a dials, b accepts
}

func (s *smoke) run() error {
	err := s.steps([]step{
		{"open the device", s.open},
		{"allocate and register memory", s.register},
		{"make completion queues", s.makeQueues},
		{"listen, dial, accept: two queue pairs", s.connect},
		{"SEND", s.send},
		{"SEND inline", s.sendInline},
		{"SEND with immediate", s.sendImm},
		{"RDMA WRITE", s.write},
		{"RDMA WRITE with immediate", s.writeImm},
		{"RDMA READ", s.read},
		{"atomic FETCH AND ADD", s.fetchAdd},
		{"atomic COMPARE AND SWAP", s.compareSwap},
		{"memory window: bind, WRITE through it", s.window},
		{"SEND with invalidate of the window", s.sendInvalidate},
		{"disconnect: all receives are flushed", s.disconnect},
	})
	if s.dev == nil {
		return err
	}
	if downErr := s.steps([]step{{"take down, count what is left", s.takeDown}}); err == nil {
		err = downErr
	}
	return err
}

type step struct {
	name string
	run  func(context.Context) (detail string, err error)
}

func (s *smoke) steps(list []step) error {
	for _, st := range list {
		if err := s.step(st); err != nil {
			return err
		}
	}
	return nil
}

func (s *smoke) step(st step) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Timeout)
	defer cancel()
	start := time.Now()
	detail, err := st.run(ctx)
	out := Step{Name: st.name, Detail: detail, Took: time.Since(start)}
	var skip errSkip
	switch {
	case errors.As(err, &skip):
		out.Skipped, err = string(skip), nil
	case err != nil:
		out.Error = err.Error()
		err = fmt.Errorf("%s: %w", st.name, err)
	}
	s.result.Steps = append(s.result.Steps, out)
	if s.report != nil {
		s.report(out)
	}
	return err
}

// open chooses the device and the address.
func (s *smoke) open(context.Context) (string, error) {
	info, err := s.choose()
	if err != nil {
		return "", err
	}
	s.result.Device, s.result.Transport = info.Name, info.Transport.String()
	if s.addr, err = chooseAddr(info, s.cfg.Address); err != nil {
		return "", err
	}
	s.result.Address = s.addr.String()
	if s.dev, err = s.p.Open(info.Name); err != nil {
		return "", err
	}
	s.before = s.dev.Counts()
	return fmt.Sprintf("%s (%s, %v) at %v", info.Name, s.p.Name(), info.Transport, s.addr), nil
}

func (s *smoke) choose() (fabric.DeviceInfo, error) {
	infos, err := s.p.Devices()
	if err != nil {
		return fabric.DeviceInfo{}, err
	}
	var names []string
	for _, i := range infos {
		if s.cfg.Device == i.Name || s.cfg.Device == "" && i.PortUp && len(i.Addrs) > 0 {
			return i, nil
		}
		name := i.Name
		if i.Note != "" {
			name += ": " + i.Note
		}
		names = append(names, name)
	}
	switch {
	case len(infos) == 0:
		l := List([]Source{{Name: s.p.Name(), Provider: s.p}})
		return fabric.DeviceInfo{}, fmt.Errorf("%w: %s", fabric.ErrNoDevice, l.Absent[0].Reason)
	case s.cfg.Device == "":
		return fabric.DeviceInfo{}, fmt.Errorf("%w is up and has an address (devices: %s)", fabric.ErrNoDevice, strings.Join(names, "; "))
	}
	return fabric.DeviceInfo{}, fmt.Errorf("%w %q (devices: %s)", fabric.ErrNoDevice, s.cfg.Device, strings.Join(names, "; "))
}

func chooseAddr(info fabric.DeviceInfo, want netip.Addr) (netip.Addr, error) {
	var linkLocal netip.Addr
	for _, a := range info.Addrs {
		switch {
		case want.IsValid() && a == want:
			return a, nil
		case want.IsValid():
		case a.IsLinkLocalUnicast():
			linkLocal = a
		default:
			return a, nil
		}
	}
	if want.IsValid() {
		return want, fmt.Errorf("%w: %s has %v, not %v", fabric.ErrAddrNotAvailable, info.Name, info.Addrs, want)
	}
	if linkLocal.IsValid() {
		return linkLocal, nil
	}
	return want, fmt.Errorf("%w: %s has no address: give %s one", fabric.ErrAddrNotAvailable, info.Name, orDash(info.NetDev))
}

func (s *smoke) register(context.Context) (string, error) {
	s.wake = make(chan struct{}, 1)
	for _, p := range []**party{&s.a, &s.b} {
		*p = &party{s: s}
		if err := (*p).register(); err != nil {
			return "", err
		}
	}
	huge := ""
	if s.a.mem.Huge() {
		huge = ", in huge pages"
	}
	return fmt.Sprintf("2 x %s%s", size(uint64(s.a.mem.Len())), huge), nil
}

func (s *smoke) makeQueues(context.Context) (string, error) {
	for _, p := range []*party{s.a, s.b} {
		var err error
		if p.cq, err = s.dev.NewCompletionQueue(4*depth, s.notify); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("2 x %d completions", 4*depth), nil
}

// notify is called by the provider when either CQ has something.
func (s *smoke) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *smoke) connect(ctx context.Context) (string, error) {
	l, err := s.p.Listen(ctx, netip.AddrPortFrom(s.addr, 0), fabric.ListenConfig{})
	if err != nil {
		return "", err
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() { accepted <- s.accept(ctx, l) }()
	s.a.conn, err = s.dev.Dial(ctx, netip.AddrPort{}, l.Addr(), s.a.config("request"))
	if err != nil {
		l.Close() // ends the goroutine
		return "", fmt.Errorf("%w (accept: %w)", err, <-accepted)
	}
	if err := <-accepted; err != nil {
		return "", err
	}
	if got := s.a.conn.PrivateData(); !strings.HasPrefix(string(got), "reply") {
		return "", fmt.Errorf("the private data of the reply is %q", got)
	}
	qa, qb := s.a.conn.QueuePair(), s.b.conn.QueuePair()
	return fmt.Sprintf("qp %d %v -> qp %d %v, reads %d/%d, inline %d", qa.Num(), s.a.conn.LocalAddr(), qb.Num(), s.a.conn.RemoteAddr(),
		s.a.conn.ORD(), s.a.conn.IRD(), qa.MaxInline()), nil
}

func (s *smoke) accept(ctx context.Context, l fabric.Listener) error {
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(r.PrivateData()), "request") {
		return errors.Join(fmt.Errorf("the private data of the request is %q", r.PrivateData()), r.Reject(nil))
	}
	s.b.conn, err = r.Accept(ctx, s.b.config("reply"))
	return err
}

// disconnect ends the connection in order and takes the flushes of both ends.
func (s *smoke) disconnect(ctx context.Context) (string, error) {
	if err := s.a.conn.Disconnect(); err != nil {
		return "", err
	}
	flushed := 0
	for _, p := range []*party{s.a, s.b} {
		for p.posted > 0 {
			c, err := p.next(ctx)
			if err != nil {
				return "", err
			}
			if c.Status != fabric.StatusFlushed {
				return "", fmt.Errorf("a receive completed as %v", c.Status)
			}
			p.posted--
			flushed++
		}
		select {
		case <-p.conn.Done():
		case <-ctx.Done():
			return "", fmt.Errorf("%w: one end does not know of the disconnect", fabric.ErrTimeout)
		}
	}
	return fmt.Sprintf("%d flushed", flushed), nil
}

// takeDown closes whatever exists, in the order that package fabric asks for.
func (s *smoke) takeDown(context.Context) (string, error) {
	var errs []error
	for _, p := range []*party{s.a, s.b} {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	if left := s.dev.Counts(); left != s.before {
		errs = append(errs, fmt.Errorf("open objects are left: %+v, %+v before", left, s.before))
	}
	errs = append(errs, s.dev.Close())
	return "nothing", errors.Join(errs...)
}
