// Package bench loads a namespace the way fio does, through the asynchronous
// queues of package initiator, and says how fast it was: IOPS, bandwidth,
// latencies and CPU. With verification every block that is read is checked
// against what was written.
//
// A job is a goroutine with a queue, buffers and a part of the range of its own.
// It allocates nothing for an I/O and reads the clock once for a batch: the
// latencies of I/Os that were reaped together end at the same instant.
package bench

import (
	"errors"
	"fmt"
	"time"
)

// Mode is a kind of load, by the names of fio.
type Mode uint8

// Modes.
const (
	Read Mode = iota
	Write
	RandRead
	RandWrite
	ReadWrite // reads and writes mixed
	RandRW
	Trim
	RandTrim
)

var modeNames = [...]string{"read", "write", "randread", "randwrite", "rw", "randrw", "trim", "randtrim"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// ParseMode is the reverse of String; readwrite is rw.
func ParseMode(s string) (Mode, error) {
	if s == "readwrite" {
		return ReadWrite, nil
	}
	for i, n := range modeNames {
		if n == s {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("load %q: expected one of %v", s, modeNames)
}

// Random says whether blocks are taken at random.
func (m Mode) Random() bool {
	return m == RandRead || m == RandWrite || m == RandRW || m == RandTrim
}

// Mixed says whether there are reads and writes.
func (m Mode) Mixed() bool { return m == ReadWrite || m == RandRW }

// changes says whether data is lost.
func (m Mode) changes() bool { return m != Read && m != RandRead }

// does says whether a load has such operations.
func (m Mode) does(op int) bool {
	switch op {
	case opTrim:
		return m == Trim || m == RandTrim
	case opWrite:
		return m == Write || m == RandWrite || m.Mixed()
	}
	return !m.changes() || m.Mixed()
}

// Options are a load. Zero values mean the defaults.
type Options struct {
	Mode Mode
	// BlockSize is the bytes of one I/O, whole blocks of the namespace. Default
	// 4 KiB, or a block of the namespace that is larger.
	BlockSize int
	// Depth is how many I/Os a job keeps in flight, 1 at least. The queue may
	// have room for fewer.
	Depth int
	// Jobs is the number of jobs, 1 at least.
	Jobs int
	// Runtime is how long; 0 moves Size bytes once.
	Runtime time.Duration
	// Ramp is the time before Runtime that is not measured.
	Ramp time.Duration
	// Offset and Size are the range in bytes; a Size of 0 is the rest of the
	// namespace. The jobs have equal parts of it.
	Offset, Size int64
	// ReadPercent is the share of reads in a mixed load, 0 to 100.
	ReadPercent int
	// Verify checks what is read. A load that writes reads all of it again
	// at the end; one that only reads checks what such a load has left.
	Verify bool
	// Seed makes the random numbers; 0 takes any.
	Seed uint64
	// Process is the process ID of the target when it runs on this machine, so
	// that its CPU time can be told; 0 for none.
	Process int
	// Live is called about once a second, when not nil.
	Live func(Live)
}

// Live is how a load goes.
type Live struct {
	Phase   string // "ramp", "run" or "verify"
	Elapsed time.Duration
	// Done is the share that is done, 0 to 1.
	Done float64
	// IOPS and Bandwidth are of the time since the last call, by operation.
	IOPS, Bandwidth [3]float64
}

// ErrOptions is matched by errors of options that make no load.
var ErrOptions = errors.New("bench")

func badOption(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrOptions}, a...)...)
}

// Space is what Options have to fit: a namespace.
type Space struct {
	Size        int64 // bytes
	BlockSize   int   // bytes
	MaxTransfer int   // bytes of one I/O
}

// complete fills in defaults and checks the options against the namespace.
func (o *Options) complete(s Space) error {
	if o.BlockSize == 0 {
		o.BlockSize = max(4096, s.BlockSize)
	}
	o.Depth, o.Jobs = max(o.Depth, 1), max(o.Jobs, 1)
	switch {
	case int(o.Mode) >= len(modeNames):
		return badOption("%v is no load", o.Mode)
	case o.BlockSize < s.BlockSize || o.BlockSize%s.BlockSize != 0:
		return badOption("I/Os of %d bytes: expected a multiple of the namespace's block of %d", o.BlockSize, s.BlockSize)
	case o.BlockSize > s.MaxTransfer:
		return badOption("I/Os of %d bytes: one command to this target moves at most %d", o.BlockSize, s.MaxTransfer)
	case o.Offset < 0 || o.Offset%int64(s.BlockSize) != 0:
		return badOption("offset %d: expected a multiple of the namespace's block of %d", o.Offset, s.BlockSize)
	case o.Offset > s.Size || o.Size < 0 || o.Size > s.Size-o.Offset:
		return badOption("%d bytes at %d: the namespace has %d", o.Size, o.Offset, s.Size)
	case o.ReadPercent < 0 || o.ReadPercent > 100:
		return badOption("%d %% of reads", o.ReadPercent)
	case o.Runtime < 0 || o.Ramp < 0:
		return badOption("a time is negative")
	case o.Verify && (o.Mode == Trim || o.Mode == RandTrim):
		return badOption("what was trimmed cannot be verified")
	case o.Ramp > 0 && o.Runtime == 0:
		return badOption("a ramp needs a run time")
	}
	if o.Size == 0 {
		o.Size = s.Size - o.Offset
	}
	return o.checkUnits()
}

// maxUnits bounds the memory of a verification: 4 bytes for each I/O's place.
const maxUnits = 1 << 27

// checkUnits checks that every job has something to do.
func (o *Options) checkUnits() error {
	units := o.Size / int64(o.BlockSize)
	switch {
	case units < int64(o.Jobs):
		return badOption("%d bytes: too few for %d jobs with I/Os of %d bytes", o.Size, o.Jobs, o.BlockSize)
	case o.Verify && units > maxUnits:
		return badOption("verifying %d I/Os takes too much memory: choose a smaller size, at most %d bytes", units, int64(maxUnits)*int64(o.BlockSize))
	}
	return nil
}
