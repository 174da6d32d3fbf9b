package imagecopy

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sourceOf makes a source of a file and says how many bytes it has; of a pipe it
// does not know and says 0. limit, when not 0, is how many to take.
func sourceOf(f *os.File, limit int64, piece int) (source, int64, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	size := info.Size()
	switch mode := info.Mode(); {
	case mode.IsRegular():
	case mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0:
		if size, err = f.Seek(0, io.SeekEnd); err != nil {
			return nil, 0, err
		}
	case mode.IsDir():
		return nil, 0, fmt.Errorf("%s is a directory", f.Name())
	default:
		return &pipe{r: f, limit: limit}, limit, nil
	}
	if limit > size {
		return nil, 0, fmt.Errorf("%s has %d bytes, fewer than %d", f.Name(), size, limit)
	}
	if limit > 0 {
		size = limit
	}
	return &file{f: f, end: size, piece: piece}, size, nil
}

// file is a file as a source: its data in pieces, its holes in larger ones.
type file struct {
	f     *os.File
	at    int64
	end   int64
	piece int
	// extent is where what is at at ends: a hole when zero.
	extent int64
	zero   bool
}

func (s *file) next([]byte) (piece, error) {
	if s.at >= s.end {
		return piece{}, io.EOF
	}
	if s.at >= s.extent {
		if err := s.look(); err != nil {
			return piece{}, err
		}
	}
	most := s.piece
	if s.zero {
		most = zeroPiece
	}
	n := int(min(int64(most), s.extent-s.at, s.end-s.at))
	p := piece{off: s.at, n: n, zero: s.zero}
	s.at += int64(n)
	return p, nil
}

// look finds the extent at s.at. Extents are rounded to whole pieces, data
// winning.
func (s *file) look() error {
	data, err := s.f.Seek(s.at, unix.SEEK_DATA)
	if err != nil {
		// ENXIO: nothing but a hole up to the end. Else the file system knows of
		// no holes.
		s.extent, s.zero = s.end, errors.Is(err, unix.ENXIO)
		return nil
	}
	if whole := data - data%int64(s.piece); whole > s.at {
		s.extent, s.zero = whole, true
		return nil
	}
	hole, err := s.f.Seek(data, unix.SEEK_HOLE)
	if err != nil {
		return err
	}
	s.extent, s.zero = roundUp(hole, int64(s.piece)), false
	return nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

func (s *file) load(p piece, buf []byte) error {
	_, err := io.ReadFull(io.NewSectionReader(s.f, p.off, int64(p.n)), buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s became shorter", s.f.Name())
	}
	return err
}

// pipe is a source that can only be read in order.
type pipe struct {
	r     io.Reader
	at    int64
	limit int64 // 0: to its end
}

func (s *pipe) next(buf []byte) (piece, error) {
	if s.limit > 0 {
		buf = buf[:min(int64(len(buf)), s.limit-s.at)]
	}
	if len(buf) == 0 {
		return piece{}, io.EOF
	}
	n, err := io.ReadFull(s.r, buf)
	switch {
	case n > 0 && (err == nil || errors.Is(err, io.ErrUnexpectedEOF)):
	case errors.Is(err, io.EOF) && s.limit > 0:
		return piece{}, fmt.Errorf("the input has %d bytes, fewer than %d", s.at, s.limit)
	default:
		return piece{}, err
	}
	p := piece{off: s.at, n: n}
	s.at += int64(n)
	return p, nil
}

// load has nothing to do: next has read the piece into the worker's buffer.
func (s *pipe) load(piece, []byte) error { return nil }

// formats are the beginnings of images that are not raw.
var formats = map[string]string{
	"QFI\xfb": "qcow2", "KDMV": "vmdk", "vhdxfile": "vhdx", "conectix": "vpc", "<<< ": "vdi", //nolint:gocritic // that is how it begins
}

// FormatOf names the format of an image that is not raw, by how it begins;
// empty when nothing is known against it.
func FormatOf(f io.ReaderAt) string {
	b := make([]byte, 8)
	n, _ := f.ReadAt(b, 0)
	for head, name := range formats {
		if n >= len(head) && string(b[:len(head)]) == head {
			return name
		}
	}
	return ""
}
