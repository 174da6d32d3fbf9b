package config

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxFile bounds what is read: a configuration of thousands of namespaces is
// well below it.
const maxFile = 16 << 20

// positions are the nodes of the keys that the file has, by path.
type positions map[string]*yaml.Node

func (p positions) has(path string) bool { return p[path] != nil }

// Load reads, decodes and validates the file. The error is Errors when the
// file could be read.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, Errors{{File: path, Expected: fmt.Sprintf("expected a file of at most %d bytes", maxFile)}}
	}
	return Parse(path, b)
}

// Parse decodes and validates b; path is for messages.
func Parse(path string, b []byte) (*File, error) {
	d := &decoder{file: path, pos: positions{}}
	var root yaml.Node
	if err := yaml.Load(b, &root); err != nil {
		return nil, d.syntax(err)
	}
	f := &File{Path: path, positions: d.pos}
	top := &root
	if top.Kind == yaml.DocumentNode && len(top.Content) == 1 {
		top = top.Content[0]
	}
	if top.Kind != yaml.MappingNode {
		d.bad("", "", "expected a mapping with the keys version, listeners, backends and subsystems")
		return nil, d.errs
	}
	d.value(top, reflect.ValueOf(f).Elem(), "")
	f.setIDs()
	f.validate(d)
	if len(d.errs) > 0 {
		return nil, d.errs.sorted()
	}
	return f, nil
}

// decoder walks YAML nodes into the structs of this package. The library's own
// decoder would name Go types in its messages and lose places.
type decoder struct {
	file  string
	pos   positions
	errs  Errors
	depth int
}

// nodeDecoder is implemented by types that are more than one kind of node.
type nodeDecoder interface {
	decodeNode(d *decoder, n *yaml.Node, path string)
}

func (d *decoder) record(path string, n *yaml.Node) { d.pos[path] = n }

// bad notes a mistake at the place of path, or of its nearest parent.
func (d *decoder) bad(path, value, expected string) {
	e := &Error{File: d.file, Key: path, Value: value, Expected: expected}
	if n := d.pos[path]; n != nil && n.Kind == yaml.ScalarNode && value != "" {
		e.Value = n.Value // as it was written
	}
	if n := d.nearest(path); n != nil {
		e.Line, e.Col = n.Line, n.Column
	}
	d.errs = append(d.errs, e)
}

func (d *decoder) nearest(path string) *yaml.Node {
	for path != "" {
		if n := d.pos[path]; n != nil {
			return n
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return nil
}

// syntax turns the library's errors into ours. Duplicate keys and a second
// document are among them.
func (d *decoder) syntax(err error) error {
	var many *yaml.LoadErrors
	var one *yaml.LoadError
	switch {
	case errors.As(err, &many):
		for _, e := range many.Errors {
			d.errs = append(d.errs, d.loadError(e))
		}
	case errors.As(err, &one):
		d.errs = append(d.errs, d.loadError(one))
	default:
		d.bad("", "", "not one YAML document: "+strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return d.errs
}

func (d *decoder) loadError(e *yaml.LoadError) *Error {
	return &Error{File: d.file, Line: e.Mark.Line, Col: e.Mark.Column, Expected: "not YAML: " + strings.TrimPrefix(e.Message, "yaml: ")}
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	// Aliases can nest without bound; no honest file is this deep.
	if d.depth++; d.depth > 32 {
		d.bad(path, "", "expected less nesting")
		return
	}
	defer func() { d.depth-- }()
	if nd, ok := v.Addr().Interface().(nodeDecoder); ok {
		nd.decodeNode(d, n, path)
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(n, u, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, v, path)
	case reflect.Slice:
		d.list(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if s, ok := v.Addr().Interface().(interface{ setDefaults() }); ok {
		s.setDefaults()
	}
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.bad(path, kindName(n), "expected a mapping with the keys "+strings.Join(keysOf(v.Type()), ", "))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		field := fieldOf(v, key.Value)
		switch {
		case d.pos.has(at):
			d.errs = append(d.errs, &Error{File: d.file, Line: key.Line, Col: key.Column, Key: at,
				Expected: fmt.Sprintf("given once; it is already on line %d", d.pos[at].Line)})
		case !field.IsValid():
			d.record(at, key)
			d.bad(at, "", unknownKey(key.Value, keysOf(v.Type())))
		default:
			d.record(at, val)
			if !isNull(val) {
				d.value(val, field, at)
			}
		}
	}
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.bad(path, kindName(n), "expected a list")
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, e := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.record(at, e)
		d.value(e, out.Index(i), at)
	}
	v.Set(out)
}

func (d *decoder) text(n *yaml.Node, u encoding.TextUnmarshaler, path string) {
	if n.Kind != yaml.ScalarNode {
		d.bad(path, kindName(n), "expected one value")
		return
	}
	if err := u.UnmarshalText([]byte(n.Value)); err != nil {
		expected := err.Error()
		if strings.HasPrefix(expected, "ParseAddr") {
			expected = "an IPv4 or IPv6 address"
		}
		d.bad(path, n.Value, "expected "+expected)
	}
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.bad(path, kindName(n), "expected one value")
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(n.Value)
	case reflect.Bool:
		switch n.Value {
		case "true", "false":
			v.SetBool(n.Value == "true")
		default:
			d.bad(path, n.Value, "expected true or false")
		}
	case reflect.Int:
		x, err := strconv.ParseInt(n.Value, 10, 32)
		if err != nil {
			d.bad(path, n.Value, "expected a whole number")
		}
		v.SetInt(x)
	case reflect.Uint16, reflect.Uint32:
		x, err := strconv.ParseUint(n.Value, 10, v.Type().Bits())
		if err != nil {
			d.bad(path, n.Value, fmt.Sprintf("expected a whole number from 0 to %d", uint64(1)<<v.Type().Bits()-1))
		}
		v.SetUint(x)
	default:
		panic("config: field of kind " + v.Kind().String())
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return n.Value
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func keyOf(f reflect.StructField) string {
	k, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if k == "-" {
		return ""
	}
	return k
}

func keysOf(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		if k := keyOf(t.Field(i)); k != "" {
			keys = append(keys, k)
		}
	}
	return keys
}

func fieldOf(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		if k := keyOf(v.Type().Field(i)); k != "" && k == key {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func unknownKey(key string, known []string) string {
	best, dist := "", 3
	for _, k := range known {
		if n := distance(key, k); n < dist {
			best, dist = k, n
		}
	}
	if best != "" {
		return fmt.Sprintf("unknown key; did you mean %s?", best)
	}
	return "unknown key; known here: " + strings.Join(known, ", ")
}

// distance is the Levenshtein distance of two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diag
			if a[i-1] != b[j-1] {
				cost++
			}
			diag = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
