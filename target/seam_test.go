package target

import "testing"

func TestHasControllerOfNone(t *testing.T) {
	tgt, err := NewTarget(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tgt.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for _, id := range []uint16{0, 1, 0xFFFF} {
		if tgt.HasController(id) {
			t.Errorf("controller %d", id)
		}
	}
	(&Queue{}).Fail(nil) // a queue without a controller has nothing to fail
}
