package initiator

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

func TestNamespaces(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	list, err := c.Namespaces(r.ctx)
	r.must(err)
	if len(list) != 2 || list[0].ID() != memNS || list[1].ID() != nullNS {
		t.Fatalf("%d namespaces", len(list))
	}
	if again := r.namespace(c, memNS); again != list[0] {
		t.Error("a namespace opened twice is two")
	}
	id, desc := list[0].Identity()
	if id.NSZE != memSize/memBlock || desc.UUID.IsZero() || list[0].Controller() != c {
		t.Errorf("%+v %+v", id.NSZE, desc)
	}
	if _, err := c.Namespace(r.ctx, 77); !errors.Is(err, ErrNoNamespace) {
		t.Errorf("a namespace that is not there: %v", err)
	}
	if _, err := c.Namespace(r.ctx, nvme.NSIDBroadcast); err == nil {
		t.Error("all namespaces opened as one")
	}
}

// What cannot be read and written as blocks is not opened.
func TestNamespaceHostile(t *testing.T) {
	for _, tt := range []struct {
		name string
		ns   func(*nvme.IdentifyNamespace)
		desc nvme.NSDescriptors
		want error
	}{
		{"inactive", func(i *nvme.IdentifyNamespace) { *i = nvme.IdentifyNamespace{} }, nvme.NSDescriptors{}, ErrNoNamespace},
		{"no block size", func(i *nvme.IdentifyNamespace) { i.LBAF[0] = 0 }, nvme.NSDescriptors{}, ErrProtocol},
		{"blocks of 2^255 bytes", func(i *nvme.IdentifyNamespace) { i.LBAF[0] = nvme.MakeLBAFormat(255, 0, 0) }, nvme.NSDescriptors{}, ErrProtocol},
		{"blocks of 2 GiB", func(i *nvme.IdentifyNamespace) { i.LBAF[0] = nvme.MakeLBAFormat(31, 0, 0) }, nvme.NSDescriptors{}, ErrNotSupported},
		{"a format that is not there", func(i *nvme.IdentifyNamespace) { i.FLBAS = 0x6F }, nvme.NSDescriptors{}, ErrProtocol},
		{"metadata", func(i *nvme.IdentifyNamespace) { i.LBAF[0] = nvme.MakeLBAFormat(9, 8, 0) }, nvme.NSDescriptors{}, ErrNotSupported},
		{"2^64-1 blocks", func(i *nvme.IdentifyNamespace) { i.NSZE = 1<<64 - 1 }, nvme.NSDescriptors{}, ErrProtocol},
		{"zones", func(*nvme.IdentifyNamespace) {}, nvme.NSDescriptors{CSI: nvme.CSIZNS, HasCSI: true}, ErrNotSupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				f.set(func(s *script) { s.ns, s.desc = tt.ns, tt.desc })
				c := f.connect()
				if _, err := c.Namespace(f.ctx, 1); !errors.Is(err, tt.want) {
					t.Errorf("%v, want %v", err, tt.want)
				}
				list, err := c.Namespaces(f.ctx)
				if len(list) != 0 || err != nil && !errors.Is(tt.want, ErrProtocol) {
					t.Errorf("listed %d, %v", len(list), err)
				}
			})
		})
	}
}

// A list of namespaces that does not ascend would never end.
func TestActiveNamespacesHostile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		full := make([]uint32, nvme.NSListMax)
		for i := range full {
			full[i] = uint32(i + 1)
		}
		f.set(func(s *script) { s.nsids = full })
		c := f.connect()
		if _, err := c.ActiveNamespaces(f.ctx); !errors.Is(err, ErrProtocol) {
			t.Errorf("the same list for ever: %v", err)
		}
		f.set(func(s *script) { s.nsids = []uint32{5, 4} })
		if _, err := c.ActiveNamespaces(f.ctx); !errors.Is(err, ErrProtocol) {
			t.Errorf("a list that descends: %v", err)
		}
		var mu sync.Mutex
		asked := 0
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if cmd.Opcode() != nvme.AdminIdentify || cmd.Identify().CNS() != nvme.CNSActiveList {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			asked++
			data, list := make([]byte, nvme.IdentifySize), []uint32(nil)
			for i := range uint32(1500) {
				if id := i*3 + 1; id > cmd.NSID() && len(list) < nvme.NSListMax {
					list = append(list, id)
				}
			}
			nvme.NSList(data).Put(list)
			return &answer{data: data}
		})
		list, err := c.ActiveNamespaces(f.ctx)
		if err != nil || len(list) != 1500 || !slices.IsSorted(list) || asked != 2 {
			t.Errorf("%d namespaces in %d lists, %v", len(list), asked, err)
		}
	})
}

// Namespaces that appear, grow, go and are replaced are noticed, and I/O to what
// is gone fails in words.
func TestNamespaceEvents(t *testing.T) {
	r := newRig(t, rigOptions{})
	var mu sync.Mutex
	changed := map[uint32]int{}
	c := r.connect(func(cfg *Config) {
		cfg.Handler.Namespaces = func(_ *Controller, nsids []uint32) {
			mu.Lock()
			defer mu.Unlock()
			for _, nsid := range nsids {
				changed[nsid]++
			}
		}
	})
	seen := func(nsid uint32) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			defer delete(changed, nsid)
			return changed[nsid] > 0
		}
	}
	add := func(size uint64, uuid nvme.UUID) *mem.Device {
		t.Helper()
		d, err := mem.Open(mem.Options{Size: size, BlockSize: 512})
		r.must(err)
		r.spaces = append(r.spaces, d)
		_, err = r.sub.AddNamespace(target.NamespaceConfig{NSID: 5, Device: d, UUID: uuid})
		r.must(err)
		return d
	}
	one, two := nvme.UUID{1}, nvme.UUID{2}
	add(1<<20, one)
	r.until("namespace 5 appears", seen(5))
	n := r.namespace(c, 5)
	p := make([]byte, 4096)
	_, err := n.WriteAt(p, 0)
	r.must(err)

	r.must(r.sub.RemoveNamespace(r.ctx, 5))
	r.until("namespace 5 goes", seen(5))
	if _, err := n.ReadAt(p, 0); !errors.Is(err, ErrNamespaceChanged) {
		t.Errorf("read of what is gone: %v", err)
	}
	if _, err := c.Namespace(r.ctx, 5); !errors.Is(err, ErrNoNamespace) {
		t.Errorf("open of what is gone: %v", err)
	}

	add(2<<20, one) // it comes back, larger
	r.until("namespace 5 comes back", seen(5))
	if _, err := n.ReadAt(p, 1<<20); err != nil || n.Size() != 2<<20 {
		t.Errorf("after it came back: %v, size %d", err, n.Size())
	}

	r.must(r.sub.RemoveNamespace(r.ctx, 5))
	r.until("namespace 5 goes again", seen(5))
	add(2<<20, two)
	r.until("another namespace 5 comes", seen(5))
	if _, err := n.ReadAt(p, 0); !errors.Is(err, ErrNamespaceChanged) {
		t.Errorf("read of what was replaced: %v", err)
	}
	if err := n.Refresh(r.ctx); !errors.Is(err, ErrNamespaceChanged) {
		t.Errorf("refresh of what was replaced: %v", err)
	}
	m := r.namespace(c, 5)
	if _, desc := m.Identity(); m == n || desc.UUID != two {
		t.Errorf("%+v", desc)
	}
	if _, err := m.ReadAt(p, 0); err != nil {
		t.Error(err)
	}
}

// A namespace that was replaced while the controller was away gets none of the
// writes that were meant for the old one.
func TestNamespaceReplacedWhileAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		c := f.connect(still)
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		f.obey(once(ioOp(nvme.CmdWrite), answer{cut: true}))
		f.set(func(s *script) { s.desc.UUID = nvme.UUID{9} })
		if _, err := n.WriteAt(make([]byte, 512), 0); !errors.Is(err, ErrNamespaceChanged) {
			t.Error(err)
		}
		if k := f.commands.Load(); k != 3 { // Connect, Write, Connect
			t.Errorf("%d commands", k)
		}
	})
}

// Events without end cost a round trip each, and nothing else suffers.
func TestEventFlood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if cmd.Opcode() == nvme.AdminAsyncEvent {
				return &answer{result: uint64(nvme.NSAttributeChanged)}
			}
			return nil
		})
		c := f.connect()
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		for range 200 {
			if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
				t.Fatal(err)
			}
		}
		if f.connects.Load() != 1 {
			t.Error("the association was lost")
		}
	})
}
