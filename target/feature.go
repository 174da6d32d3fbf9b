package target

import (
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Features (Base 5.15 and 5.27). None can be saved or is of a namespace; they
// go back to their defaults when the controller is reset. The values of each
// are in feature_values.go.

// featureView is the values that Get Features asks for: the current ones, or
// the defaults.
type featureView struct {
	c        *Controller
	f        *featureValues
	defaults bool
}

// feature is how a feature is read and written. Controller.mu is held.
type feature struct {
	// get is the value, of what cdw11 selects where that means something.
	get func(v featureView, cdw11 uint32) (uint64, bool)
	// set changes the value to r's; nil means that it cannot be changed.
	set func(c *Controller, r *Request) nvme.Status
	// data is the size of the value's data in bytes; 0 when the value is
	// dword 0 of the completion.
	data uint32
	// put fills the data, instead of get.
	put func(v featureView, b []byte)
	// discovery says that discovery controllers have it.
	discovery bool
}

// feature is the feature of an identifier, nil when this controller does not
// have it.
func (c *Controller) feature(id nvme.FeatureID) *feature {
	f := &features[id]
	switch {
	case f.get == nil && f.put == nil,
		c.discovery && !f.discovery,
		id == nvme.FeatWriteCache && !c.hasWriteCache():
		return nil
	}
	return f
}

// hasWriteCache says whether writes may be volatile in a namespace (VWC).
func (c *Controller) hasWriteCache() bool {
	return c.sub.table.Load().any(func(n *Namespace) bool { return n.info.WriteCache })
}

func prepareGetFeatures(q *Queue, r *Request) (Transfer, nvme.Status) {
	cmd := r.Cmd.Features()
	f := q.ctrl.feature(cmd.FID())
	switch {
	case f == nil:
		return Transfer{}, r.bad(nvme.InvalidField, locCDW10, 0)
	case cmd.SEL() > nvme.SelectSupported:
		return Transfer{}, r.bad(nvme.InvalidField, locCDW10+1, 0)
	case f.data == 0 || cmd.SEL() == nvme.SelectSupported:
		return Transfer{}, nvme.Success
	case cmd.FID() == nvme.FeatHostID && cmd.Value()&nvme.EXHID == 0:
		return Transfer{}, r.bad(nvme.InvalidField, locCDW11, 0) // fabrics have 128-bit ones only
	case r.SGLLength != uint64(f.data):
		return Transfer{}, r.bad(nvme.DataSGLLengthInvalid, locSGL, 0)
	}
	return Transfer{Dir: ControllerToHost, Length: f.data}, nvme.Success
}

func executeGetFeatures(q *Queue, r *Request) {
	c, cmd := q.ctrl, r.Cmd.Features()
	f := c.feature(cmd.FID())
	if f == nil {
		q.finish(r, r.bad(nvme.InvalidField, locCDW10, 0))
		return
	}
	if cmd.SEL() == nvme.SelectSupported {
		r.Result = uint64(f.capabilities())
		q.finish(r, nvme.Success)
		return
	}
	q.finish(r, c.getFeature(q.group.page[:f.data], f, cmd, r))
}

func (f *feature) capabilities() (caps nvme.FeatureCapabilities) {
	if f.set != nil {
		caps |= nvme.FeatureChangeable
	}
	return caps
}

// getFeature puts the value into the result, or into r's data by way of page.
// What is not saveable has its default as the saved value (Base 5.15).
func (c *Controller) getFeature(page []byte, f *feature, cmd nvme.FeatureCommand, r *Request) nvme.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := featureView{c: c, f: &c.features}
	if cmd.SEL() != nvme.SelectCurrent {
		v.f, v.defaults = defaultFeatures(), true
	}
	if f.put != nil {
		clear(page)
		f.put(v, page)
		scatter(r.Bufs, page)
		r.DataLength = f.data
		return nvme.Success
	}
	value, ok := f.get(v, cmd.Value())
	if !ok {
		return r.bad(nvme.InvalidField, locCDW11, 0)
	}
	r.Result = value
	return nvme.Success
}

func prepareSetFeatures(q *Queue, r *Request) (Transfer, nvme.Status) {
	cmd := r.Cmd.Features()
	f := q.ctrl.feature(cmd.FID())
	switch {
	case f == nil:
		return Transfer{}, r.bad(nvme.InvalidField, locCDW10, 0)
	case cmd.SV():
		return Transfer{}, r.bad(nvme.FeatureNotSaveable, locCDW10+3, 7)
	case cmd.NSID() != 0 && cmd.NSID() != nvme.NSIDBroadcast:
		return Transfer{}, r.bad(nvme.FeatureNotNamespace, locNSID, 0)
	case cmd.FID() == nvme.FeatHostID:
		return Transfer{}, nvme.CommandSequenceError | nvme.StatusDNR // Connect has set it
	case f.set == nil:
		return Transfer{}, r.bad(nvme.FeatureNotChangeable, locCDW10, 0)
	case f.data == 0:
		return Transfer{}, nvme.Success
	case r.SGLLength != uint64(f.data):
		return Transfer{}, r.bad(nvme.DataSGLLengthInvalid, locSGL, 0)
	}
	return Transfer{Dir: HostToController, Length: f.data}, nvme.Success
}

func executeSetFeatures(q *Queue, r *Request) {
	c := q.ctrl
	f := c.feature(r.Cmd.Features().FID())
	if f == nil {
		q.finish(r, r.bad(nvme.InvalidField, locCDW10, 0))
		return
	}
	c.mu.Lock()
	st := f.set(c, r)
	c.mu.Unlock()
	q.finish(r, st)
	c.deliverEvents() // a threshold may have been passed, or an event unmasked
}

// setKeepAlive refuses 0: the RDMA transport demands a keep alive.
func setKeepAlive(c *Controller, r *Request) nvme.Status {
	ms := r.Cmd.Features().Value()
	if ms == 0 {
		return r.bad(nvme.KeepAliveInvalid, locCDW11, 0)
	}
	c.startKeepAliveLocked(ms)
	return nvme.Success
}

func getKeepAlive(v featureView, _ uint32) (uint64, bool) {
	switch {
	case !v.defaults:
		return uint64(v.c.kato / time.Millisecond), true
	case v.c.discovery:
		return uint64(DiscoveryTimeout / time.Millisecond), true
	}
	return 0, true
}
