package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds of the handshake. Options that are longer than maxOption are skipped
// and refused; what is longer than maxSkip, or comes more often than
// maxOptions, is taken for an attack ("Termination of the session during option
// haggling").
const (
	maxOption  = 16 << 10
	maxSkip    = 1 << 20
	maxOptions = 1024
)

// errEnded is a handshake that the client has ended in order.
var errEnded = errors.New("ended by the client")

// export is what is said of the export during a handshake, and does not change
// during a connection.
type export struct {
	name, description string
	size              uint64 // bytes
	flags             uint16 // transmission flags without SEND_DF
	// Size constraints, bytes ("Size constraints").
	block, preferred, maximum uint32
}

// readOnly says whether writes are refused.
func (x *export) readOnly() bool { return x.flags&flagReadOnly != 0 }

// handshake is the state of a negotiation ("Handshake").
type handshake struct {
	rw io.ReadWriter
	x  export
	// closing says whether the server is about to end.
	closing func() bool

	structured bool // negotiated
	meta       bool // base:allocation is selected
	noZeroes   bool
	buf        [maxOption]byte
	out        []byte // replies that wait to be written
}

// transmission is the transmission flags.
func (h *handshake) transmission() uint16 {
	if h.structured {
		return h.x.flags | flagSendDF
	}
	return h.x.flags
}

// run negotiates until the transmission phase begins.
func (h *handshake) run() error {
	if err := h.greet(); err != nil {
		return err
	}
	for range maxOptions {
		begun, err := h.option()
		if err != nil || begun {
			return err
		}
	}
	return fmt.Errorf("more than %d options", maxOptions)
}

// greet exchanges flags ("Newstyle negotiation").
func (h *handshake) greet() error {
	be := binary.BigEndian
	b := be.AppendUint64(nil, magicInit)
	b = be.AppendUint64(b, magicOption)
	b = be.AppendUint16(b, flagFixedNewstyle|flagNoZeroes)
	if _, err := h.rw.Write(b); err != nil {
		return err
	}
	if _, err := io.ReadFull(h.rw, b[:4]); err != nil {
		return ended(err)
	}
	flags := be.Uint32(b)
	if flags&^uint32(flagFixedNewstyle|flagNoZeroes) != 0 {
		return fmt.Errorf("unknown client flags %#x", flags)
	}
	h.noZeroes = flags&uint32(flagNoZeroes) != 0
	return nil
}

// ended tells a client that leaves between messages from one that breaks off.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	return err
}

// option takes an option and answers it; it is true when the transmission phase
// begins.
func (h *handshake) option() (begun bool, err error) {
	head := h.buf[:optHeaderSize]
	if _, err := io.ReadFull(h.rw, head); err != nil {
		return false, ended(err)
	}
	be := binary.BigEndian
	opt, length := be.Uint32(head[8:]), be.Uint32(head[12:])
	switch magic := be.Uint64(head); {
	case magic != magicOption:
		return false, fmt.Errorf("an option with magic number %#x", magic)
	case length > maxSkip:
		return false, fmt.Errorf("option %d of %d bytes", opt, length)
	}
	h.out = h.out[:0]
	if length > maxOption {
		if _, err := io.CopyN(io.Discard, h.rw, int64(length)); err != nil {
			return false, err
		}
		if opt == optExportName {
			return false, fmt.Errorf("an export name of %d bytes", length)
		}
		h.fail(opt, repErrTooBig, fmt.Sprintf("%d bytes: expected at most %d", length, maxOption))
		return false, h.flush()
	}
	data := h.buf[:length]
	if _, err := io.ReadFull(h.rw, data); err != nil {
		return false, err
	}
	begun, err = h.answer(opt, data)
	return begun, errors.Join(h.flush(), err)
}

// answer answers an option whose data is there ("Option types").
func (h *handshake) answer(opt uint32, data []byte) (begun bool, err error) {
	switch opt {
	case optExportName:
		return true, h.exportName(data)
	case optAbort:
		h.reply(opt, repAck)
		return false, errEnded
	}
	if h.closing() {
		h.fail(opt, repErrShutdown, "the server is about to end")
		return false, nil
	}
	switch opt {
	case optList:
		if h.empty(opt, data) {
			name := binary.BigEndian.AppendUint32(nil, uint32(len(h.x.name)))
			h.reply(opt, repServer, name, []byte(h.x.name), []byte(h.x.description))
			h.reply(opt, repAck)
		}
	case optInfo, optGo:
		return h.info(opt, data) && opt == optGo, nil
	case optStructuredReply:
		if h.empty(opt, data) {
			h.structured = true
			h.reply(opt, repAck)
		}
	case optListMetaContext, optSetMetaContext:
		h.metaContext(opt, data)
	case optStartTLS:
		h.fail(opt, repErrUnsup, "no TLS here: use a unix socket, or loopback")
	default:
		h.fail(opt, repErrUnsup, fmt.Sprintf("option %d is not known", opt))
	}
	return false, nil
}

// empty says whether an option that has no data has none, and refuses it
// otherwise.
func (h *handshake) empty(opt uint32, data []byte) bool {
	if len(data) == 0 {
		return true
	}
	h.fail(opt, repErrInvalid, fmt.Sprintf("option %d has no data", opt))
	return false
}

// knows says whether a name is that of the export; the empty one is the default.
func (h *handshake) knows(name string) bool { return name == "" || name == h.x.name }

// exportName is NBD_OPT_EXPORT_NAME: there is no way to refuse it but to leave.
func (h *handshake) exportName(data []byte) error {
	if h.closing() || !h.knows(string(data)) {
		return fmt.Errorf("unknown export %.64q", data)
	}
	be := binary.BigEndian
	h.out = be.AppendUint64(h.out, h.x.size)
	h.out = be.AppendUint16(h.out, h.transmission())
	if !h.noZeroes {
		h.out = append(h.out, make([]byte, 124)...)
	}
	return nil
}

// info is NBD_OPT_INFO and NBD_OPT_GO; it is true when the export was found.
func (h *handshake) info(opt uint32, data []byte) bool {
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 2 || len(rest)-2 != 2*int(binary.BigEndian.Uint16(rest)) {
		h.fail(opt, repErrInvalid, "lengths that do not fit")
		return false
	}
	if !h.knows(name) {
		h.fail(opt, repErrUnknown, "there is no such export; NBD_OPT_LIST has its name")
		return false
	}
	be := binary.BigEndian
	b := be.AppendUint16(nil, infoExport)
	b = be.AppendUint64(b, h.x.size)
	h.reply(opt, repInfo, be.AppendUint16(b, h.transmission()))
	// Constraints are not the default: who does not ask is told all the same.
	b = be.AppendUint16(nil, infoBlockSize)
	b = be.AppendUint32(b, h.x.block)
	b = be.AppendUint32(b, h.x.preferred)
	h.reply(opt, repInfo, be.AppendUint32(b, h.x.maximum))
	for rest = rest[2:]; len(rest) > 0; rest = rest[2:] {
		switch typ := be.Uint16(rest); typ {
		case infoName:
			h.reply(opt, repInfo, be.AppendUint16(nil, typ), []byte(h.x.name))
		case infoDescription:
			h.reply(opt, repInfo, be.AppendUint16(nil, typ), []byte(h.x.description))
		}
		if len(h.out) > maxOption { // the same again and again
			h.out = h.out[:0]
			h.fail(opt, repErrTooBig, "too many information requests")
			return false
		}
	}
	h.reply(opt, repAck)
	return true
}

// metaContext is NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT
// ("Metadata querying").
func (h *handshake) metaContext(opt uint32, data []byte) {
	set := opt == optSetMetaContext
	if set {
		h.meta = false
	}
	if !h.structured {
		h.fail(opt, repErrInvalid, "structured replies come first")
		return
	}
	name, queries, ok := parseQueries(data)
	switch {
	case !ok:
		h.fail(opt, repErrInvalid, "lengths that do not fit")
		return
	case !h.knows(name):
		h.fail(opt, repErrUnknown, "there is no such export")
		return
	}
	found := !set && len(queries) == 0
	for _, q := range queries {
		if !strings.Contains(q, ":") {
			h.fail(opt, repErrInvalid, "a query without a namespace")
			return
		}
		found = found || q == contextAllocation || !set && q == "base:"
	}
	if found {
		id := uint32(0)
		if set {
			id, h.meta = contextID, true
		}
		h.reply(opt, repMetaContext, binary.BigEndian.AppendUint32(nil, id), []byte(contextAllocation))
	}
	h.reply(opt, repAck)
}

// parseQueries reads the data of a metadata context option.
func parseQueries(data []byte) (name string, queries []string, ok bool) {
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 4 {
		return "", nil, false
	}
	count := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	for ; count > 0; count-- {
		var q string
		if q, rest, ok = cutString(rest); !ok {
			return "", nil, false
		}
		queries = append(queries, q)
	}
	return name, queries, len(rest) == 0
}

// cutString takes a string with its length from the beginning of b.
func cutString(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(b)
	b = b[4:]
	if uint64(n) > uint64(len(b)) || n > maxString || !utf8.Valid(b[:n]) {
		return "", nil, false
	}
	return string(b[:n]), b[n:], true
}

// reply adds an option reply, whose data is all parts.
func (h *handshake) reply(opt, typ uint32, parts ...[]byte) {
	length := 0
	for _, p := range parts {
		length += len(p)
	}
	be := binary.BigEndian
	h.out = be.AppendUint64(h.out, magicReply)
	h.out = be.AppendUint32(h.out, opt)
	h.out = be.AppendUint32(h.out, typ)
	h.out = be.AppendUint32(h.out, uint32(length))
	for _, p := range parts {
		h.out = append(h.out, p...)
	}
}

// fail adds an error reply with a message for people.
func (h *handshake) fail(opt, typ uint32, message string) { h.reply(opt, typ, []byte(message)) }

// flush writes the replies.
func (h *handshake) flush() error {
	if len(h.out) == 0 {
		return nil
	}
	_, err := h.rw.Write(h.out)
	return err
}
