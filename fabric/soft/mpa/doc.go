// Package mpa has the formats of iWARP, from the TCP byte stream up: the
// Request and Reply frames of MPA (RFC 5044, with the enhanced set-up of RFC
// 6581), FPDUs with their CRC, DDP segment headers (RFC 5041), and the messages
// of RDMAP (RFC 5040, with immediate data and atomics of RFC 7306).
//
//	FPDU    length(2) | ULPDU | pad(0..3) | CRC32C(4)
//	ULPDU   DDP header | payload
//	header  tagged    control(2) | STag(4) | TO(8)                          14
//	        untagged  control(2) | STag to end(4) | QN(4) | MSN(4) | MO(4)  18
//
// Everything is big-endian but the CRC, whose least significant byte comes
// first. Parsers check lengths once, and nothing they return can leave what
// they were given. The package does no I/O, keeps no state and, but for private
// data, allocates nothing.
package mpa
