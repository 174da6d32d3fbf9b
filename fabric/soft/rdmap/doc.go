// Package rdmap is the queue pair of iWARP as a state machine without I/O and
// without a clock: MPA framing (RFC 5044), direct data placement (RFC 5041) and
// RDMAP (RFC 5040, RFC 7306) between the queues of a core.QP and the two byte
// streams of a TCP connection.
//
//	send queue -> messages -> Fill -> bytes to send      -> socket -> Wrote
//	                ^ responses
//	recv queue <- messages <- Feed <- bytes that came    <- socket
//	regions    <- payload  <- Want <- straight from the socket, Placed
//
// The owner takes bytes to send (Fill), says how many the socket took (Wrote),
// and hands in what came, in pieces of any size (Feed). Payload is not copied on
// the way out: Fill gives parts of registered memory, which are looked up again
// when the rest of a message is sent later. On the way in a large payload is
// read straight to where it belongs: Want says where, Placed that it is there.
//
// # Completion
//
// TCP acknowledges to itself, not to us: a SEND or WRITE completes when the
// socket has taken its last byte. That says nothing of the peer; what the peer
// refuses ends the connection later, with a Terminate of the peer as the cause.
// A READ or an atomic completes with its response.
//
// # CRC
//
// With CRC an FPDU is placed only after its CRC was found right: a header with a
// flipped bit must not choose where data goes. So an FPDU that came in parts
// waits in a buffer of the [Pool], one at most for each direction of a QP. And
// what is sent is copied before its CRC is computed, since the memory may change
// in between, as that of a READ's source is free to. Without CRC nothing is
// copied or kept.
//
// # Order
//
// Messages are never interleaved: one is sent to its end before the next, those
// of the send queue and responses in turn. The peer's Read and Atomic Requests
// are executed in their order. As the standard allows, a WRITE that follows a
// Read Request may be placed before that is answered.
package rdmap
