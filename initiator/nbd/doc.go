// Package nbd exports a namespace of a remote controller over the Network Block
// Device protocol, so that programs that speak NBD (qemu, nbdcopy, fio, the
// kernel's client) use it without an NVMe driver.
//
// It follows doc/proto.md of the reference implementation; comments name its
// sections. Fixed newstyle negotiation only, without TLS, one export.
//
//	Server   the export; hands each connection to a lane once it is negotiated
//	lane     one goroutine with an initiator.Queue: all I/O of its connections
//	conn     a client in the transmission phase; its lane owns it
//	request  a request of a client, from its header to the end of its reply
//
// # Data path
//
// A lane reads requests with non-blocking system calls, payload straight into
// registered memory, submits the commands, reaps their results and writes
// replies, payload straight out of that memory. Nothing is locked, allocated or
// handed to another goroutine for a request; what is copied is at most the
// payload that arrived in one read with the header before it, 420 bytes. A lane
// without anything to do sleeps, over a software RNIC in the kernel, where its
// thread waits for the sockets of its clients and of the RNIC at once.
//
// # Bounds
//
// A connection has at most 128 requests and 10 MiB of memory in flight; a request
// that finds neither waits in the client's socket, which is not read meanwhile.
// So a client that does not read its replies holds up itself alone. Payload of
// more than MaxPayload is refused, options of more than 16 KiB too. Memory is
// taken when it is used first, and given back when a lane's last client leaves.
//
// # What clients see
//
// The size and the flags are those of the moment of negotiation. Reconnects of
// the initiator take time and are not seen otherwise; commands that the target
// aborts while it ends, or that it is not ready for, are sent anew. All
// connections see one namespace without a cache of ours, and the Flush command
// covers what was completed on any queue (NVM 3.3.1), so NBD_FLAG_CAN_MULTI_CONN
// is set.
package nbd
