package backend

// A Lender is a Queue that can answer reads from memory of its own without a
// copy (the cache). Who sends the data takes it from that memory and gives it
// back when the memory may change again.
type Lender interface {
	Queue
	// Lend answers a read of length bytes at offset, multiples of the block
	// size within the device, at once and completely, or not at all. It
	// appends the pieces of the data in order to bufs, never beyond its
	// capacity, and returns them; their lengths add up to length. ok is false,
	// and nothing is lent, when the data is not in memory, when it takes more
	// pieces than there is room for, or when there is a doubt: the read is to
	// be submitted then. What is lent is the medium's content at one moment
	// between the call and its return, as a Read that completed there would
	// have found it, and stays as it is until Return.
	Lend(offset, length uint64, bufs [][]byte) (lent [][]byte, ok bool)
	// Return gives back the pieces that one Lend appended, all of them, once.
	// Closing the queue before that is a fault of the caller.
	Return(lent [][]byte)
}

// Lending is implemented by devices whose queues are Lenders.
type Lending interface {
	Device
	// Lendable is the memory that all lent pieces lie in, so that it can be
	// registered in advance. It is the same from the device's making to its
	// Close.
	Lendable() []byte
}
