// Package wire has the formats of RoCEv2: the base transport header and its
// extended headers (IBTA vol 1, chapter 9), the management datagram header
// (13.4) and the messages of the connection manager (12.6).
//
// Headers of the data path are typed views over the received or outgoing
// bytes; Parse checks the lengths once, and no accessor can then leave the
// packet. Messages of the connection manager are structs with a Put and a
// Parse. Everything on the wire is big-endian. The package does no I/O, keeps
// no state and allocates nothing.
package wire
