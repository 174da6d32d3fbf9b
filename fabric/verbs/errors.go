//go:build linux && cgo && !nordma

package verbs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// sentinels are the errors of package fabric that an errno of either library
// stands for. ENOMEM and ENODEV are missing: what they mean depends on the call.
var sentinels = map[syscall.Errno]error{
	unix.EINVAL:        fabric.ErrInvalid,
	unix.EBUSY:         fabric.ErrBusy,
	unix.EOPNOTSUPP:    fabric.ErrNotSupported,
	unix.ENOSYS:        fabric.ErrNotSupported,
	unix.ETIMEDOUT:     fabric.ErrTimeout,
	unix.EADDRINUSE:    fabric.ErrAddrInUse,
	unix.EADDRNOTAVAIL: fabric.ErrAddrNotAvailable,
	unix.ENETUNREACH:   fabric.ErrUnreachable,
	unix.EHOSTUNREACH:  fabric.ErrUnreachable,
	unix.ECONNREFUSED:  fabric.ErrUnreachable,
}

// errno turns an errno of C, positive or negative, into an error; 0 is nil.
func errno(n int) error {
	if n < 0 {
		n = -n
	}
	if n == 0 {
		return nil
	}
	e := syscall.Errno(n)
	if s := sentinels[e]; s != nil {
		return fmt.Errorf("%w (%w)", s, e)
	}
	return e
}

// lastErrno is errno for the error value of a cgo call that failed with a null
// pointer.
func lastErrno(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) && e != 0 {
		return errno(int(e))
	}
	return errno(int(unix.EIO))
}

// ctxError is the error of an attempt that its context ended.
func ctxError(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", fabric.ErrTimeout, err)
	}
	return err
}

// registerError explains a refused registration of n bytes: by far the most
// frequent cause is the limit of locked memory.
func registerError(err error, n int) error {
	if !errors.Is(err, unix.ENOMEM) {
		return err
	}
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) != nil || lim.Cur == unix.RLIM_INFINITY {
		return fmt.Errorf("%w: registering %s", err, humanize.IBytes(uint64(n)))
	}
	return fmt.Errorf("%w: registering %s, with a limit of %s of locked memory: raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit)",
		err, humanize.IBytes(uint64(n)), humanize.IBytes(lim.Cur))
}

const (
	deviceFolder = "/dev/infiniband/"
	cmDevice     = deviceFolder + "rdma_cm"
)

// openError explains why a device could not be opened: libibverbs says that its
// file does not exist when the user may not open it.
func openError(file string, err error) error {
	if unix.Access(file, unix.R_OK|unix.W_OK) == unix.EACCES {
		return noPermission(file, unix.EACCES)
	}
	return err
}

func noPermission(file string, err error) error {
	return fmt.Errorf("no permission for %s: run as root, or give the user access to it (%w)", file, err)
}

// cmError explains why no event channel could be had.
func cmError(err error, device string) error {
	switch _, statErr := os.Stat(device); {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %s", fabric.ErrNoDevice, diagnose(sysfsRoot))
	case errors.Is(statErr, fs.ErrNotExist):
		return fmt.Errorf("rdma_cm is not loaded: modprobe rdma_ucm (%w)", err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return noPermission(device, err)
	}
	return err
}

const sysfsRoot = "/sys/class"

// diagnose says why there is no RDMA device, and what would give one.
func diagnose(sysfs string) string {
	const make1 = "'rdma link add rxe0 type rxe netdev IFACE' makes one in software"
	if _, err := os.Stat(filepath.Join(sysfs, "infiniband_verbs")); err != nil {
		return "the kernel has no RDMA support loaded (modprobe ib_uverbs; " + make1 + ")"
	}
	known, err := os.ReadDir(filepath.Join(sysfs, "infiniband"))
	if err != nil || len(known) == 0 {
		return "the kernel knows no RDMA device (" + make1 + ")"
	}
	return fmt.Sprintf("the kernel knows %s, but libibverbs has no driver for it (install ibverbs-providers)", known[0].Name())
}

// Ends of a connection, as Conn.Err says them.
var (
	errDisconnected  = fmt.Errorf("disconnected: %w", net.ErrClosed)
	errPeerClosed    = fmt.Errorf("disconnected by the peer: %w", net.ErrClosed)
	errDeviceRemoved = fmt.Errorf("device removed: %w", fabric.ErrNoDevice)
	errClosed        = net.ErrClosed
)
