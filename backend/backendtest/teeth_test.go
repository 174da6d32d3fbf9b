package backendtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/mem"
)

// broken is a queue that breaks one promise.
type broken struct {
	backend.Queue
	fault string
	count int
	one   [1]backend.Op
}

func (q *broken) Submit(ops []backend.Op) int {
	for i := range ops {
		op := ops[i]
		switch q.count++; {
		case q.fault == "loses a write" && op.Kind == backend.Write && q.count%7 == 0:
			op = backend.Op{ID: op.ID, Kind: backend.Flush}
		case q.fault == "writes the first buffer only" && op.Kind == backend.Write && len(op.Bufs) > 1:
			op.Bufs, op.Length = op.Bufs[:1], uint64(len(op.Bufs[0]))
		case q.fault == "zeroes a block more" && op.Kind == backend.WriteZeroes && op.Offset > 0:
			op.Offset, op.Length = op.Offset-512, op.Length+512
		case q.fault == "refuses FUA" && op.FUA:
			op = backend.Op{ID: op.ID, Kind: backend.NumKinds}
		case q.fault == "allows everything":
			q.Queue.Submit([]backend.Op{{ID: op.ID, Kind: backend.Flush}})
			continue
		case q.fault == "allocates":
			op.Bufs = append([][]byte{}, op.Bufs...)
		}
		q.one[0] = op
		if q.Queue.Submit(q.one[:]) == 0 {
			if q.fault == "takes more than it can" {
				return len(ops)
			}
			return i
		}
	}
	return len(ops)
}

func (q *broken) Reap(done []backend.Completion) int {
	n := q.Queue.Reap(done)
	switch q.count++; {
	case q.fault == "completes twice" && n > 0 && n < len(done):
		done[n] = done[0]
		n++
	case q.fault == "loses a completion" && q.count%11 == 0 && n > 0:
		n--
	}
	return n
}

func (q *broken) Arm() {
	if q.count++; q.fault != "loses a notify" || q.count%13 != 0 {
		q.Queue.Arm()
	}
}

type brokenDevice struct {
	backend.Device
	fault string
}

func (d brokenDevice) NewQueue(depth int, notify func()) (backend.Queue, error) {
	if d.fault == "notifies without Arm" {
		wake := notify
		notify = func() { wake(); wake() }
	}
	q, err := d.Device.NewQueue(depth, notify)
	if err != nil {
		return nil, err
	}
	return &broken{Queue: q, fault: d.fault}, nil
}

func (d brokenDevice) Info() backend.Info {
	i := d.Device.Info()
	if d.fault == "hides that it is read-only" {
		i.ReadOnly = false
	}
	return i
}

// TestBroken is run by TestTeeth, in a process of its own.
func TestBroken(t *testing.T) {
	fault := os.Getenv("BACKENDTEST_FAULT")
	if fault == "" {
		t.Skip("for TestTeeth")
	}
	patience = 500 * time.Millisecond
	Conformance(t, Harness{Open: func(t testing.TB, s Spec) backend.Device {
		d, err := mem.Open(mem.Options{Size: s.Size(), BlockSize: s.BlockSize, ReadOnly: s.ReadOnly})
		if err != nil {
			t.Fatal(err)
		}
		return brokenDevice{d, strings.TrimSpace(fault)}
	}})
}

// Each broken promise has to fail the suite, and in the part that is about it;
// an honest device under the same wrapper has to pass.
func TestTeeth(t *testing.T) {
	for fault, part := range map[string]string{
		" ":                            "",
		"loses a write":                "model",
		"writes the first buffer only": "transfers",
		"zeroes a block more":          "model",
		"refuses FUA":                  "durability",
		"allows everything":            "range",
		"takes more than it can":       "full_queue",
		"completes twice":              "transfers",
		"loses a completion":           "sleeping_owner",
		"loses a notify":               "sleeping_owner",
		"notifies without Arm":         "notify",
		"hides that it is read-only":   "read-only",
		"allocates":                    "allocations",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			run := "TestBroken"
			if part != "" {
				run += "$/^512$/^" + part + "$"
			}
			cmd := exec.Command(os.Args[0], "-test.run="+run, "-rapid.nofailfile", "-rapid.shrinktime=100ms")
			cmd.Env = append(os.Environ(), "BACKENDTEST_FAULT="+fault)
			out, err := cmd.CombinedOutput()
			switch {
			case part == "" && err != nil:
				t.Errorf("an honest device fails: %v\n%s", err, out)
			case part != "" && (err == nil || !strings.Contains(string(out), "--- FAIL: TestBroken/512/"+part)):
				t.Errorf("%s does not notice: %v\n%s", part, err, out)
			}
		})
	}
}
