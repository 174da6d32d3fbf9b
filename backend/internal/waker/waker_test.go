package waker

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestOneNotifyForOneArm(t *testing.T) {
	var notified atomic.Int32
	w := New(func() { notified.Add(1) })
	w.Wake()
	if notified.Load() != 0 {
		t.Error("notified without Arm")
	}
	for range 3 {
		w.Arm()
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(w.Wake)
	}
	all.Wait()
	if n := notified.Load(); n != 1 {
		t.Errorf("%d notifies", n)
	}
	w.Arm()
	w.Disarm()
	if w.Wake(); notified.Load() != 1 || w.Armed() {
		t.Error("notified after Disarm")
	}
}

func TestTakeOver(t *testing.T) {
	w := New(func() { t.Error("notified after TakeOver") })
	w.TakeOver()
	for range 3 {
		w.Arm()
		go w.Wake()
		w.Wait()
	}
}
