// Package cm is the InfiniBand connection manager (IBTA vol 1, chapter 12) for
// reliable connections, as RoCEv2 and the kernel's rdma_cm use it: REQ, REP,
// RTU, REJ, MRA, DREQ and DREP over QP 1, with timers, duplicates and stale
// connections. It does no I/O and reads no clock.
//
//	active                         passive
//	Connect                                      Requested
//	  ReqSent   ---- REQ ---->  ReqReceived  --> Accept, or Reject
//	  Replied   <--- REP -----  RepSent
//	Ready       ---- RTU ---->                   Established
//	  Connected                 Connected
//	Disconnect  ---- DREQ --->  TimeWait         Disconnected
//	  DreqSent
//	  TimeWait  <--- DREP ----
//
// The names at the edges are calls (left to right) and events. A [Manager] is
// fed with datagrams (Receive) and the time (Expire), gives datagrams (Next)
// and events (Event), and belongs to one goroutine.
//
// # What the peer repeats
//
// A duplicate REQ is answered with MRA as long as the listening program has
// not decided, and with the REP again afterwards; a duplicate REP with RTU, a
// duplicate DREQ with DREP. A REQ that names the QP of a live connection shows
// that the peer has lost that connection: it is rejected as stale, and the old
// one ends. A message that belongs to nothing is answered where the peer would
// otherwise repeat it (DREP, REJ) and dropped else.
package cm
