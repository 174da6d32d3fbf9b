package fabric

import (
	"testing"
	"unsafe"
)

// The sizes are shared with C and promised to be free of pointers.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"SGE", unsafe.Sizeof(SGE{}), 16},
		{"SendWR", unsafe.Sizeof(SendWR{}), 32},
		{"RecvWR", unsafe.Sizeof(RecvWR{}), 16},
		{"Completion", unsafe.Sizeof(Completion{}), 32},
		{"DatagramWR", unsafe.Sizeof(DatagramWR{}), 32},
		{"Completion.SrcQPN", unsafe.Offsetof(Completion{}.SrcQPN), 28},
		{"AtomicWR", unsafe.Sizeof(AtomicWR{}), 48},
		{"SendWR.FirstSGE", unsafe.Offsetof(SendWR{}.FirstSGE), 24},
		{"SendWR.Op", unsafe.Offsetof(SendWR{}.Op), 29},
		{"Completion.Status", unsafe.Offsetof(Completion{}.Status), 24},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, c.got, c.want)
		}
	}
}

func TestMemory(t *testing.T) {
	before := LiveMemory()
	m, err := AllocMemory(5000)
	if err != nil {
		t.Fatal(err)
	}
	if m.Len()%4096 != 0 || m.Len() < 5000 || m.Addr()%4096 != 0 {
		t.Errorf("len %d addr %#x", m.Len(), m.Addr())
	}
	m.Bytes()[4999] = 1
	if LiveMemory() != before+int64(m.Len()) {
		t.Error("LiveMemory does not count it")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if LiveMemory() != before {
		t.Error("LiveMemory after close")
	}
	if _, err := AllocMemory(0); err == nil {
		t.Error("size 0 was allowed")
	}
}
