package rdmatest

import (
	"context"
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
)

// BindWindow binds a new memory window to [off, off+n) of the queue's memory
// and returns it with its key, which a SEND with invalidate ends.
// Options.Access must include AccessWindowBind, and nothing else may be in
// flight on the queue.
func (q *Queue) BindWindow(ctx context.Context, off, n int) (fabric.MemoryWindow, uint32, error) {
	dev, ok := q.dev.(fabric.MemoryWindower)
	qp, ok2 := q.qp.(fabric.WindowBinder)
	if !ok || !ok2 {
		return nil, 0, fmt.Errorf("memory windows: %w", fabric.ErrNotSupported)
	}
	w, err := dev.NewMemoryWindow()
	if err != nil {
		return nil, 0, err
	}
	const rights = fabric.AccessRemoteRead | fabric.AccessRemoteWrite
	key, err := qp.PostBind(w, q.dataMR, off, n, rights, idBind, fabric.FlagSignaled)
	if err != nil {
		return nil, 0, err
	}
	for q.bound = false; !q.bound; {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		if _, err := q.Poll(); err != nil {
			return nil, 0, err
		}
	}
	return w, key, nil
}
