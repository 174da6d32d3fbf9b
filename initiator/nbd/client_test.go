package nbd

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

// client speaks NBD, also badly.
type client struct {
	*rig
	net.Conn
	size       uint64
	flags      uint16
	block      [3]uint32
	structured bool
	cookie     uint64
}

// repl is an option reply.
type repl struct {
	typ  uint32
	data []byte
}

// dial connects and exchanges flags.
func (r *rig) dial(flags uint32) *client {
	r.Helper()
	c, err := net.Dial("unix", r.path)
	r.must(err)
	r.Cleanup(func() { _ = c.Close() })
	r.must(c.SetDeadline(time.Now().Add(patience)))
	k := &client{rig: r, Conn: c}
	b := k.take(18)
	be := binary.BigEndian
	if be.Uint64(b) != magicInit || be.Uint64(b[8:]) != magicOption || be.Uint16(b[16:]) != flagFixedNewstyle|flagNoZeroes {
		r.Fatalf("the greeting is %x", b)
	}
	k.send(be.AppendUint32(nil, flags))
	return k
}

func (k *client) send(b []byte) {
	k.Helper()
	_, err := k.Write(b)
	k.must(err)
}

func (k *client) take(n int) []byte {
	k.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(k, b); err != nil {
		k.Fatalf("read %d bytes: %v", n, err)
	}
	return b
}

// gone checks that the server has cut the connection.
func (k *client) gone() {
	k.Helper()
	n, err := io.Copy(io.Discard, k.Conn)
	var timeout net.Error
	if n != 0 || errors.As(err, &timeout) && timeout.Timeout() {
		k.Errorf("%d bytes, %v instead of the end of the connection", n, err)
	}
}

// option sends an option and returns all replies to it.
func (k *client) option(opt uint32, data []byte) (list []repl) {
	k.Helper()
	k.send(append(optionHeader(opt, len(data)), data...))
	for {
		b := k.take(20)
		be := binary.BigEndian
		if be.Uint64(b) != magicReply || be.Uint32(b[8:]) != opt {
			k.Fatalf("option %d is answered with %x", opt, b)
		}
		rep := repl{be.Uint32(b[12:]), k.take(int(be.Uint32(b[16:])))}
		list = append(list, rep)
		if rep.typ == repAck || rep.typ>>31 == 1 {
			return list
		}
	}
}

func optionHeader(opt uint32, length int) []byte {
	be := binary.BigEndian
	b := be.AppendUint64(nil, magicOption)
	b = be.AppendUint32(b, opt)
	return be.AppendUint32(b, uint32(length))
}

// str is a string with its length.
func str(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }

// infoData is the data of NBD_OPT_INFO and NBD_OPT_GO.
func infoData(name string, types ...uint16) []byte {
	b := binary.BigEndian.AppendUint16(str(name), uint16(len(types)))
	for _, t := range types {
		b = binary.BigEndian.AppendUint16(b, t)
	}
	return b
}

// metaData is the data of the metadata context options.
func metaData(name string, queries ...string) []byte {
	b := binary.BigEndian.AppendUint32(str(name), uint32(len(queries)))
	for _, q := range queries {
		b = append(b, str(q)...)
	}
	return b
}

// connect is a client in the transmission phase.
func (r *rig) connect() *client {
	r.Helper()
	k := r.dial(3)
	k.option(optStructuredReply, nil)
	k.structured = true
	k.option(optSetMetaContext, metaData("", contextAllocation))
	k.begin()
	return k
}

// plain is a client with simple replies.
func (r *rig) plain() *client {
	r.Helper()
	k := r.dial(3)
	k.begin()
	return k
}

// begin sends NBD_OPT_GO.
func (k *client) begin() {
	k.Helper()
	be := binary.BigEndian
	list := k.option(optGo, infoData("", infoBlockSize))
	for _, rep := range list {
		switch {
		case rep.typ != repInfo:
		case be.Uint16(rep.data) == infoExport:
			k.size, k.flags = be.Uint64(rep.data[2:]), be.Uint16(rep.data[10:])
		case be.Uint16(rep.data) == infoBlockSize:
			k.block = [3]uint32{be.Uint32(rep.data[2:]), be.Uint32(rep.data[6:]), be.Uint32(rep.data[10:])}
		}
	}
	if last := list[len(list)-1]; last.typ != repAck || k.size == 0 || k.block[0] == 0 {
		k.Fatalf("NBD_OPT_GO: %+v", list)
	}
}

// request sends a request and returns its cookie.
func (k *client) request(typ, flags uint16, off uint64, length int, payload []byte) uint64 {
	k.Helper()
	k.cookie++
	k.send(append(requestHeader(typ, flags, k.cookie, off, uint32(length)), payload...))
	return k.cookie
}

func requestHeader(typ, flags uint16, cookie, off uint64, length uint32) []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, magicRequest)
	b = be.AppendUint16(b, flags)
	b = be.AppendUint16(b, typ)
	b = be.AppendUint64(b, cookie)
	b = be.AppendUint64(b, off)
	return be.AppendUint32(b, length)
}

// reply is a reply of either form.
type reply struct {
	cookie uint64
	errno  uint32
	typ    uint16 // of a chunk
	data   []byte // of a chunk, but for the offset
	offset uint64
	chunk  bool
}

// reply reads a reply; size is that of the data in a simple one.
func (k *client) reply(size int) (r reply) {
	k.Helper()
	be := binary.BigEndian
	switch b := k.take(4); be.Uint32(b) {
	case magicSimple:
		b = k.take(12)
		r = reply{errno: be.Uint32(b), cookie: be.Uint64(b[4:])}
		if r.errno == 0 && !k.structured {
			r.data = k.take(size)
		}
		return r
	case magicStructured:
		b = k.take(16)
		r = reply{chunk: true, typ: be.Uint16(b[2:]), cookie: be.Uint64(b[4:])}
		if !k.structured || be.Uint16(b) != replyFlagDone {
			k.Fatalf("a chunk with header %x", b)
		}
		r.data = k.take(int(be.Uint32(b[12:])))
	default:
		k.Fatalf("a reply with magic number %x", b)
	}
	switch r.typ {
	case replyOffsetData:
		r.offset, r.data = be.Uint64(r.data), r.data[8:]
	case replyError:
		r.errno = be.Uint32(r.data)
		if n := int(be.Uint16(r.data[4:])); n != len(r.data)-6 || n == 0 {
			k.Fatalf("an error chunk %q", r.data)
		}
	}
	return r
}

// do is a request and its reply.
func (k *client) do(typ, flags uint16, off uint64, length int, payload []byte) reply {
	k.Helper()
	cookie := k.request(typ, flags, off, length, payload)
	size := 0
	if typ == cmdRead {
		size = length
	}
	r := k.reply(size)
	if r.cookie != cookie {
		k.Fatalf("the reply to %d has cookie %d", cookie, r.cookie)
	}
	return r
}

// ok is do, with success.
func (k *client) ok(typ, flags uint16, off uint64, length int, payload []byte) []byte {
	k.Helper()
	r := k.do(typ, flags, off, length, payload)
	if r.errno != 0 {
		k.Fatalf("request %d of %d bytes at %d: error %d: %q", typ, length, off, r.errno, r.data)
	}
	return r.data
}
