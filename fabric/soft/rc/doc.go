// Package rc is the reliable connection service of the InfiniBand transport
// (IBTA vol 1, 9.7) as two state machines without I/O and without a clock: the
// requester turns the send queue of a QP into request packets and takes the
// answers, the responder takes request packets and makes the answers.
//
//	send queue -> requester -> Next    -> request packets  -> peer
//	                        <- Receive <- ACK, NAK, responses
//	recv queue -> responder <- Receive <- request packets  <- peer
//	                        -> Next    -> ACK, NAK, responses
//
// The owner hands in each packet that came (Receive), takes packets as long as
// it has room to send (Next), and calls Expire when the time of Deadline has
// come. Time is an argument everywhere: nanoseconds of any monotonic clock.
//
// # Recovery
//
// A lost request makes the responder NAK, a lost answer or the last of the
// requests lost makes the requester's timer run out; a missing READ response
// is seen by the one behind it. In each case the requester goes back to the
// oldest packet that is not acknowledged (go-back-N), once until there is
// progress. How many packets may be unacknowledged follows the loss: it
// doubles each round trip at first, then grows by one, halves at a loss and
// starts at one after a timeout, as in TCP. The time until a timeout follows
// the measured round trip and doubles with each. The limits of the standard
// are kept above that: after RetryCount timeouts of AckTimeout without any
// progress the QP has failed.
//
// RDMA READs of more than readChunk bytes are sent as several requests, which
// bounds how much the responder sends without being asked again.
package rc
