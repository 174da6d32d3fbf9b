package target

// Target is a set of subsystems behind a set of ports. Its methods may be
// called from any goroutine.
type Target struct{}
