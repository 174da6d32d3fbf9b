package cache

import (
	"errors"
	"fmt"
	"io"
	"unsafe"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/backend"
)

// Admission says which pages that were read from the medium are kept.
type Admission string

// Admissions. The zero value means TinyLFU.
const (
	// TinyLFU keeps what is read more often than what it would push out. A
	// page is a candidate from its second read on, unless there is room, and
	// long sequential runs that nobody reads again pass by.
	TinyLFU Admission = "tinylfu"
	// AdmitAll has every page that is read or wholly written compete, for
	// workloads whose working set fits. It costs a copy on each miss.
	AdmitAll Admission = "all"
)

// Sizes of a page in bytes, and the fewest pages that make a cache.
const (
	MinPage     = 4 << 10
	MaxPage     = 64 << 10
	DefaultPage = MinPage
	MinPages    = 8
)

// MaxReadAhead is the longest read-ahead of a queue in bytes.
const MaxReadAhead = 4 << 20

// Options of a cache.
type Options struct {
	// Memory holds the pages: at a page boundary of the system, outside the
	// Go heap, MinPages pages or more; what is left over after the last whole
	// page is not used. The caller owns it and keeps it until Close.
	// MemoryNeeded says how much of a budget it may take. Required.
	Memory []byte
	// Page is the size of a page in bytes: a power of two from MinPage to
	// MaxPage. 0 means DefaultPage. Small pages waste less on random reads,
	// large ones cost less memory and time for each byte (MemoryNeeded).
	Page int
	// ReadAhead is how far beyond a sequential reader a queue reads at most,
	// in bytes up to MaxReadAhead, rounded down to pages; 0 is off.
	ReadAhead int
	// Admission is TinyLFU when empty.
	Admission Admission
	// Log gets a line when the medium was changed by others; nil drops it.
	Log *logrus.Logger
}

// Validate says which fields cannot be used, all of them, as
// *backend.OptionError.
func (o Options) Validate() error {
	o = o.withDefaults()
	err := errors.Join(checkPage(o.Page), checkMemory(o.Memory, o.Page))
	if o.ReadAhead < 0 || o.ReadAhead > MaxReadAhead {
		err = errors.Join(err, &backend.OptionError{Field: "ReadAhead", Value: o.ReadAhead, Want: fmt.Sprintf("0 to %d", MaxReadAhead)})
	}
	if o.Admission != TinyLFU && o.Admission != AdmitAll {
		err = errors.Join(err, &backend.OptionError{Field: "Admission", Value: string(o.Admission), Want: fmt.Sprintf("%q or %q", TinyLFU, AdmitAll)})
	}
	return err
}

func checkPage(page int) error {
	if page < MinPage || page > MaxPage || page&(page-1) != 0 {
		return &backend.OptionError{Field: "Page", Value: page, Want: fmt.Sprintf("a power of two from %d to %d", MinPage, MaxPage)}
	}
	return nil
}

func checkMemory(mem []byte, page int) error {
	switch {
	case uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%MinPage != 0:
		return &backend.OptionError{Field: "Memory", Value: fmt.Sprintf("%p", mem), Want: "memory at a page boundary"}
	case len(mem)/max(page, 1) < MinPages:
		return &backend.OptionError{Field: "Memory", Value: len(mem), Want: fmt.Sprintf("%d pages of %d bytes or more", MinPages, page)}
	case len(mem)/max(page, 1) > maxPages:
		return &backend.OptionError{Field: "Memory", Value: len(mem), Want: fmt.Sprintf("at most %d pages of %d bytes", maxPages, page)}
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Page == 0 {
		o.Page = DefaultPage
	}
	if o.Admission == "" {
		o.Admission = TinyLFU
	}
	if o.Log == nil {
		o.Log = logrus.New()
		o.Log.SetOutput(io.Discard)
	}
	return o
}
