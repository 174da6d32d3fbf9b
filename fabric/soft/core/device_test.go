package core

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

func TestDeviceReferences(t *testing.T) {
	finished := 0
	d := NewDevice("dev0", testLimits(), nil, func() { finished++ })
	if !d.Acquire() {
		t.Fatal("Acquire of an open device")
	}
	cq := newCQ(t, d, 8, nil, nil)
	if err := d.Close(); err != nil {
		t.Fatalf("not the last reference: %v", err)
	}
	var op *fabric.OpError
	if err := d.Close(); !errors.Is(err, fabric.ErrBusy) || !errors.As(err, &op) || op.Device != "dev0" {
		t.Fatalf("the last with a CQ open: %v", err)
	}
	if err := cq.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil || finished != 1 {
		t.Fatalf("the last: %v, finish called %d times", err, finished)
	}
	if err := d.Close(); err != nil || finished != 1 || d.Acquire() {
		t.Errorf("once more: %v, finish called %d times", err, finished)
	}
	if _, open := <-d.Events(); open {
		t.Error("the events' channel is open")
	}
	d.Emit(fabric.Event{}) // dropped
	if err := new(CQ).Init(d, 8, nil, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a CQ of a closed device: %v", err)
	}
	if !errors.Is(d.Fault(), net.ErrClosed) {
		t.Errorf("fault %v", d.Fault())
	}
}

func TestDeviceRelease(t *testing.T) {
	d := NewDevice("dev0", testLimits(), nil, nil)
	cq := newCQ(t, d, 8, nil, nil)
	d.Release() // the user forgot the CQ
	if d.Acquire() || cq.Close() != nil {
		t.Error("the device is open, or its CQ cannot be closed")
	}
	d.Release()
}

func TestDeviceBreak(t *testing.T) {
	d := newDevice(t, nil)
	cq := newCQ(t, d, 8, nil, nil)
	gone := errors.New("pulled")
	d.Break(gone)
	m := memory(t, 1)
	if _, err := d.Register(m, 0); !errors.Is(err, gone) || !errors.Is(d.Fault(), gone) {
		t.Errorf("register: %v, fault: %v", err, d.Fault())
	}
	if err := cq.Close(); err != nil {
		t.Errorf("close of what exists: %v", err)
	}
}

func TestDeviceRegister(t *testing.T) {
	d := newDevice(t, nil)
	m, large := memory(t, 4096), memory(t, 1<<20+1)
	if _, err := d.Register(large, 0); !errors.Is(err, fabric.ErrInvalid) {
		t.Errorf("larger than MaxMRSize: %v", err)
	}
	if _, err := d.Register(nil, 0); !errors.Is(err, fabric.ErrInvalid) || d.Counts().MRs != 0 {
		t.Errorf("nil: %v, %+v", err, d.Counts())
	}
	var last fabric.MemoryRegion
	for range 4 {
		mr, err := d.Register(m, 0)
		if err != nil || mr.Memory() != m || mr.LKey() != mr.RKey() {
			t.Fatalf("%+v, %v", mr, err)
		}
		last = mr
	}
	if _, err := d.Register(m, 0); !errors.Is(err, fabric.ErrQueueFull) {
		t.Errorf("more than MaxMR: %v", err)
	}
	if errors.Join(last.Close(), last.Close()) != nil || d.Counts().MRs != 3 {
		t.Errorf("%+v", d.Counts())
	}
}

func TestDeviceEvents(t *testing.T) {
	d := newDevice(t, nil)
	for i := range eventBacklog + 5 {
		d.Emit(fabric.Event{Kind: fabric.EventPortDown, Port: uint8(i)})
	}
	for i := range eventBacklog {
		if e := <-d.Events(); e.Port != uint8(i) || e.Device != "dev0" || e.Kind != fabric.EventPortDown {
			t.Fatalf("event %d: %+v", i, e)
		}
	}
	select {
	case e := <-d.Events():
		t.Errorf("more than fit: %+v", e)
	default:
	}
}

func TestConn(t *testing.T) {
	var got []error
	var c Conn
	c.Init(func(err error) { got = append(got, err) })
	if c.Err() != nil {
		t.Error("Err of a new connection")
	}
	cause := errors.New("cause")
	if !c.Finish(cause) || c.Finish(errors.New("later")) {
		t.Error("not the first Finish counts")
	}
	<-c.Done()
	if !errors.Is(c.Err(), cause) || len(got) != 1 || !errors.Is(got[0], cause) {
		t.Errorf("Err %v, Closed was given %v", c.Err(), got)
	}
	var quiet Conn
	quiet.Init(nil)
	quiet.Finish(nil)
	<-quiet.Done()
}

// Finish may be called from anywhere at once, from inside Closed too.
func TestConnFinishOnce(t *testing.T) {
	for range 50 {
		var c Conn
		calls := 0
		c.Init(func(error) {
			calls++
			c.Finish(errors.New("again"))
		})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { c.Finish(net.ErrClosed) })
		}
		wg.Wait()
		<-c.Done()
		if calls != 1 || !errors.Is(c.Err(), net.ErrClosed) {
			t.Fatalf("%d calls, %v", calls, c.Err())
		}
	}
}

func TestMailbox(t *testing.T) {
	var m Mailbox
	m.Run()
	var wg sync.WaitGroup
	next := make([]int, 4)
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				m.Send(func() {
					if next[g] != i {
						t.Errorf("sender %d: %d, want %d", g, i, next[g])
					}
					next[g]++
				})
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		m.Run()
	}
	m.Run()
	for g, n := range next {
		if n != 500 {
			t.Errorf("sender %d: %d were run", g, n)
		}
	}
}
