package backend

import (
	"errors"
	"fmt"
)

// OptionError is a field of a backend's Options that cannot be used.
type OptionError struct {
	Field string // as the Options struct spells it
	Value any
	Want  string // what would have been right
}

func (e *OptionError) Error() string {
	if s, ok := e.Value.(string); ok {
		return fmt.Sprintf("%s is %q, want %s", e.Field, s, e.Want)
	}
	return fmt.Sprintf("%s is %v, want %s", e.Field, e.Value, e.Want)
}

// Block sizes a namespace can have, in bytes.
const (
	MinBlockSize     = 512
	MaxBlockSize     = 4096
	DefaultBlockSize = MaxBlockSize
)

// CheckBlockSize is nil for 512 and 4096.
func CheckBlockSize(bytes uint32) error {
	if bytes == MinBlockSize || bytes == MaxBlockSize {
		return nil
	}
	return &OptionError{"BlockSize", bytes, "512 or 4096"}
}

// CheckGeometry is what CheckBlockSize and CheckSize find wrong.
func CheckGeometry(size uint64, blockSize uint32) error {
	if err := CheckBlockSize(blockSize); err != nil {
		return errors.Join(err, CheckSize(size, 1))
	}
	return CheckSize(size, blockSize)
}

// CheckSize is nil when size is a positive multiple of the block size that a
// file offset can hold.
func CheckSize(size uint64, blockSize uint32) error {
	const maxOffset = 1<<63 - 1
	switch {
	case size == 0:
		return &OptionError{"Size", size, "at least one block"}
	case size > maxOffset:
		return &OptionError{"Size", size, "less than 2^63 bytes"}
	case size%uint64(blockSize) != 0:
		return &OptionError{"Size", size, fmt.Sprintf("a multiple of the block size %d", blockSize)}
	}
	return nil
}
