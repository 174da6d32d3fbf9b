// Package fabrictest has the in-memory twin of an RDMA network and the suite
// that every provider of package fabric passes ([Conformance], and [Scale]). The
// tests and benchmarks that a provider has besides start from an [End].
//
// # The in-memory network
//
// A [Network] holds providers whose devices reach each other inside the
// process. Keys, rights, queues, statuses and the connection manager behave as
// on RoCE; nothing is on a wire. The data path is lock-free and allocates
// nothing: a send queue is a ring that the peer's owner reads.
//
//	requester's owner                       responder's owner
//	PostSend: WR into its send queue,
//	          published ------------------> Poll: runs the WR: checks keys, copies
//	                                        from memory to memory, completes its
//	Poll: completes what was <------------- receive; executed
//	      executed
//
// So the responder's owner has to poll for anything to happen, as with any
// software provider.
//
// The unreliable services (UC, UD) are there too. Their packets are those of
// RoCE, copied from the one QP's Poll to a bounded queue of the other.
//
// Time (delays, retries) is that of package time: in a testing/synctest bubble
// it is virtual.
//
// # Faults
//
// [DeviceOptions] make a device that lacks or lies about something,
// [Network.SetFaults] loses, delays and repeats messages between two addresses,
// [Network.Cut] ends all traffic between them without a word, [Device.Remove]
// pulls the card, and [Device.FailPost] makes a post fail.
package fabrictest
