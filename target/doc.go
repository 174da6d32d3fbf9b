// Package target is the NVM subsystem core: subsystems, namespaces, hosts,
// controllers and their queues, discovery, and every command. It knows no
// transport: the seam is [Link], [Request] and [Transfer] below, and
// backend.Device is the seam to media.
//
// # Who owns what
//
// A [Group] belongs to one goroutine, its owner (a poll group of the
// transport). The owner alone calls the methods of Group and Queue, and all
// that an I/O command touches is the owner's: queues, attachments to
// namespaces with their backend queues, waiting requests, counters. The I/O
// path takes no lock and allocates nothing.
//
// The [Target] and everything configured in it may be changed from any
// goroutine at any time. Changes reach the I/O path in two ways: an immutable
// table behind an atomic pointer (the namespaces of a subsystem), and messages
// to each group (GroupConfig.Run).
//
// A [Controller]'s admin state is behind its mutex: it is used by the owner of
// its admin queue, by the owners of its I/O queues when they connect or fail,
// and by the target's timer. The order is Target.mu, then Controller.mu, and
// nothing that may block is called with either, but for writing a log line.
package target
