package nbd

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
)

func last(list []repl) repl { return list[len(list)-1] }

func TestOptions(t *testing.T) {
	r := newRig(t, Options{Name: "disk", Description: "a disk"})
	k := r.dial(3)
	for _, c := range []struct {
		name string
		opt  uint32
		data []byte
		want uint32
	}{
		{"unknown", 4, nil, repErrUnsup},
		{"extended headers", 11, nil, repErrUnsup},
		{"TLS", optStartTLS, nil, repErrUnsup},
		{"list", optList, nil, repAck},
		{"list with data", optList, []byte{1}, repErrInvalid},
		{"meta context without structured replies", optSetMetaContext, metaData("disk", contextAllocation), repErrInvalid},
		{"structured replies with data", optStructuredReply, []byte{1}, repErrInvalid},
		{"structured replies", optStructuredReply, nil, repAck},
		{"structured replies again", optStructuredReply, nil, repAck},
		{"info", optInfo, infoData("disk"), repAck},
		{"info, default export", optInfo, infoData(""), repAck},
		{"info, unknown export", optInfo, infoData("Disk"), repErrUnknown},
		{"go, unknown export", optGo, infoData("d"), repErrUnknown},
		{"info, no data", optInfo, nil, repErrInvalid},
		{"info, name beyond the end", optInfo, []byte{0, 0, 0, 9, 'd', 0, 0}, repErrInvalid},
		{"info, huge name", optInfo, []byte{255, 255, 255, 255, 'd', 0, 0}, repErrInvalid},
		{"info, too few types", optInfo, infoData("disk", 1, 2)[:12], repErrInvalid},
		{"info, too many types", optInfo, append(infoData("disk", 1, 2), 0), repErrInvalid},
		{"info, name is no UTF-8", optInfo, infoData("\xff"), repErrInvalid},
		{"info, the same for ever", optInfo, infoData("disk", make8000(infoDescription)...), repErrTooBig},
		{"meta context, unknown export", optSetMetaContext, metaData("x"), repErrUnknown},
		{"meta context, no data", optListMetaContext, nil, repErrInvalid},
		{"meta context, query beyond the end", optListMetaContext, metaData("", "base:")[:12], repErrInvalid},
		{"meta context, more queries than there are", optListMetaContext, append(str(""), 255, 255, 255, 255), repErrInvalid},
		{"meta context, rest", optListMetaContext, append(metaData("", "base:"), 1), repErrInvalid},
		{"meta context, no namespace", optSetMetaContext, metaData("", "allocation"), repErrInvalid},
		{"meta context, huge", optSetMetaContext, make([]byte, maxOption+1), repErrTooBig},
		{"unknown, long", 99, make([]byte, maxSkip), repErrTooBig},
	} {
		if got := last(k.option(c.opt, c.data)); got.typ != c.want {
			t.Errorf("%s: reply %#x: %q, want %#x", c.name, got.typ, got.data, c.want)
		}
	}
	if list := k.option(optList, nil); len(list) != 2 || list[0].typ != repServer || !bytes.Equal(list[0].data, append(str("disk"), "a disk"...)) {
		t.Errorf("the list is %+v", list)
	}
	if got := k.option(optAbort, []byte("data is ignored")); got[0].typ != repAck {
		t.Errorf("abort: %+v", got)
	}
	k.gone()
}

func make8000(v uint16) []uint16 {
	list := make([]uint16, 8000)
	for i := range list {
		list[i] = v
	}
	return list
}

func TestMetaContexts(t *testing.T) {
	r := newRig(t, Options{})
	k := r.dial(3)
	k.option(optStructuredReply, nil)
	for _, c := range []struct {
		opt     uint32
		queries []string
		found   bool
	}{
		{optListMetaContext, nil, true},
		{optListMetaContext, []string{"base:"}, true},
		{optListMetaContext, []string{"qemu:", "base:allocation"}, true},
		{optListMetaContext, []string{"qemu:dirty-bitmap:x"}, false},
		{optListMetaContext, []string{"base:else"}, false},
		{optSetMetaContext, nil, false},
		{optSetMetaContext, []string{"base:"}, false},
		{optSetMetaContext, []string{"qemu:allocation-depth", "base:allocation"}, true},
	} {
		list := k.option(c.opt, metaData("", c.queries...))
		if found := len(list) == 2 && string(list[0].data[4:]) == contextAllocation; found != c.found || last(list).typ != repAck {
			t.Errorf("option %d of %q: %+v", c.opt, c.queries, list)
		}
		if c.found && c.opt == optSetMetaContext && binary.BigEndian.Uint32(list[0].data) != contextID {
			t.Errorf("context ID %x", list[0].data[:4])
		}
	}
}

// The client is told what the namespace is.
func TestInfo(t *testing.T) {
	r := newRig(t, Options{Name: "disk", Description: "a disk"}, func(d *disk) {
		d.block = 4096
		d.id.NSFEAT, d.id.NPWG = nvme.NSFEATOptimalFields, 15
	})
	k := r.dial(3)
	list := k.option(optInfo, infoData("", infoName, infoDescription, infoBlockSize, 77))
	text := ""
	for _, rep := range list {
		text += string(rep.data)
	}
	if len(list) != 5 || !strings.Contains(text, "\x00\x01disk") || !strings.Contains(text, "\x00\x02a disk") {
		t.Errorf("%+v", list)
	}
	k.begin()
	want := flagHasFlags | flagSendFlush | flagSendFUA | flagSendTrim | flagSendWriteZeroes | flagCanMultiConn | flagSendFastZero
	if k.size != testSize || k.flags != want || k.block != [3]uint32{4096, 65536, MaxPayload} {
		t.Errorf("%d bytes, flags %#x, blocks %d", k.size, k.flags, k.block)
	}
	if k = r.connect(); k.flags != want|flagSendDF {
		t.Errorf("flags %#x with structured replies", k.flags)
	}
}

// What the controller cannot do is not offered, and refused.
func TestLesserNamespace(t *testing.T) {
	r := newRig(t, Options{}, func(d *disk) { d.trim, d.zero = false, false; d.id.NSATTR = nvme.NSATTRWriteProtected })
	k := r.connect()
	if k.flags != flagHasFlags|flagSendFlush|flagSendFUA|flagCanMultiConn|flagSendDF|flagReadOnly {
		t.Errorf("flags %#x", k.flags)
	}
	for typ, want := range map[uint16]uint32{cmdTrim: errnoInval, cmdWriteZeroes: errnoInval, cmdRead: 0} {
		if got := k.do(typ, 0, 0, 512, nil); got.errno != want {
			t.Errorf("request %d: error %d, want %d", typ, got.errno, want)
		}
	}
	if got := k.do(cmdWrite, 0, 0, 512, make([]byte, 512)); got.errno != errnoPerm {
		t.Errorf("a write: error %d", got.errno)
	}
}

func TestExportName(t *testing.T) {
	r := newRig(t, Options{Name: "disk"})
	for flags, size := range map[uint32]int{3: 10, 1: 134, 0: 134} {
		k := r.dial(flags)
		k.send(append(optionHeader(optExportName, 4), "disk"...))
		if b := k.take(size); binary.BigEndian.Uint64(b) != testSize {
			t.Errorf("%x", b)
		}
		k.ok(cmdRead, 0, 0, 4096, nil)
	}
	k := r.dial(3)
	k.send(append(optionHeader(optExportName, 4), "else"...))
	k.gone()
}

func TestHostileHandshake(t *testing.T) {
	r := newRig(t, Options{})
	r.dial(4).gone()
	for name, b := range map[string][]byte{
		"wrong magic":       append([]byte("IHAVEOP0"), make([]byte, 8)...),
		"huge option":       optionHeader(optInfo, 1<<31),
		"huge export name":  append(optionHeader(optExportName, maxOption+1), make([]byte, maxOption+1)...),
		"option without it": nil,
		"half an option":    optionHeader(optInfo, 100)[:13],
		"half the data":     append(optionHeader(optInfo, 100), 1, 2, 3),
	} {
		t.Run(name, func(t *testing.T) {
			k := r.dial(3)
			k.send(b)
			r.must(k.Conn.(interface{ CloseWrite() error }).CloseWrite())
			k.gone()
		})
	}
	k := r.dial(3)
	for i := range maxOptions {
		if got := k.option(optList, nil); len(got) != 2 {
			t.Fatalf("option %d: %+v", i, got)
		}
	}
	k.gone()
	r.eventually("no client is left", func() bool { return r.srv.Clients() == 0 })
}

// wire is what a client sends, and bears what it is sent.
type wire struct {
	io.Reader
	sent int
}

func (w *wire) Write(p []byte) (int, error) { w.sent += len(p); return len(p), nil }

// Whatever a client sends, a handshake ends when the client does, and answers
// little.
func FuzzHandshake(f *testing.F) {
	flags := []byte{0, 0, 0, 3}
	add := func(opts ...[]byte) { f.Add(append(flags, bytes.Join(opts, nil)...)) }
	opt := func(opt uint32, data []byte) []byte { return append(optionHeader(opt, len(data)), data...) }
	add(opt(optExportName, nil))
	add(opt(optStructuredReply, nil), opt(optSetMetaContext, metaData("", contextAllocation)), opt(optGo, infoData("", infoBlockSize)))
	add(opt(optList, nil), opt(optInfo, infoData("disk", 1, 2, 3)), opt(optAbort, nil))
	add(opt(optListMetaContext, metaData("disk", "base:", "qemu:")), opt(optStartTLS, nil), optionHeader(77, 1<<30))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := &handshake{x: export{name: "disk", description: "a disk", size: testSize, block: 512}, closing: func() bool { return false }}
		w := &wire{Reader: bytes.NewReader(b)}
		h.rw = w
		err := h.run()
		if h.meta && !h.structured {
			t.Error("metadata without structured replies")
		}
		if most := 64 + len(b)/optHeaderSize*(2*maxOption); w.sent > most {
			t.Errorf("%d bytes of answers to %d bytes", w.sent, len(b))
		}
		_ = err // either is an end
	})
}
