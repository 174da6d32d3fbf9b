package nvme

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// NQN is an NVMe Qualified Name (Base 4.5): UTF-8, 1 to 223 bytes.
type NQN string

const (
	// NQNFieldSize is the size in bytes of the field that carries an NQN; the
	// name ends at a NUL within it.
	NQNFieldSize = 256
	// MaxNQN is the greatest length of an NQN in bytes, without the NUL.
	MaxNQN = 223
	// DiscoveryNQN is the well-known name of every discovery service.
	DiscoveryNQN NQN = "nqn.2014-08.org.nvmexpress.discovery"

	uuidNQNPrefix = "nqn.2014-08.org.nvmexpress:uuid:"
)

// Errors of an NQN.
var (
	ErrNQNEmpty        = errors.New("NQN is empty")
	ErrNQNTooLong      = errors.New("NQN is longer than 223 bytes")
	ErrNQNUnterminated = errors.New("NQN has no NUL in its field")
	ErrNQNText         = errors.New("NQN is not printable UTF-8")
	ErrNQNForm         = errors.New("NQN is not of the form nqn.yyyy-mm.reverse.domain:name")
)

// UUIDNQN is the name that the specification makes of a UUID.
func UUIDNQN(u UUID) NQN { return NQN(uuidNQNPrefix + u.String()) }

// UUID is the UUID of a name made by UUIDNQN.
func (n NQN) UUID() (UUID, bool) {
	digits, ok := strings.CutPrefix(string(n), uuidNQNPrefix)
	if !ok {
		return UUID{}, false
	}
	u, err := ParseUUID(digits)
	return u, err == nil
}

// IsDiscovery says whether n is the well-known discovery name.
func (n NQN) IsDiscovery() bool { return n == DiscoveryNQN }

// Check says whether n may be on the wire at all: length and encoding. Names
// that peers chose are held to no more, for Linux accepts any text as a name.
func (n NQN) Check() error {
	switch {
	case n == "":
		return ErrNQNEmpty
	case len(n) > MaxNQN:
		return ErrNQNTooLong
	case !utf8.ValidString(string(n)):
		return ErrNQNText
	}
	for _, r := range n {
		if r < 0x20 || r == 0x7F {
			return ErrNQNText
		}
	}
	return nil
}

// ParseNQN checks a name that a person wrote: what Check wants, and either the
// discovery name, the UUID form, or "nqn." yyyy-mm "." reverse domain ":" name.
func ParseNQN(s string) (NQN, error) {
	n := NQN(s)
	err := n.Check()
	if err == nil {
		err = n.checkForm()
	}
	if err != nil {
		return "", fmt.Errorf("nvme: %q: %w", cut(s, MaxNQN), err)
	}
	return n, nil
}

func (n NQN) checkForm() error {
	if n.IsDiscovery() {
		return nil
	}
	if strings.HasPrefix(string(n), uuidNQNPrefix) {
		if _, ok := n.UUID(); !ok {
			return ErrNQNForm
		}
		return nil
	}
	rest, ok := strings.CutPrefix(string(n), "nqn.")
	if !ok || len(rest) < len("yyyy-mm.") || !isYearMonth(rest[:7]) || rest[7] != '.' {
		return ErrNQNForm
	}
	domain, name, ok := strings.Cut(rest[8:], ":")
	if !ok || name == "" || !isDomain(domain) {
		return ErrNQNForm
	}
	return nil
}

func isYearMonth(s string) bool {
	for i, c := range []byte(s) {
		if i == 4 {
			if c != '-' {
				return false
			}
		} else if c < '0' || c > '9' {
			return false
		}
	}
	month := s[5:]
	return month >= "01" && month <= "12"
}

// isDomain takes labels of letters, digits and inner hyphens, 1 to 63 bytes
// each (RFC 1034), the first one beginning with a letter.
func isDomain(s string) bool {
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if len(label) == 0 || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if c != '-' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
				return false
			}
		}
	}
	return true
}

// DecodeNQN reads the name in a 256-byte field. It refuses a field without a
// NUL and a name that fails Check, and returns no part of either.
func DecodeNQN(field []byte) (NQN, error) {
	if err := checkLength("NQN field", field, NQNFieldSize); err != nil {
		return "", err
	}
	n := 0
	for n < len(field) && field[n] != 0 {
		n++
	}
	switch {
	case n == len(field):
		return "", ErrNQNUnterminated
	case n > MaxNQN:
		return "", ErrNQNTooLong
	}
	name := NQN(field[:n])
	if err := name.Check(); err != nil {
		return "", err
	}
	return name, nil
}

// PutNQN fills a 256-byte field, padded with NULs. n must pass Check; of a
// longer name 223 bytes are written.
func PutNQN(field []byte, n NQN) {
	clear(field[:NQNFieldSize])
	copy(field, cut(string(n), MaxNQN))
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
