// Package file is the backend over a regular file or a block device.
//
// I/O goes through io_uring, one ring per queue, or through blocking calls on
// a pool of threads where the system forbids io_uring; past the page cache
// (O_DIRECT) where the medium can do that in units of the block size, else
// through it. Device.Info says which. Linux 5.6 and later have what io_uring
// needs here, Linux 4.7 what the pool needs.
//
// # Blocks smaller than the medium's
//
// A 512-byte block over a medium whose direct I/O needs 4096-byte units would
// have to be written by reading and writing back its neighbours, which two
// queues can do at once. The page cache does that correctly, so such a device
// uses it (and refuses DirectOn with backend.ErrBlockSize). Memory that is not
// aligned as direct I/O wants it is copied through aligned memory of the queue.
//
// # Durability
//
// A completed Write is in the page cache or the drive's cache: Info.WriteCache
// is true, unless Options.WriteThrough is set or the medium is a block device
// that has no volatile cache and is written directly. FUA is RWF_DSYNC, or the
// write followed by fdatasync where there is no such flag; a Read with FUA is
// followed by fdatasync, so that what it gave is stable. Flush is fdatasync;
// Flushes that arrive while one runs share the next. After an fdatasync that
// failed, the kernel has forgotten which data it could not write, and the next
// one would succeed: every later Flush of the device therefore fails with
// Write Fault until it is opened again. Device.Failed tells.
//
// # Space
//
// Discard punches a hole in a file, which reads as zeroes, and is BLKDISCARD
// on a block device, which promises nothing about the data. Where neither is
// possible Info.Kinds lacks Discard, and one that is submitted does nothing.
// Write Zeroes marks the range (fallocate) or, where that is not possible,
// writes it.
//
// # A size that changes
//
// Refresh looks at the size; so does a read that meets the end of the medium.
// Operations beyond the end found then are LBA Out of Range. A write beyond
// the end of a file that was truncated since the last look extends the file
// again, as any writer's does.
package file
