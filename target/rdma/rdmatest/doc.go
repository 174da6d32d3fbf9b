// Package rdmatest has a raw NVMe/RDMA host for tests of targets, over any
// provider of package fabric. It sends what it is told, byte for byte: it
// connects with any private data, takes any bytes for a capsule, names any
// memory in its descriptors, and checks nothing but what a test asks it to. For
// the rest there are flows that do what a host has to: [Host.Admin] connects
// and enables a controller, [Session.Queue] creates an I/O queue, [Queue.Read]
// and [Queue.Write] move blocks.
//
// A [Queue] belongs to one goroutine. Its Send and Poll allocate nothing, so
// that a test can count what the target allocates.
package rdmatest
