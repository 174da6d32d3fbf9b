package file

import (
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// status is what a command says of an error of its system call. A device that
// is gone, and whatever we have no better name for, is InternalError.
func status(kind backend.Kind, e unix.Errno) nvme.Status {
	switch e {
	case 0:
		return nvme.Success
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		if kind != backend.Read {
			return nvme.CapacityExceeded
		}
	case unix.EROFS, unix.EBADF, unix.EPERM, unix.EACCES, unix.ETXTBSY:
		if kind != backend.Read {
			return nvme.NamespaceWriteProtected
		}
	case unix.EIO, unix.EILSEQ, unix.EBADMSG, unix.EUCLEAN, unix.ENODATA, unix.EREMOTEIO, unix.ENOLINK, unix.ETIMEDOUT:
		if kind != backend.Read {
			return nvme.WriteFault
		}
		return nvme.UnrecoveredReadError
	}
	return nvme.InternalError
}

// passing says that the same call may succeed when it is made again.
// ECANCELED is how io_uring ends the operations of a thread that exits.
func passing(e unix.Errno) bool {
	return e == unix.EINTR || e == unix.EAGAIN || e == unix.ECANCELED || e == unix.ENOMEM || e == unix.EBUSY
}

// unsupported says that the medium does not know the call at all.
func unsupported(e unix.Errno) bool {
	return e == unix.EOPNOTSUPP || e == unix.ENOSYS || e == unix.ENOTTY
}
