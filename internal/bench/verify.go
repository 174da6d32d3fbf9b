package bench

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Layout of the header that begins each I/O's data; all fields little-endian.
//
//	0  magic       8
//	8  run         8  which run wrote it
//	16 offset      8  of the data in the namespace, bytes
//	24 generation  4  1 for the first write of the place in this run
//	28 length      4  of the data, header included
//	32 crc32c      4  of all of the data, this field as zero
const (
	headerSize = 36
	magic      = 0x68636e62_666d766e // "nvmfbnch" to the eye
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stamp is what a header says of the data.
type stamp struct {
	run    uint64
	offset int64
	gen    uint32
}

// fillData makes b the data of s: random bytes under a header, so that no two
// writes of a run are the same anywhere.
func fillData(b []byte, s stamp) {
	x := s.run ^ uint64(s.offset)*0x9e3779b97f4a7c15 ^ uint64(s.gen)<<32 | 1
	for i := 0; i+8 <= len(b); i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b[i:], x)
	}
	le := binary.LittleEndian
	le.PutUint64(b, magic)
	le.PutUint64(b[8:], s.run)
	le.PutUint64(b[16:], uint64(s.offset))
	le.PutUint32(b[24:], s.gen)
	le.PutUint32(b[28:], uint32(len(b)))
	le.PutUint32(b[32:], checksum(b))
}

// noSum stands in for the field of the checksum itself.
var noSum [4]byte

func checksum(b []byte) uint32 {
	c := crc32.Update(0, castagnoli, b[:32])
	c = crc32.Update(c, castagnoli, noSum[:])
	return crc32.Update(c, castagnoli, b[headerSize:])
}

// Fault is how data is wrong.
type Fault uint8

// Faults.
const (
	NoHeader   Fault = iota + 1 // not written by a verifying load, or overwritten
	BadLength                   // written with another block size
	Misplaced                   // data of another place
	OtherRun                    // data of another run
	Stale                       // an older write than the last
	Early                       // a newer write than the last: it cannot be
	BadContent                  // the checksum is wrong: torn or corrupt
)

// VerifyError is data that is not what was written.
type VerifyError struct {
	Offset    int64 // bytes
	Length    int
	Fault     Fault
	Want, Got uint64 // generations, or what the fault is about
}

func (e *VerifyError) Error() string {
	s := fmt.Sprintf("%d bytes at offset %d: ", e.Length, e.Offset)
	switch e.Fault {
	case NoHeader:
		return s + "no header of a verifying load: never written, or overwritten (write it with --rw write --verify)"
	case BadLength:
		return s + fmt.Sprintf("written in I/Os of %d bytes", e.Got)
	case Misplaced:
		return s + fmt.Sprintf("the data of offset %d is here", e.Got)
	case OtherRun:
		return s + fmt.Sprintf("the data of another run is here: generation %d of this run was lost", e.Want)
	case Stale:
		return s + fmt.Sprintf("an old write is here: generation %d, but %d was written last", e.Got, e.Want)
	case Early:
		return s + fmt.Sprintf("generation %d is here, but %d was written last", e.Got, e.Want)
	}
	return s + fmt.Sprintf("the content is corrupt: CRC32C %#x, the header says %#x", e.Got, e.Want)
}

// checkData checks b, read at want.offset. A generation of 0 wants any, of any
// run.
func checkData(b []byte, want stamp) *VerifyError {
	le := binary.LittleEndian
	fail := func(f Fault, wanted, got uint64) *VerifyError {
		return &VerifyError{Offset: want.offset, Length: len(b), Fault: f, Want: wanted, Got: got}
	}
	gen, sum := le.Uint32(b[24:]), le.Uint32(b[32:])
	switch {
	case le.Uint64(b) != magic:
		return fail(NoHeader, 0, 0)
	case le.Uint32(b[28:]) != uint32(len(b)):
		return fail(BadLength, uint64(len(b)), uint64(le.Uint32(b[28:])))
	case le.Uint64(b[16:]) != uint64(want.offset):
		return fail(Misplaced, uint64(want.offset), le.Uint64(b[16:]))
	case want.gen != 0 && le.Uint64(b[8:]) != want.run:
		return fail(OtherRun, uint64(want.gen), uint64(gen))
	case want.gen != 0 && gen < want.gen:
		return fail(Stale, uint64(want.gen), uint64(gen))
	case want.gen != 0 && gen > want.gen:
		return fail(Early, uint64(want.gen), uint64(gen))
	}
	if got := checksum(b); got != sum {
		return fail(BadContent, uint64(sum), uint64(got))
	}
	return nil
}

// ledger is what a job knows of its places: what was written to each last, and
// which have an I/O in flight.
type ledger struct {
	run  uint64
	gens []uint32
	busy []uint64 // a bit each
}

func newLedger(run uint64, units int64) *ledger {
	return &ledger{run: run, gens: make([]uint32, units), busy: make([]uint64, (units+63)/64)}
}

func (l *ledger) isBusy(u uint64) bool { return l.busy[u/64]>>(u%64)&1 != 0 }

func (l *ledger) setBusy(u uint64, on bool) {
	if on {
		l.busy[u/64] |= 1 << (u % 64)
	} else {
		l.busy[u/64] &^= 1 << (u % 64)
	}
}
