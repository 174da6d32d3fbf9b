// Package ud is the unreliable datagram service of the InfiniBand transport
// (IBTA vol 1, 9.8.3) without I/O: a QP that turns its send queue into
// datagrams, one packet each, and takes those of anybody who knows its Q_Key.
//
// What it cannot use is dropped and counted. An error in this end's own WRs
// takes the send queue to SQE, or the QP to the error state.
package ud
