package file

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
)

// probe finds out what the medium can do.
func (m *medium) probe(o *Options) error {
	if o.Direct != DirectOff {
		if err := m.tryDirect(o.BlockSize); err != nil && o.Direct == DirectOn {
			return err
		}
	}
	if m.block {
		m.probeBlock()
	} else {
		m.probeFile(o.ReadOnly)
	}
	if o.WriteThrough {
		m.cached = false
	}
	return nil
}

// tryDirect switches the medium to direct I/O, or says why it cannot be.
func (m *medium) tryDirect(blockSize uint32) error {
	if err := m.setDirect(true); err != nil {
		return fmt.Errorf("direct I/O not possible: %w", err)
	}
	err := m.directAlign()
	if err == nil && m.offAlign > blockSize {
		err = fmt.Errorf("%w: direct I/O needs units of %d bytes, the blocks have %d: make BlockSize %d, or do not insist on Direct",
			backend.ErrBlockSize, m.offAlign, blockSize, m.offAlign)
	}
	if err != nil {
		return errors.Join(err, m.setDirect(false))
	}
	m.direct = true
	return nil
}

func (m *medium) setDirect(on bool) error {
	flags, err := unix.FcntlInt(uintptr(m.fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	flags &^= unix.O_DIRECT
	if on {
		flags |= unix.O_DIRECT
	}
	_, err = unix.FcntlInt(uintptr(m.fd), unix.F_SETFL, flags)
	return err
}

// directAlign finds the alignments of direct I/O: from statx, which tells them
// since Linux 6.1 on most file systems, else by trial. tmpfs lets it be
// switched on without having it.
func (m *medium) directAlign() error {
	var fs unix.Statfs_t
	if unix.Fstatfs(m.fd, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && !m.block {
		return errors.New("direct I/O not possible: tmpfs is all page cache")
	}
	var st unix.Statx_t
	err := unix.Statx(m.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err == nil && st.Mask&unix.STATX_DIOALIGN != 0 {
		m.memAlign, m.offAlign = st.Dio_mem_align, st.Dio_offset_align
		if m.memAlign == 0 || m.offAlign == 0 {
			return errors.New("direct I/O not possible on this file")
		}
		return nil
	}
	return m.tryAlign()
}

// tryAlign reads in ever larger units until one works.
func (m *medium) tryAlign() error {
	const most = 4096
	page, err := unix.Mmap(-1, 0, most, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	for unit := max(m.logical, backend.MinBlockSize); unit <= most; unit *= 2 {
		if _, err = unix.Pread(m.fd, page[:unit], 0); err == nil {
			m.memAlign, m.offAlign = unit, unit
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("direct I/O not possible: read: %w", err)
	}
	return errors.Join(err, unix.Munmap(page))
}

// probeFile looks at a regular file. Holes are tried behind its end, where
// there is nothing to lose.
func (m *medium) probeFile(readOnly bool) {
	var st unix.Stat_t
	if unix.Fstat(m.fd, &st) == nil {
		unit := int64(st.Blksize)
		m.granularity = uint32(unit)
		behind := (st.Size + unit - 1) / unit * unit
		m.discards = !readOnly && unix.Fallocate(m.fd, punchHole, behind, unit) == nil
	}
	m.cached = true
	m.identity = "file:" + m.path
}

// probeBlock asks sysfs about a block device.
func (m *medium) probeBlock() {
	m.discards = m.queueLimit("discard_max_bytes") > 0
	m.granularity = uint32(max(m.queueLimit("physical_block_size"), m.queueLimit("minimum_io_size")))
	m.cached = !m.direct || m.sysfs("../queue/write_cache", "queue/write_cache") != "write through"
	m.identity = "block:" + m.path
	// The names below are the device's own: the path may lead elsewhere after
	// a restart.
	if id := m.sysfs("wwid", "device/wwid", "dm/uuid", "serial", "../wwid", "../device/wwid", "../serial"); id != "" {
		m.identity = "block:" + id
		if part := m.sysfs("partition"); part != "" {
			m.identity += "-part" + part
		}
	}
}

// sysfs reads the first of the attributes of a block device that exists and
// is not empty. Those of a partition's whole disk are under "..".
func (m *medium) sysfs(attributes ...string) string {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(m.rdev), unix.Minor(m.rdev))
	for _, a := range attributes {
		if b, err := os.ReadFile(dir + a); err == nil {
			if s := strings.TrimSpace(string(b)); s != "" {
				return s
			}
		}
	}
	return ""
}

func (m *medium) queueLimit(name string) uint64 {
	n, _ := strconv.ParseUint(m.sysfs("queue/"+name, "../queue/"+name), 10, 64)
	return n
}
