package roce

import "golang.org/x/sys/unix"

// waiter watches the sockets of the engines whose owners sleep, and wakes
// them. A socket is armed for one event at a time: while an owner polls,
// packets cost no wake-up of anybody.
type waiter struct{ *poller }

func newWaiter(d *device) (*waiter, error) {
	p, err := newPoller("roce waiter", func(id int32) {
		if e := d.engines[id&groupMask].Load(); e != nil {
			e.wake()
		}
	})
	if err != nil {
		return nil, err
	}
	return &waiter{p}, nil
}

// watch waits for packets.
func (w *waiter) watch(e *engine) { w.arm(e.rx.fd, unix.EPOLLIN, int32(e.index)) }

// watchRoom waits for room in the transmitter's socket.
func (w *waiter) watchRoom(e *engine) { w.arm(e.tx.fd, unix.EPOLLOUT, int32(e.index)) }

// forget stops watching the engine's sockets.
func (w *waiter) forget(e *engine) {
	w.remove(e.rx.fd)
	w.remove(e.tx.fd)
}
