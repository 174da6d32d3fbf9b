package target

import (
	"bytes"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

func TestReadWhatWasWritten(t *testing.T) {
	r, _, ios := standard(t, 2)
	data := bytes.Repeat([]byte("nvmf"), 8*512/4)
	r.ok(ios[0], blockCmd(nvme.CmdWrite, 1, 5, 8, nvme.IOFUA), data, len(data))
	f := r.ok(ios[1], blockCmd(nvme.CmdRead, 1, 5, 8, 0), nil, len(data))
	if !bytes.Equal(f.in, data) {
		t.Error("read something else")
	}
	if op := r.devices["one"].takeTrace()[0]; op.Kind != backend.Write || !op.FUA {
		t.Errorf("backend got %+v: FUA is lost", op)
	}
}
