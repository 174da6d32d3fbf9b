// Package show prints NVMe data structures for people and for programs, in the
// layout, the field names and the JSON keys of nvme-cli 2, which users and
// their scripts know. It does no I/O but the writing.
//
// Where nvme-cli is wrong this package is not: counters of 32 bits are never
// negative, and text of a peer is fit for a terminal.
package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Format is how a Doc is written.
type Format uint8

// Formats, as the option -o names them.
const (
	Normal Format = iota // text for people
	JSON
	Binary // the bytes that came over the wire
)

// ErrFormat says that a document does not have the format that was asked for.
var ErrFormat = errors.New("output format")

// ParseFormat reads the value of the option -o.
func ParseFormat(s string) (Format, error) {
	switch s {
	case "normal", "":
		return Normal, nil
	case "json":
		return JSON, nil
	case "binary":
		return Binary, nil
	}
	return 0, fmt.Errorf("%w %q: expected normal, json or binary", ErrFormat, s)
}

// Options are how much is shown.
type Options struct {
	Format Format
	// Human adds what bits and units mean to Normal.
	Human bool
	// Device names in titles what the structure was read from.
	Device string
}

// Doc is a structure ready to be written in any format that it has.
type Doc struct {
	text func(w *bytes.Buffer)
	json any
	raw  []byte
}

// Write writes the document. The error matches ErrFormat when it has no such
// format.
func (d *Doc) Write(w io.Writer, f Format) error {
	var b bytes.Buffer
	switch {
	case f == Normal && d.text != nil:
		d.text(&b)
	case f == JSON && d.json != nil:
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(d.json); err != nil {
			return err
		}
	case f == Binary && d.raw != nil:
		b.Write(d.raw)
	default:
		return fmt.Errorf("%w: this command has no %s output", ErrFormat, [...]string{"normal", "json", "binary"}[f])
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Object is a JSON object whose members keep their order.
type Object []Member

// Member is a member of an Object.
type Member struct {
	Key   string
	Value any
}

// Add appends a member.
func (o *Object) Add(key string, value any) { *o = append(*o, Member{key, value}) }

// MarshalJSON writes the members in order.
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.Key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.Value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Dump writes b as a hex dump, 16 bytes a line, the text beside it.
func Dump(w *bytes.Buffer, b []byte) {
	w.WriteString("       0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f\n")
	for off := 0; off < len(b); off += 16 {
		line := b[off:min(off+16, len(b))]
		var hex, text strings.Builder
		for _, c := range line {
			fmt.Fprintf(&hex, "%02x ", c)
			if c < 0x20 || c > 0x7e {
				c = '.'
			}
			text.WriteByte(c)
		}
		fmt.Fprintf(w, "%04x: %-48s\"%s\"\n", off, hex.String(), text.String())
	}
}

// Bytes is a document of bytes that have no meaning here: a hex dump under a
// title.
func Bytes(title string, b []byte) *Doc {
	return &Doc{raw: b, text: func(w *bytes.Buffer) {
		fmt.Fprintln(w, title)
		Dump(w, b)
	}}
}

// Pairs is a document of an object alone.
func Pairs(o Object) *Doc {
	return &Doc{json: o, text: func(w *bytes.Buffer) {
		for _, m := range o {
			fmt.Fprintf(w, "%s: %v\n", m.Key, m.Value)
		}
	}}
}

// Made is a document that another package makes.
func Made(text func(w *bytes.Buffer), json any) *Doc { return &Doc{text: text, json: json} }
