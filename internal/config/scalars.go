package config

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dustin/go-humanize"
	"go.yaml.in/yaml/v4"
)

// Size is a number of bytes, written with or without a unit: 4096, 4KiB, 10GiB,
// 1GB (a thousand million).
type Size int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) error {
	n, err := humanize.ParseBytes(string(b))
	if err != nil || n > math.MaxInt64 {
		return errors.New("a size like 4096, 4KiB or 10GiB")
	}
	*s = Size(n)
	return nil
}

func (s Size) String() string { return humanize.IBytes(uint64(s)) }

// Duration is a time span, written as in Go: 500ms, 4s, 2m.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v < 0 {
		return errors.New("a time like 500ms or 4s")
	}
	*d = Duration(v)
	return nil
}

// Hosts says who may connect: anybody, or the host NQNs of a list.
type Hosts struct {
	Any bool
	// NQNs are the hosts allowed when Any is false; none is a list of no host.
	NQNs []string
}

// decodeNode takes the word any, or a list.
func (h *Hosts) decodeNode(d *decoder, n *yaml.Node, path string) {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Value != "any" {
			d.bad(path, n.Value, "expected the word any, or a list of host NQNs")
			return
		}
		h.Any = true
	case yaml.SequenceNode:
		for i, e := range n.Content {
			d.record(fmt.Sprintf("%s[%d]", path, i), e)
			if e.Kind != yaml.ScalarNode {
				d.bad(fmt.Sprintf("%s[%d]", path, i), kindName(e), "expected a host NQN")
				continue
			}
			h.NQNs = append(h.NQNs, e.Value)
		}
	default:
		d.bad(path, kindName(n), "expected the word any, or a list of host NQNs")
	}
}
