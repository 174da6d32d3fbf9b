package core

import (
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// State is a QP's state. Its owner posts by it, the connection manager moves
// it, and anybody may end it: every method is safe for any goroutine.
type State struct{ v atomic.Uint32 }

// transitions has, for each state, a bit for each state that may follow it
// (IBTA vol 1, 10.3.1). The error state follows each of them.
var transitions = [...]uint8{
	fabric.QPReset:          1 << fabric.QPInit,
	fabric.QPInit:           1 << fabric.QPReadyToReceive,
	fabric.QPReadyToReceive: 1 << fabric.QPReadyToSend,
	fabric.QPReadyToSend:    1<<fabric.QPSendQueueDrain | 1<<fabric.QPSendQueueError,
	fabric.QPSendQueueDrain: 1<<fabric.QPReadyToSend | 1<<fabric.QPSendQueueError,
	fabric.QPSendQueueError: 1 << fabric.QPReadyToSend,
	fabric.QPError:          1 << fabric.QPReset,
}

// Load is the state.
func (s *State) Load() fabric.QPState { return fabric.QPState(s.v.Load()) }

// Set moves to state to and says whether that was a legal step from the
// present one. Error is entered once: the second Set(QPError) is false.
func (s *State) Set(to fabric.QPState) bool {
	for {
		from := s.v.Load()
		legal := transitions[from]>>to&1 != 0 ||
			to == fabric.QPError && fabric.QPState(from) != fabric.QPError
		if !legal {
			return false
		}
		if s.v.CompareAndSwap(from, uint32(to)) {
			return true
		}
	}
}

// Connect takes a QP from wherever it is before RTS to RTS, through the states
// between. It is false when the QP has failed meanwhile.
func (s *State) Connect() bool {
	for to := s.Load() + 1; to <= fabric.QPReadyToSend; to++ {
		if !s.Set(to) {
			return false
		}
	}
	return s.Load() == fabric.QPReadyToSend
}
