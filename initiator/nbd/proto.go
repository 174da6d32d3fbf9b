package nbd

import "encoding/binary"

// DefaultPort is the port of NBD ("Newstyle negotiation").
const DefaultPort = 10809

// Magic numbers ("Newstyle negotiation", "Fixed newstyle negotiation",
// "Request message", "Simple reply message", "Structured reply chunk message").
const (
	magicInit       = 0x4e42444d41474943 // NBDMAGIC
	magicOption     = 0x49484156454f5054 // IHAVEOPT
	magicReply      = 0x0003e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef
)

// Handshake and client flags ("Flag fields").
const (
	flagFixedNewstyle uint16 = 1 << 0
	flagNoZeroes      uint16 = 1 << 1
)

// Transmission flags ("Transmission flags").
const (
	flagHasFlags        uint16 = 1 << 0
	flagReadOnly        uint16 = 1 << 1
	flagSendFlush       uint16 = 1 << 2
	flagSendFUA         uint16 = 1 << 3
	flagSendTrim        uint16 = 1 << 5
	flagSendWriteZeroes uint16 = 1 << 6
	flagSendDF          uint16 = 1 << 7
	flagCanMultiConn    uint16 = 1 << 8
	flagSendFastZero    uint16 = 1 << 11
)

// Options ("Option types").
const (
	optExportName      uint32 = 1
	optAbort           uint32 = 2
	optList            uint32 = 3
	optStartTLS        uint32 = 5
	optInfo            uint32 = 6
	optGo              uint32 = 7
	optStructuredReply uint32 = 8
	optListMetaContext uint32 = 9
	optSetMetaContext  uint32 = 10
)

// Option replies ("Option reply types").
const (
	repAck         uint32 = 1
	repServer      uint32 = 2
	repInfo        uint32 = 3
	repMetaContext uint32 = 4

	repErrUnsup    uint32 = 1<<31 + 1
	repErrInvalid  uint32 = 1<<31 + 3
	repErrUnknown  uint32 = 1<<31 + 6
	repErrShutdown uint32 = 1<<31 + 7
	repErrTooBig   uint32 = 1<<31 + 9
)

// Information types of NBD_REP_INFO ("Option reply types").
const (
	infoExport      uint16 = 0
	infoName        uint16 = 1
	infoDescription uint16 = 2
	infoBlockSize   uint16 = 3
)

// Request types ("Request types").
const (
	cmdRead        uint16 = 0
	cmdWrite       uint16 = 1
	cmdDisc        uint16 = 2
	cmdFlush       uint16 = 3
	cmdTrim        uint16 = 4
	cmdWriteZeroes uint16 = 6
	cmdBlockStatus uint16 = 7
)

// Command flags ("Command flags").
const (
	cmdFlagFUA      uint16 = 1 << 0
	cmdFlagNoHole   uint16 = 1 << 1
	cmdFlagDF       uint16 = 1 << 2
	cmdFlagReqOne   uint16 = 1 << 3
	cmdFlagFastZero uint16 = 1 << 4
)

// Structured reply chunks ("Structured reply flags", "Structured reply types").
const (
	replyFlagDone uint16 = 1

	replyNone        uint16 = 0
	replyOffsetData  uint16 = 1
	replyBlockStatus uint16 = 5
	replyError       uint16 = 1<<15 + 1
)

// Errors of replies ("Error values").
const (
	errnoPerm     uint32 = 1
	errnoIO       uint32 = 5
	errnoNoMem    uint32 = 12
	errnoInval    uint32 = 22
	errnoNoSpace  uint32 = 28
	errnoOverflow uint32 = 75
	errnoNotSup   uint32 = 95
	errnoShutdown uint32 = 108
)

// The one metadata context ("The base: metadata namespace"), and its ID.
const (
	contextAllocation = "base:allocation"
	contextID         = 1
)

// Sizes in bytes.
const (
	headerSize     = 28
	optHeaderSize  = 16
	simpleSize     = 16
	structuredSize = 20
	maxString      = 4096 // ("Conventions")
)

// header is a request message without its payload ("Request message").
type header struct {
	flags, typ     uint16
	cookie, offset uint64
	length         uint32
}

// parseHeader reads headerSize bytes; it is false when the magic number is
// wrong.
func parseHeader(b []byte) (h header, ok bool) {
	be := binary.BigEndian
	h = header{
		flags: be.Uint16(b[4:]), typ: be.Uint16(b[6:]), cookie: be.Uint64(b[8:]),
		offset: be.Uint64(b[16:]), length: be.Uint32(b[24:]),
	}
	return h, be.Uint32(b) == magicRequest
}

// payload is the number of bytes that follow the header.
func (h *header) payload() uint32 {
	if h.typ == cmdWrite {
		return h.length
	}
	return 0
}

// putSimple fills b with a simple reply.
func putSimple(b []byte, cookie uint64, errno uint32) int {
	be := binary.BigEndian
	be.PutUint32(b, magicSimple)
	be.PutUint32(b[4:], errno)
	be.PutUint64(b[8:], cookie)
	return simpleSize
}

// putChunk fills b with the header of a structured reply's only chunk, length
// bytes of which follow.
func putChunk(b []byte, typ uint16, cookie uint64, length uint32) int {
	be := binary.BigEndian
	be.PutUint32(b, magicStructured)
	be.PutUint16(b[4:], replyFlagDone)
	be.PutUint16(b[6:], typ)
	be.PutUint64(b[8:], cookie)
	be.PutUint32(b[16:], length)
	return structuredSize
}

// putData fills b with what stands before the data of a read.
func putData(b []byte, cookie, offset uint64, length uint32) int {
	n := putChunk(b, replyOffsetData, cookie, 8+length)
	binary.BigEndian.PutUint64(b[n:], offset)
	return n + 8
}

// putError fills b with an error chunk; of the message is taken what fits.
func putError(b []byte, cookie uint64, errno uint32, message string) int {
	message = message[:min(len(message), len(b)-structuredSize-6)]
	n := putChunk(b, replyError, cookie, uint32(6+len(message)))
	binary.BigEndian.PutUint32(b[n:], errno)
	binary.BigEndian.PutUint16(b[n+4:], uint16(len(message)))
	return n + 6 + copy(b[n+6:], message)
}

// putStatus fills b with a block status of one extent, of which nothing is
// known but that it is there.
func putStatus(b []byte, cookie uint64, length uint32) int {
	n := putChunk(b, replyBlockStatus, cookie, 12)
	binary.BigEndian.PutUint32(b[n:], contextID)
	binary.BigEndian.PutUint32(b[n+4:], length)
	binary.BigEndian.PutUint32(b[n+8:], 0)
	return n + 12
}
