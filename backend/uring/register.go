package uring

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxBuffer is the largest registered buffer in bytes; longer memory is to be
// registered in parts.
const MaxBuffer = 1 << 30

func (r *Ring) register(code uintptr, arg unsafe.Pointer, n int) error {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), code, uintptr(arg), uintptr(n), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("io_uring_register", errno)
	}
	return nil
}

// RegisterBuffers pins memory for OpReadFixed and OpWriteFixed, which name it
// by its index here. Each is at most MaxBuffer. ENOMEM means that the memory
// lock limit forbids it.
func (r *Ring) RegisterBuffers(bufs [][]byte) error {
	iovs := make([]unix.Iovec, len(bufs))
	for i, b := range bufs {
		iovs[i].Base = unsafe.SliceData(b)
		iovs[i].SetLen(len(b))
	}
	return r.register(registerBuffers, unsafe.Pointer(unsafe.SliceData(iovs)), len(iovs))
}

// UnregisterBuffers undoes RegisterBuffers.
func (r *Ring) UnregisterBuffers() error { return r.register(unregisterBuffers, nil, 0) }

// RegisterFiles names descriptors by their index for entries with FixedFile.
func (r *Ring) RegisterFiles(fds []int32) error {
	return r.register(registerFiles, unsafe.Pointer(unsafe.SliceData(fds)), len(fds))
}

// UnregisterFiles undoes RegisterFiles.
func (r *Ring) UnregisterFiles() error { return r.register(unregisterFiles, nil, 0) }

// RegisterEventFD names the eventfd that completions signal while SetEvents is
// on.
func (r *Ring) RegisterEventFD(fd int) error {
	v := int32(fd)
	return r.register(registerEventFD, unsafe.Pointer(&v), 1)
}

// Supports says whether the kernel knows all of the opcodes.
func (r *Ring) Supports(ops ...Opcode) bool {
	var p probe
	if r.register(registerProbe, unsafe.Pointer(&p), len(p.ops)) != nil {
		return false // before Linux 5.6
	}
	for _, op := range ops {
		if op > Opcode(p.lastOp) || p.ops[op].flags&probeSupported == 0 {
			return false
		}
	}
	return true
}
