package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// cpioWriter writes the "newc" archive format of an initramfs (the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst). Writing it here
// needs no root for the device nodes and no cpio program.
type cpioWriter struct {
	w   io.Writer
	ino int
	off int64
	err error
}

// Types and device numbers of archive entries.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
	cpioChar = 0o020000
)

func (c *cpioWriter) write(p []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(p)
	c.off += int64(n)
	c.err = err
}

func (c *cpioWriter) pad() {
	if n := c.off % 4; n != 0 {
		c.write(make([]byte, 4-n))
	}
}

// entry writes one member; major and minor are those of a device node.
func (c *cpioWriter) entry(name string, mode fs.FileMode, major, minor int, data []byte) {
	c.ino++
	c.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.ino, uint32(mode), 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0))
	c.write(append([]byte(name), 0))
	c.pad()
	c.write(data)
	c.pad()
}

func (c *cpioWriter) dir(name string)               { c.entry(name, cpioDir|0o755, 0, 0, nil) }
func (c *cpioWriter) file(name string, data []byte) { c.entry(name, cpioFile|0o755, 0, 0, data) }
func (c *cpioWriter) char(name string, major, minor int) {
	c.entry(name, cpioChar|0o600, major, minor, nil)
}

// fileFrom adds the file at path under name.
func (c *cpioWriter) fileFrom(name, path string) {
	data, err := os.ReadFile(path)
	if err != nil && c.err == nil {
		c.err = err
		return
	}
	c.file(name, data)
}

func (c *cpioWriter) close() error {
	c.entry("TRAILER!!!", 0, 0, 0, nil)
	return c.err
}
