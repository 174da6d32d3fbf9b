package target

import (
	"slices"

	"github.com/nvmf-go/nvmf/nvme"
)

// changedList are the namespaces that changed since the host has read the
// Changed Namespace List (log page 04h). It is guarded by Controller.mu.
type changedList struct {
	ids []uint32 // ascending
}

func (l *changedList) add(nsid uint32) {
	if i, found := slices.BinarySearch(l.ids, nsid); !found {
		l.ids = slices.Insert(l.ids, i, nsid)
	}
}

// executeChangedList responds with the list. A host that reads all of it at
// once, and does not ask to retain the event, has seen it: then it begins anew.
// Reading in parts, or with RAE, leaves it.
func (q *Queue) executeChangedList(r *Request, l nvme.LogRequest) {
	c := q.ctrl
	page := q.group.page[:nvme.IdentifySize]
	c.mu.Lock()
	put := nvme.NSList(page).Put(c.changed.ids)
	if !l.RAE {
		if l.Offset == 0 && l.Length >= 4*uint64(put) {
			c.changed.ids = c.changed.ids[:0]
		}
		c.clearEventLocked(eventNamespace)
	}
	c.mu.Unlock()
	q.finishLog(r, page)
}
