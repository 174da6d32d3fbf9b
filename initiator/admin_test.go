package initiator

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Everything typed, against our own target.
func TestAdmin(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	ctx := r.ctx
	id, err := c.IdentifyController(ctx)
	r.must(err)
	if id.CNTLID != c.ID() || *id != *c.Identity() || c.Version() == 0 || c.Capabilities().MQES() == 0 {
		t.Errorf("controller %d, %d, version %v", id.CNTLID, c.ID(), c.Version())
	}
	ns, err := c.IdentifyNamespace(ctx, memNS)
	r.must(err)
	if ns.NSZE != memSize/memBlock {
		t.Errorf("%d blocks", ns.NSZE)
	}
	if _, err := c.IdentifyNamespace(ctx, 55); !errors.Is(err, ErrNoNamespace) {
		t.Error(err)
	}
	if _, err := c.IdentifyNamespace(ctx, 1<<20); !errors.Is(err, ErrNoNamespace) {
		t.Error(err)
	}
	desc, err := c.NamespaceDescriptors(ctx, memNS)
	r.must(err)
	if desc.UUID.IsZero() {
		t.Error("no UUID")
	}
	list, err := c.ActiveNamespaces(ctx)
	r.must(err)
	if len(list) != 2 {
		t.Errorf("%v", list)
	}
	smart, err := c.SMARTLog(ctx, nvme.NSIDBroadcast)
	r.must(err)
	if smart.Temperature == 0 {
		t.Error("a temperature of 0 K")
	}
	_, err = c.FirmwareLog(ctx)
	r.must(err)
	pages, err := c.SupportedLogs(ctx)
	r.must(err)
	if pages.At(nvme.LogSMART)&nvme.LogPageSupported == 0 {
		t.Error("the SMART log is not supported")
	}
	features, err := c.SupportedFeatures(ctx)
	r.must(err)
	if features.At(nvme.FeatKeepAlive)&nvme.FeatureSupported == 0 {
		t.Error("keep alive is not supported")
	}
	effects, err := c.EffectsLog(ctx, nvme.CSINVM)
	r.must(err)
	if effects.IO(nvme.CmdRead)&nvme.EffectSupported == 0 {
		t.Error("Read is not supported")
	}
	_, err = c.ChangedNamespaces(ctx)
	r.must(err)
	kato, err := c.GetFeature(ctx, nvme.FeatKeepAlive, nvme.SelectCurrent, 0, 0, nil)
	r.must(err)
	if kato != 5000 {
		t.Errorf("keep alive %d", kato)
	}
	_, err = c.SetFeature(ctx, nvme.FeatKeepAlive, 0, 7000, false, nil)
	r.must(err)
	if kato, err = c.GetFeature(ctx, nvme.FeatKeepAlive, nvme.SelectCurrent, 0, 0, nil); err != nil || kato != 7000 {
		t.Errorf("keep alive %d, %v", kato, err)
	}
	host := make([]byte, 16)
	_, err = c.GetFeature(ctx, nvme.FeatHostID, nvme.SelectCurrent, 0, nvme.EXHID, host)
	r.must(err)
	if want := c.Status().HostID; !bytes.Equal(host, want[:]) {
		t.Errorf("host ID %x, want %v", host, want)
	}
	v, err := c.PropertyGet(ctx, nvme.PropVS)
	r.must(err)
	if nvme.Version(v) != c.Version() {
		t.Errorf("version %v", nvme.Version(v))
	}
	if err := c.PropertySet(ctx, nvme.PropVS, 0); !errors.Is(err, nvme.InvalidField) {
		t.Errorf("VS was set: %v", err)
	}
	if d, err := c.Ping(ctx); err != nil || d <= 0 {
		t.Errorf("ping %v, %v", d, err)
	}
	// What was refused above is in the error log.
	entries, err := c.ErrorLog(ctx, 0)
	r.must(err)
	if len(entries) == 0 || entries[0].Count == 0 {
		t.Errorf("%d errors", len(entries))
	}
	if few, err := c.ErrorLog(ctx, 1); err != nil || len(few) != 1 {
		t.Errorf("%d errors, %v", len(few), err)
	}
}

func TestAdminPassthrough(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	cmd, data := newCommand(), make([]byte, nvme.IdentifySize)
	cmd.Identify().Init(nvme.CNSController, 0, 0, 0)
	_, err := c.Admin(r.ctx, cmd, data)
	r.must(err)
	var id nvme.IdentifyController
	r.must(id.Unmarshal(data))
	if id.CNTLID != c.ID() {
		t.Errorf("controller %d", id.CNTLID)
	}
	cmd.Init(0xC5, 0)
	var se *nvme.StatusError
	if _, err = c.Admin(r.ctx, cmd, nil); !errors.As(err, &se) || !errors.Is(err, nvme.InvalidOpcode) || !se.Admin || se.Opcode != 0xC5 {
		t.Errorf("%v", err)
	}
	if _, err = c.Admin(r.ctx, cmd[:63], nil); err == nil {
		t.Error("63 bytes were taken for a command")
	}
	if _, err = c.Admin(r.ctx, cmd, make([]byte, 2<<20)); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if _, err = c.LogPage(r.ctx, 0, nvme.LogRequest{LID: nvme.LogSMART, Length: 513}); err == nil {
		t.Error("a log of 513 bytes was asked for")
	}
	if _, err = c.LogPage(r.ctx, 0, nvme.LogRequest{LID: nvme.LogSMART, Length: 1 << 40}); err == nil {
		t.Error("a log of 1 TiB was asked for")
	}
}

// More commands than the admin queue holds: all are answered.
func TestAdminQueueFull(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	errs := make(chan error, 200)
	for range cap(errs) {
		go func() {
			_, err := c.IdentifyController(r.ctx)
			errs <- err
		}()
	}
	for range cap(errs) {
		r.must(<-errs)
	}
}

// An admin command in flight when the association is lost fails; one that is
// given while the controller is away waits for it.
func TestAdminWhileAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		c := f.connect(still, func(c *Config) { c.AdminTimeout = 3 * time.Second })
		f.obey(once(func(_ *fakeConn, cmd nvme.Command) bool { return cmd.Opcode() == nvme.AdminGetFeatures }, answer{cut: true}))
		get := func() error {
			_, err := c.GetFeature(f.ctx, nvme.FeatKeepAlive, 0, 0, 0, nil)
			return err
		}
		if err := get(); !errors.Is(err, ErrPathLost) {
			t.Errorf("in flight: %v", err)
		}
		time.Sleep(time.Second)
		f.judge(func(nvme.CMRequest) []byte { return []byte{} })
		f.cutAll()
		time.AfterFunc(2*time.Second, func() { f.judge(nil) })
		time.Sleep(time.Millisecond)
		start := time.Now()
		if err := get(); err != nil || time.Since(start) < 1900*time.Millisecond {
			t.Errorf("while away: %v after %v", err, time.Since(start))
		}
		f.judge(func(nvme.CMRequest) []byte { return []byte{} })
		f.cutAll()
		time.Sleep(time.Millisecond)
		start = time.Now()
		if err := get(); !errors.Is(err, errNotLive) || time.Since(start) != 3*time.Second {
			t.Errorf("away too long: %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithCancel(f.ctx)
		time.AfterFunc(time.Second, cancel)
		if _, err := c.GetFeature(ctx, nvme.FeatKeepAlive, 0, 0, 0, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		if err := c.Reset(f.ctx); !errors.Is(err, ErrPathLost) {
			t.Errorf("reset while away: %v", err)
		}
	})
}
