package null_test

import (
	"errors"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/null"
)

func TestConformance(t *testing.T) {
	backendtest.Conformance(t, backendtest.Harness{
		Open: func(t testing.TB, s backendtest.Spec) backend.Device {
			d, err := null.Open(null.Options{Size: s.Size(), BlockSize: s.BlockSize, ReadOnly: s.ReadOnly})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Resize: func(t testing.TB, d backend.Device, blocks uint64) {
			if err := d.(*null.Device).Resize(blocks * uint64(d.Info().BlockSize)); err != nil {
				t.Fatal(err)
			}
		},
		Forgets: true,
	})
}

func TestSkipReads(t *testing.T) {
	d, err := null.Open(null.Options{Size: 1 << 50, SkipReads: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Info().ZeroAfterDiscard {
		t.Error("says that reads give zeroes after a discard")
	}
	r := backendtest.NewRig(t, d, 1)
	buf := []byte{4095: 7}
	r.MustDo(backend.Op{Kind: backend.Read, Offset: 1<<50 - 4096, Length: 4096, Bufs: [][]byte{buf}})
	if buf[4095] != 7 {
		t.Error("the buffer was touched")
	}
	if err := r.Queue.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []null.Options{{}, {Size: 100}, {Size: 4096, BlockSize: 4095}, {Size: 1 << 63}} {
		var oe *backend.OptionError
		if _, err := null.Open(o); !errors.As(err, &oe) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	d, err := null.Open(null.Options{Size: 512, BlockSize: 512})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Resize(100); err == nil {
		t.Error("resized to part of a block")
	}
}
