package target

import (
	"errors"
	"math/bits"
)

// check says which fields of a port cannot be.
func (p *Port) check() error {
	if p == nil {
		return refuse("no port")
	}
	var errs []error
	bad := func(cond bool, format string, a ...any) {
		if cond {
			errs = append(errs, refuse("port %q: "+format, append([]any{p.Name}, a...)...))
		}
	}
	c := p.Caps
	bad(p.Name == "", "a name is needed")
	bad(!p.Addr.IsValid(), "an address is needed")
	bad(c.MaxQueueDepth < 2 || c.MaxQueueDepth > 1<<16-1, "queue depth %d: expected 2 to 65535", c.MaxQueueDepth)
	bad(c.InCapsule < 0 || c.InCapsule%16 != 0, "in-capsule data of %d bytes: expected a multiple of 16", c.InCapsule)
	bad(c.MaxSGL < 1, "%d SGL descriptors: expected at least 1", c.MaxSGL)
	bad(c.MaxTransfer < 8192 || bits.OnesCount32(c.MaxTransfer) != 1, // MDTS 0 would be no limit
		"largest transfer of %d bytes: expected a power of two of at least 8192", c.MaxTransfer)
	return errors.Join(errs...)
}
