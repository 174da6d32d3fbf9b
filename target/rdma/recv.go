package rdma

import (
	"errors"
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

var (
	errShortCapsule = errors.New("command capsule shorter than an SQE")
	errOutstanding  = errors.New("more command capsules outstanding than the queue has entries")
)

// recvArea is the memory of receives: an SQE each, and room for the data behind
// it, which begins on a page when InCapsule is whole pages and the device takes
// two SGEs.
type recvArea struct {
	n         int // receives
	sqes      []byte
	data      []byte
	sqeAddr   uint64
	dataAddr  uint64
	sqeStride int // bytes from one SQE to the next
	stride    int // bytes from one data area to the next
	dataSize  int // of one data area: Config.InCapsule
	sges      int // per receive: 1 or 2
	lkey      uint32
}

// recvSize is the memory that n receives with data bytes take.
func recvSize(n, data int) int { return n * (nvme.SQESize + data) }

// newRecvArea lays n receives out over mem, recvSize bytes at addr.
func newRecvArea(mem []byte, addr uint64, lkey uint32, n, data, maxSGE int) recvArea {
	a := recvArea{n: n, dataSize: data, lkey: lkey, sges: 1}
	if data > 0 && maxSGE < 2 { // an SQE and its data side by side
		a.sqeStride, a.stride = nvme.SQESize+data, nvme.SQESize+data
		a.sqes, a.sqeAddr = mem, addr
		a.data, a.dataAddr = mem[nvme.SQESize:], addr+nvme.SQESize
		return a
	}
	if data > 0 {
		a.sges = 2
	}
	a.sqeStride, a.stride = nvme.SQESize, data
	a.data, a.dataAddr = mem[:n*data], addr
	a.sqes, a.sqeAddr = mem[n*data:], addr+uint64(n*data)
	return a
}

// sqe is the command in receive i.
func (a *recvArea) sqe(i int32) nvme.Command {
	off := int(i) * a.sqeStride
	return nvme.Command(a.sqes[off : off+nvme.SQESize : off+nvme.SQESize])
}

// capsuleData is the data behind the command in receive i, of a capsule of n
// bytes in all.
func (a *recvArea) capsuleData(i int32, n uint32) []byte {
	size := min(int(n)-nvme.SQESize, a.dataSize)
	if size == 0 {
		return nil
	}
	off := int(i) * a.stride
	return a.data[off : off+size : off+size]
}

// append adds the WR that posts receive i to b.
func (a *recvArea) append(b *batch, id uint64, i int32) {
	b.recvs = append(b.recvs, fabric.RecvWR{ID: id, FirstSGE: uint32(len(b.recvSGEs)), NumSGE: uint8(a.sges)})
	sqe := fabric.SGE{Addr: a.sqeAddr + uint64(int(i)*a.sqeStride), Length: nvme.SQESize, LKey: a.lkey}
	if a.sges == 1 {
		sqe.Length += uint32(a.dataSize)
		b.recvSGEs = append(b.recvSGEs, sqe)
		return
	}
	data := fabric.SGE{Addr: a.dataAddr + uint64(int(i)*a.stride), Length: uint32(a.dataSize), LKey: a.lkey}
	b.recvSGEs = append(b.recvSGEs, sqe, data)
}

// capsule is a command that came in receive recv, n bytes in all.
type capsule struct {
	recv int32
	n    uint32
}

// receive takes a completed receive of the connection's own queue.
func (c *conn) receive(wc *fabric.Completion) {
	i := int32(idSlot(wc.ID))
	if int(i) >= len(c.posted) || !c.posted[i] || idGen(wc.ID) != c.gen {
		c.group.stats.Stale++
		return
	}
	c.posted[i] = false
	c.nPosted--
	if wc.Status != fabric.StatusSuccess {
		c.brokenRecv(wc)
		return
	}
	c.arrived(capsule{i, wc.ByteLen})
}

// brokenRecv ends the connection: a receive fails with its QP only.
func (c *conn) brokenRecv(wc *fabric.Completion) {
	switch wc.Status {
	case fabric.StatusFlushed:
		c.end(errFlushed)
	case fabric.StatusLocalLength:
		c.end(fmt.Errorf("command capsule longer than %d bytes: %v", nvme.SQESize+c.recvs.dataSize, wc.Status))
	default:
		c.end(fmt.Errorf("receive failed: %v (vendor error %#x)", wc.Status, wc.Vendor))
	}
	c.settle()
}

// arrived takes a capsule: it gets a slot, or ends the connection.
func (c *conn) arrived(p capsule) {
	c.stats.Capsules++
	c.stats.CapsuleBytes += uint64(p.n)
	switch {
	case c.closing:
		c.dropRecv(p.recv)
		c.settle()
	case p.n < nvme.SQESize:
		c.dropRecv(p.recv)
		err := fmt.Errorf("%w: %d bytes", errShortCapsule, p.n)
		c.queue.Fail(err)
		c.end(err)
	case c.outstanding == c.depth:
		c.dropRecv(p.recv)
		c.end(fmt.Errorf("%w (%d)", errOutstanding, c.depth))
	case c.free == nil:
		c.outstanding++
		c.stats.SlotWaits++
		c.waiting.push(p)
	default:
		c.outstanding++
		c.start(c.take(), p)
	}
}

// dropRecv gives back a receive that no slot needs any more. One of the
// connection's own is posted again with the response; this is for shared ones,
// and for those of a connection that ends, which stay where they are.
func (c *conn) dropRecv(i int32) {
	if c.shared {
		c.dev.srq.give(i)
	}
}
