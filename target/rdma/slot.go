package rdma

import (
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

// slotState is where a request is.
//
//	          capsule
//	             |
//	free -----> new --------------------------- refused: final status ----+
//	 ^           |  \                                                     |
//	 |           |   `-> wantBuffer --.                                   |
//	 |           |        (share)     |                                   |
//	 |           | no data,           +-> wantRead ---> reading --.       |
//	 |           | data in            |   (ORD, SQ)               |       |
//	 |           | the capsule        | room for data to the host |       |
//	 |           v                    v                           v       |
//	 |        executing  <----------------------------------------'       |
//	 |           |                                                        |
//	 |           v                                                        |
//	 |        wantSend  <-------------------------------------------------'
//	 |       (SQ, host's receives)
//	 |           |
//	 `------- sending
//
// Once its connection is closing a request goes from any state to free: at once
// when nothing of it is moving, else with its last flushed work request or with
// the core's Complete.
type slotState uint8

const (
	slotFree slotState = iota
	slotNew
	slotWantBuffer // in its share's line
	slotWantRead   // in the connection's readq
	slotReading    // the data is on its way; in readq until the last READ is posted
	slotExecuting  // the core has it
	slotWantSend   // in the connection's sendq
	slotSending    // WRITEs and SEND are posted
	numSlotStates
)

var slotStateNames = [numSlotStates]string{
	"free", "new", "wait for buffers", "wait to read", "reading", "executing", "wait to send", "sending",
}

func (s slotState) String() string { return nameIn(slotStateNames[:], uint8(s), "slotState") }

// wrKind is what a work request is for: the low bits of its ID.
type wrKind uint8

const (
	wrRecv       wrKind = iota // a receive of the connection's own queue
	wrSharedRecv               // a receive of a shared queue: the ID has its number only
	wrRead                     // part of the data from the host
	wrReadLast                 // the last of it
	wrWrite                    // data to the host
	wrSend                     // the response
	wrSendInv                  // the response, ending the host's key
	wrMark                     // nothing: its flush tells that of those before it
)

// IDs of work requests: see the package comment. The generation is the number
// of the WR on its send queue, and the connection's own for receives.
const (
	kindBits = 4
	slotBits = 12
	connBits = 16

	maxSlots = 1 << slotBits
	maxConns = 1 << connBits
)

func makeID(gen, conn, slot uint32) uint64 {
	return uint64(gen)<<32 | uint64(conn)<<(slotBits+kindBits) | uint64(slot)<<kindBits
}

func idGen(id uint64) uint32  { return uint32(id >> 32) }
func idConn(id uint64) uint32 { return uint32(id) >> (slotBits + kindBits) }
func idSlot(id uint64) uint32 { return uint32(id) >> kindBits & (maxSlots - 1) }
func idKind(id uint64) wrKind { return wrKind(id & (1<<kindBits - 1)) }
func idShared(id uint64) int  { return int(uint32(id) >> kindBits) }

// noRecv says that a slot's capsule is in no receive any more.
const noRecv = -1

// slot is a request's place. The poll group owns it; while the request executes
// the core owns the embedded Request.
type slot struct {
	target.Request // first: slotOf relies on it

	conn  *conn
	next  *slot  // in a fifo or on the free list
	share *share // whose buffers it takes, or waits for
	index uint32 // in conn.slots

	state    slotState
	pool     uint8  // index of the pool its blocks are of
	pieces   uint8  // blocks in use
	wrs      uint16 // work requests posted and not completed
	recv     int32  // the receive that holds the capsule, or noRecv
	transfer target.Transfer
	sgl      dataSGL
	cur      cursor // how far the READs are posted
	loanKey  uint32 // of the memory in Loan

	blocks  [2 * maxPieces]block
	vecs    [maxLoan][]byte    // Bufs and Scratch, or Loan, are slices of it
	sqe     [nvme.SQESize]byte // the command, when its receive was shared
	spilled []byte             // what came behind it, when receives were short
}

// slotOf is the slot around r.
func slotOf(r *target.Request) *slot { return (*slot)(unsafe.Pointer(r)) }

var _ = [1]struct{}{}[unsafe.Offsetof(slot{}.Request)] // slotOf

// dataBytes is how many bytes of the transfer need a buffer: not those in the
// capsule, or on loan.
func (s *slot) dataBytes() uint32 {
	if s.transfer.Dir == target.NoData || s.sgl.capsule != nil || s.transfer.Lent {
		return 0
	}
	return s.transfer.Length
}

// maxLoan is the most pieces a loan can have: with it a read of 128 KiB can be
// answered from pages of 4 KiB, wherever it begins, and one of 2 MiB from pages
// of 64 KiB. What has more is copied. A loan is cheaper at any number of pieces
// (BenchmarkLent: 128 KiB in 33 of them take 1.1 us of CPU, with a copy 3.7 us);
// but each costs every slot 24 bytes. A WRITE takes as many as an SGE list may
// have, and a read as many WRITEs as the send queue was made for (conn.sendDepth).
const maxLoan = 33

var _ = [maxLoan - 2*maxPieces]struct{}{} // vecs has room for Bufs and Scratch

// cursor walks the host's memory and the pieces of ours in step.
type cursor struct {
	desc, piece       int
	descOff, pieceOff uint32
	left              uint32 // bytes still to move
}

// segment is the next piece of a transfer that one RDMA READ or WRITE can move:
// within one descriptor, over at most maxSGE pieces of our memory and maxBytes.
// It appends the SGEs and advances the cursor. The pieces lie in memory that is
// registered under lkey.
func (s *slot) segment(c *cursor, pieces [][]byte, lkey uint32, maxSGE int, maxBytes uint32, sges []fabric.SGE) (addr uint64, rkey, n uint32, _ []fabric.SGE) {
	d := nvme.SGL(s.sgl.keyed[c.desc*nvme.SGLSize:][:nvme.SGLSize])
	for d.KeyedLength() == c.descOff { // used up, or empty
		c.desc, c.descOff = c.desc+1, 0
		d = nvme.SGL(s.sgl.keyed[c.desc*nvme.SGLSize:][:nvme.SGLSize])
	}
	addr, rkey = d.Address()+uint64(c.descOff), d.Key()
	room := min(d.KeyedLength()-c.descOff, c.left, maxBytes)
	for k := 0; n < room && k < maxSGE; k++ {
		b := pieces[c.piece]
		size := uint32(len(b))
		m := min(size-c.pieceOff, room-n)
		sges = append(sges, fabric.SGE{Addr: addressOf(b) + uint64(c.pieceOff), Length: m, LKey: lkey})
		n += m
		if c.pieceOff += m; c.pieceOff == size {
			c.piece, c.pieceOff = c.piece+1, 0
		}
	}
	c.descOff += n
	c.left -= n
	return addr, rkey, n, sges
}

// fifo is a queue of slots, linked through slot.next.
type fifo struct {
	head, tail *slot
	n          int
}

func (f *fifo) push(s *slot) {
	s.next = nil
	if f.tail == nil {
		f.head = s
	} else {
		f.tail.next = s
	}
	f.tail = s
	f.n++
}

func (f *fifo) pop() *slot {
	s := f.head
	if f.head = s.next; f.head == nil {
		f.tail = nil
	}
	s.next = nil
	f.n--
	return s
}

// removeIf takes out the slots that drop returns true for, in order.
func (f *fifo) removeIf(drop func(*slot) bool) {
	old := *f
	*f = fifo{}
	for old.head != nil {
		if s := old.pop(); !drop(s) {
			f.push(s)
		}
	}
}
