package roce

import (
	"fmt"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// Port is the UDP port of RoCEv2.
const Port = 4791

// Options configure a Provider. The zero value is what most want.
type Options struct {
	// MTU is the largest path MTU to use: 256, 512, 1024, 2048 or 4096; 0 is
	// as large as the interface allows.
	MTU int
	// Port is the UDP port of both ends; 0 is the one of RoCEv2, 4791. Hardware
	// and kernels know no other.
	Port uint16
	// NoGSO sends each packet by itself, NoGRO receives it so. Without them a
	// batch of packets crosses the kernel at once where it can.
	NoGSO, NoGRO bool
	// AckTimeout is how long a packet may be unacknowledged before a try
	// counts as failed, as a code of the InfiniBand standard: 4.096 us * 2^t,
	// 1 to 31; 0 means 17 (0.54 s). Retransmission begins long before that.
	// ConnConfig.RetryCount says how many tries may fail.
	AckTimeout uint8
	// MinTimeout is the shortest time until a retransmission; 0 means 4 ms.
	MinTimeout time.Duration
	// RNRDelay is how long a peer shall wait whose message met no receive; 0
	// means 0.64 ms. It is rounded up to one of the standard's 32 values.
	RNRDelay time.Duration
	// Window is how many packets of one connection may be unacknowledged at
	// most; 0 means 256. After losses it is smaller for a while.
	Window int
	// DSCP is the class (0 to 63) of all packets whose connection asks for
	// none.
	DSCP uint8
	// RecvBuffer and SendBuffer are the sizes of the socket buffers of a
	// completion queue in bytes; 0 means 8 MiB and 4 MiB. Without privilege
	// the system's limits apply (net.core.rmem_max).
	RecvBuffer, SendBuffer int
}

func (o *Options) setDefaults() error {
	switch {
	case o.MTU != 0 && wire.MTUOf(o.MTU).Bytes() != o.MTU:
		return fmt.Errorf("%w: path MTU %d is none of 256, 512, 1024, 2048, 4096", fabric.ErrInvalid, o.MTU)
	case o.AckTimeout > 31:
		return fmt.Errorf("%w: ACK timeout code %d is not in 1 to 31", fabric.ErrInvalid, o.AckTimeout)
	case o.DSCP > 63:
		return fmt.Errorf("%w: DSCP %d is not in 0 to 63", fabric.ErrInvalid, o.DSCP)
	case o.Window < 0 || o.RecvBuffer < 0 || o.SendBuffer < 0 || o.MinTimeout < 0 || o.RNRDelay < 0:
		return fmt.Errorf("%w: a size or time is negative", fabric.ErrInvalid)
	}
	def(&o.MTU, wire.MTU4096.Bytes())
	def(&o.Port, Port)
	def(&o.AckTimeout, 17)
	def(&o.RNRDelay, 640*time.Microsecond)
	def(&o.RecvBuffer, 8<<20)
	def(&o.SendBuffer, 4<<20)
	return nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
