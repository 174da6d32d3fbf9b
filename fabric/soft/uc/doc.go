// Package uc is the unreliable connection service of the InfiniBand transport
// (IBTA vol 1, 9.8.2) without I/O: a QP that turns its send queue into packets
// and takes those of its peer.
//
// Nothing is acknowledged or sent again. A message is received whole or not at
// all: when a packet is missing the responder drops the rest of the message and
// begins anew with the next that is the first of one, whatever its sequence
// number. What the peer asks for wrongly (a key, a range, a message that meets
// no receive or is too long for it) ends its message, not the QP; an error in
// this end's own WRs takes the send queue to SQE, or the QP to the error state.
//
// The rest of a message that was under way when the QP had to give it up is
// missing to the peer, which is what the peer is made for.
package uc
