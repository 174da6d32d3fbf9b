package core

import (
	"fmt"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
)

// QP numbers have 24 bits; 0 and 1 are the management QPs and the last is
// multicast.
const (
	firstQPN = 2
	lastQPN  = 1<<24 - 2
)

// Numbers hands out QP numbers: each larger than the one before from a random
// start, so that a number comes back after some sixteen million others.
type Numbers struct {
	mu   sync.Mutex
	next uint32
	used map[uint32]struct{}
}

// NewNumbers makes an allocator.
func NewNumbers() *Numbers {
	return &Numbers{next: random(1 << 24), used: make(map[uint32]struct{})}
}

// Take returns a free number whose low bits (as many as mask has) are group:
// packets can be steered by them. A mask of 0 takes any. The error wraps
// fabric.ErrQueueFull when a million numbers in a row are used.
func (n *Numbers) Take(group, mask uint32) (uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range 1 << 20 {
		if n.next++; n.next&mask != group&mask {
			n.next += (group - n.next) & mask
		}
		if n.next < firstQPN || n.next > lastQPN {
			n.next = firstQPN - 1
			continue
		}
		if _, busy := n.used[n.next]; !busy {
			n.used[n.next] = struct{}{}
			return n.next, nil
		}
	}
	return 0, fmt.Errorf("%w: no free QP number", fabric.ErrQueueFull)
}

// Give returns a number.
func (n *Numbers) Give(qpn uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.used, qpn)
}
