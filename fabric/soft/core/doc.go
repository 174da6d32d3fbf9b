// Package core holds the parts of an RNIC that have nothing to do with a wire:
// memory keys and windows, completion queues, send and receive queues, QP
// numbers and states, and the device that counts them. The software providers
// and the in-memory one are built on it.
//
// It starts no goroutine, opens no socket and reads no clock.
//
// # Owners
//
// A [QP], its [CQ]s and its [SRQ] have one owner: the goroutine that posts and
// polls. Progress happens inside that owner's [CQ.Poll], through the hook the
// provider gives to [CQ.Init]. Any other goroutine (a timer, a socket waiter, a
// connection manager, the peer's owner) does one of two things: [CQ.Wake],
// which asks for a Poll, or [CQ.Do], which has a function run in the next one.
// The RNICs with sockets have an [Engine] for each owner, which an [EngineCQ]
// runs.
//
// # Memory that ends under the data path
//
// A lookup in the [Table] takes no lock: the bytes it returns are used between
// [Guard.Enter] and [Guard.Leave] of the owner's guard ([CQ.Poll] does both
// around the progress hook). Closing a region first kills its key, then waits
// until every guard that was inside has left. As an owner never blocks inside,
// that wait is short, and when it is over nobody can touch the memory any
// more: it may be unmapped. A region must therefore never be closed from inside
// a guard, and providers call back into their users outside of it.
package core
