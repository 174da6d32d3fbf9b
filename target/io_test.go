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

// 256 ranges are more than the first buffer holds.
func TestDSMOfAllRanges(t *testing.T) {
	r, _, ios := standard(t, 1)
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.DSM().Init(1, nvme.DSMMaxRanges, nvme.DSMDeallocate)
	ranges := make(nvme.DSMRanges, nvme.DSMMaxRanges*nvme.DSMRangeSize)
	for i := range nvme.DSMMaxRanges {
		ranges.Set(i, nvme.DSMRange{SLBA: uint64(4 * i), Blocks: 2})
	}
	r.ok(ios[0], sqe, ranges, len(ranges))
	trace := r.devices["one"].takeTrace()
	if len(trace) != nvme.DSMMaxRanges {
		t.Fatalf("%d operations", len(trace))
	}
	for i, op := range trace {
		if op.Kind != backend.Discard || op.Offset != uint64(4*i)*512 || op.Length != 1024 {
			t.Errorf("operation %d is %+v", i, op)
		}
	}
}

// Data that was compared equal or not does not depend on how it is cut up.
func TestCompareFindsTheBlock(t *testing.T) {
	r, admin, ios := standard(t, 1)
	const nlb = 700
	data := make([]byte, nlb*512)
	for i := range data {
		data[i] = byte(i * 7)
	}
	r.ok(ios[0], blockCmd(nvme.CmdWrite, 1, 100, nlb, 0), data, len(data))
	for _, block := range []int{0, 1, 255, 256, 443, 511, 699} {
		data[block*512+5] ^= 1
		f := r.do(ios[0], blockCmd(nvme.CmdCompare, 1, 100, nlb, 0), data, len(data))
		if f.Status.Code() != nvme.CompareFailure {
			t.Errorf("block %d: %v", block, f.Status)
		}
		if e := r.latestError(admin); e.LBA != uint64(100+block) {
			t.Errorf("block %d: the error log has LBA %d", block, e.LBA)
		}
		data[block*512+5] ^= 1
	}
	r.ok(ios[0], blockCmd(nvme.CmdCompare, 1, 100, nlb, 0), data, len(data))
}

// A range that is out of the namespace is entered with where it begins.
func TestErrorLogNamesTheRange(t *testing.T) {
	r, admin, ios := standard(t, 1)
	const far = 1 << 40
	if f := r.do(ios[0], blockCmd(nvme.CmdRead, 1, far, 1, 0), nil, 512); f.Status.Code() != nvme.LBAOutOfRange {
		t.Fatalf("%v", f.Status)
	}
	if e := r.latestError(admin); e.LBA != far || e.NSID != 1 || e.Location != 40 {
		t.Errorf("%+v", e)
	}
}

// latestError reads the first entry of the error log.
func (r *rig) latestError(admin *fakeLink) (e nvme.ErrorEntry) {
	r.tb.Helper()
	log := make(nvme.Command, nvme.SQESize)
	log.GetLogPage().Init(0, nvme.LogRequest{LID: nvme.LogError, Length: nvme.ErrorEntrySize})
	r.must(e.Unmarshal(r.ok(admin, log, nil, nvme.ErrorEntrySize).in))
	return e
}
