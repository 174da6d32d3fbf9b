package captures

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Frame is a captured frame, from its Ethernet header on.
type Frame struct {
	Time time.Time
	Data []byte // what was captured
	Len  int    // what there was on the wire, at least len(Data)
}

const (
	magicMicro   = 0xA1B2C3D4
	magicNano    = 0xA1B23C4D
	linkEthernet = 1
	// maxFrame bounds what a record may claim, well above any frame that
	// segmentation offload lets a capture see.
	maxFrame = 1 << 18
)

// format is what the head of a pcap file says of the rest.
type format struct {
	order binary.ByteOrder
	unit  time.Duration // of the fraction of a time stamp
}

// Read reads a classic pcap file of Ethernet frames, of either byte order, with
// time stamps in micro- or nanoseconds.
func Read(r io.Reader) ([]Frame, error) {
	var head [24]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("pcap header: %w", err)
	}
	f, err := parseHead(head[:])
	if err != nil {
		return nil, err
	}
	var frames []Frame
	for {
		frame, err := f.next(r)
		if errors.Is(err, io.EOF) {
			return frames, nil
		}
		if err != nil {
			return nil, fmt.Errorf("pcap record %d: %w", len(frames)+1, err)
		}
		frames = append(frames, frame)
	}
}

func parseHead(h []byte) (f format, err error) {
	f.order = binary.LittleEndian
	if be := binary.BigEndian.Uint32(h); be == magicMicro || be == magicNano {
		f.order = binary.BigEndian
	}
	switch magic := f.order.Uint32(h); magic {
	case magicMicro:
		f.unit = time.Microsecond
	case magicNano:
		f.unit = time.Nanosecond
	default:
		return f, fmt.Errorf("pcap magic %#x", magic)
	}
	if link := f.order.Uint32(h[20:]); link != linkEthernet {
		return f, fmt.Errorf("pcap link type %d, want Ethernet", link)
	}
	return f, nil
}

// next is the next frame; it is io.EOF only between records.
func (f format) next(r io.Reader) (Frame, error) {
	var head [16]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n, length := f.order.Uint32(head[8:]), f.order.Uint32(head[12:])
	if n > length || length > maxFrame {
		return Frame{}, fmt.Errorf("%d of %d bytes", n, length)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	stamp := time.Unix(int64(f.order.Uint32(head[:])), int64(f.order.Uint32(head[4:]))*int64(f.unit)).UTC()
	return Frame{Time: stamp, Data: data, Len: int(length)}, nil
}
