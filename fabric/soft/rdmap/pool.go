package rdmap

import "github.com/nvmf-go/nvmf/fabric/soft/mpa"

// Pool is buffers for one FPDU each, for the QPs of one owner. It grows as
// needed, to two for each QP with CRC at the very most, and keeps a few.
type Pool struct {
	free [][]byte
	out  int // taken and not given back
}

// keepFree is how many unused buffers a pool keeps.
const keepFree = 16

func (p *Pool) get() []byte {
	p.out++
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return make([]byte, 0, mpa.MaxFPDU)
}

func (p *Pool) put(b []byte) {
	p.out--
	if len(p.free) < keepFree {
		p.free = append(p.free, b[:0])
	}
}

// Taken is how many buffers are in use.
func (p *Pool) Taken() int { return p.out }
