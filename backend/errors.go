package backend

import "errors"

// Errors of opening and closing devices.
var (
	// ErrBusy: queues are still open.
	ErrBusy = errors.New("backend still in use")
	// ErrLocked: another process (or another backend of this one) has the
	// medium open for writing.
	ErrLocked = errors.New("locked by another opener")
	// ErrSize: the medium's size does not fit the configuration.
	ErrSize = errors.New("size does not fit")
	// ErrBlockSize: the medium cannot do the block size.
	ErrBlockSize = errors.New("block size not possible")
)
