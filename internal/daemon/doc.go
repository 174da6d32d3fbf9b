// Package daemon is nvmf-target without flags and signals: it brings a target,
// its transport, backends and listeners to the state that a configuration
// file describes, at the start and again at each reload, and says what it did.
//
// A Daemon's methods may be called from any goroutine; a reload has the
// configuration to itself (Daemon.mu). What runs beside it: one goroutine for
// each listener (listener.routine).
package daemon
