package rdmap

import "github.com/nvmf-go/nvmf/fabric/soft/mpa"

const (
	// batchBytes is where a batch stops to take further FPDUs, batchParts how
	// many parts one has at most. A system call takes 1024.
	batchBytes = 256 << 10
	batchParts = 512
	// copyMax is the longest payload that is copied next to its header: cheaper
	// than a part of its own.
	copyMax = 512
)

// Batch gathers bytes to send: headers in memory of its own, payload where it
// is. It lives no longer than the guard is held, and is used for one QP at a
// time.
type Batch struct {
	// Parts are the bytes, in order.
	Parts [][]byte
	// Bytes is how many they are.
	Bytes int

	room   []byte
	used   int
	run    int // what is in room from here on is not in Parts yet
	maxSGE int
}

// NewBatch makes a batch for QPs with so many SGEs.
func NewBatch(maxSGE int) *Batch {
	return &Batch{Parts: make([][]byte, 0, batchParts), room: make([]byte, batchBytes), maxSGE: maxSGE}
}

// Reset empties the batch.
func (b *Batch) Reset() { b.Parts, b.Bytes, b.used, b.run = b.Parts[:0], 0, 0, 0 }

// fits says whether an FPDU fits that needs so many bytes of room. An empty
// batch has room for any.
func (b *Batch) fits(room int) bool {
	return b.Bytes < batchBytes && b.used+room <= len(b.room) && len(b.Parts)+b.maxSGE+2 <= cap(b.Parts)
}

// grow adds n bytes to be written by the caller.
func (b *Batch) grow(n int) []byte {
	p := b.room[b.used : b.used+n : b.used+n]
	b.used += n
	b.Bytes += n
	return p
}

// add adds memory of somebody else.
func (b *Batch) add(p []byte) {
	b.seal()
	b.Parts = append(b.Parts, p)
	b.Bytes += len(p)
}

// seal makes a part of what was grown.
func (b *Batch) seal() {
	if b.used > b.run {
		b.Parts = append(b.Parts, b.room[b.run:b.used])
		b.run = b.used
	}
}

// mark remembers how far a batch has come, to go back there.
type mark struct{ parts, bytes, used, run int }

func (b *Batch) mark() mark { return mark{len(b.Parts), b.Bytes, b.used, b.run} }

func (b *Batch) back(m mark) {
	b.Parts, b.Bytes, b.used, b.run = b.Parts[:m.parts], m.bytes, m.used, m.run
}

// drop takes n bytes away at the beginning.
func (b *Batch) drop(n int) {
	b.seal()
	b.Bytes -= n
	i := 0
	for n > 0 && n >= len(b.Parts[i]) {
		n -= len(b.Parts[i])
		i++
	}
	b.Parts = b.Parts[:copy(b.Parts, b.Parts[i:])]
	if n > 0 {
		b.Parts[0] = b.Parts[0][n:]
	}
}

// appendTo appends n bytes from offset off on to dst.
func (b *Batch) appendTo(dst []byte, off, n int) []byte {
	for _, p := range b.Parts {
		if off >= len(p) {
			off -= len(p)
			continue
		}
		p = p[off:min(len(p), off+n)]
		dst, off, n = append(dst, p...), 0, n-len(p)
		if n == 0 {
			break
		}
	}
	return dst
}

// trailer adds the pad and the CRC of the FPDU that begins at offset start of
// room and is all in there if crc is set.
func (b *Batch) trailer(pad, start int, crc bool) {
	t := b.grow(pad + mpa.CRCLen)
	clear(t)
	if crc {
		mpa.PutCRC(t[pad:], mpa.CRC(b.room[start:b.used-mpa.CRCLen]))
	}
}
