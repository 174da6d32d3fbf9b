// Package initiator is the host's side of NVMe over RDMA: it discovers
// subsystems, connects to controllers and reads and writes their namespaces,
// over any provider of package fabric and without a kernel driver.
//
//	Discover             what a discovery service knows
//	Connect              a Controller: admin commands, events, recovery
//	Controller.Namespace a Namespace: io.ReaderAt and io.WriterAt
//	Namespace.Queue      a Queue: asynchronous, zero-copy, for one goroutine
//	ConnectMultipath     a Multipath: one subsystem through several controllers
//
// # When the target is gone
//
// A transport error, a malformed or unknown answer, a command that is not
// answered in Config.IOTimeout or a keep alive that is not answered ends the
// association: the controller with all its queues. The controller then connects
// anew, again and again, until Config.CtrlLossTimeout.
//
// No call hangs, unless it is told to by limits that are switched off. That a
// target is gone is noticed within Config.KeepAlive, that it does not answer one
// command after Config.IOTimeout. The command is then held, for at most
// Config.FastIOFail while there is no association, and fails with ErrPathLost;
// with an association it goes on, at the latest after Config.ReplayDelay. Close
// ends everything at once.
//
// # What is replayed
//
// A command that an association took with it is either failed or sent anew,
// once, on another association; its caller sees the outcome of the last. Before
// anything else happens the RDMA connection that carried it is destroyed, so
// that the target can no longer reach the command's memory.
//
// Commands that change nothing (Read, Compare, Verify, Flush) are sent anew as
// soon as there is an association. A command that changes data (Write, Write
// Zeroes, Dataset Management) may have reached the old controller, which may
// still execute it: sent anew at once, the late copy could undo what was
// written after it. Such a command is held until the old controller is known to
// have given up, which its keep alive timer makes it do: for Config.ReplayDelay,
// by default the keep alive timeout, twice that with traffic based keep alive,
// from the moment the old connection was cut. Disconnects and resets that the
// peer has acknowledged are not taken as proof: targets acknowledge before the
// last command has left their backend.
//
// A command whose caller has given up (its context has ended) is never sent
// anew. An admin command is neither: it fails with ErrPathLost.
//
// # Goroutines
//
// A controller has one that looks after its association, one for each queue that
// no Queue has taken, one that sends keep alives, and one that runs the user's
// Handler. None is started for an I/O.
//
// # Memory and keys
//
// Devices reach registered memory only: Buffers, and the buffers the package
// keeps for the plain byte slices of ReadAt and WriteAt. On devices with memory
// windows, each command gets a key of its own for the bytes it is about, which
// the target's response ends (SEND with invalidate); elsewhere, and for admin
// commands, a buffer's key holds as long as the buffer is registered.
package initiator
