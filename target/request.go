package target

// requestState is what the core keeps in a Request. The group's owner owns it.
type requestState struct {
	q    *Queue
	next *Request // in a FIFO
}
