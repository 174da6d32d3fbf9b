package nvme

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// UUID is a universally unique identifier, its bytes in the order in which they
// are written (RFC 4122), which is also that of NID in CNS 03h.
type UUID [16]byte

// NGUID is a namespace globally unique identifier: big-endian, bytes 10 to 8
// of the EUI-64 based form being the OUI.
type NGUID [16]byte

// EUI64 is an IEEE extended unique identifier, big-endian.
type EUI64 [8]byte

// HostID is a 128-bit host identifier: opaque, and written like a UUID.
type HostID [16]byte

// errHexID says that text is not an identifier.
var errHexID = errors.New("not hexadecimal of the right length")

// IsZero says whether u is the nil UUID: no UUID is reported.
func (u UUID) IsZero() bool { return u == UUID{} }

// String is the 8-4-4-4-12 form.
func (u UUID) String() string { return dashed(u) }

// MarshalText is String.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText is ParseUUID.
func (u *UUID) UnmarshalText(b []byte) (err error) {
	*u, err = ParseUUID(string(b))
	return err
}

// ParseUUID reads the 8-4-4-4-12 form, in either case.
func ParseUUID(s string) (u UUID, err error) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return UUID{}, fmt.Errorf("nvme: UUID %q: not of the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", s)
	}
	digits := s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	if err := parseHex(u[:], digits); err != nil {
		return UUID{}, fmt.Errorf("nvme: UUID %q: %w", s, err)
	}
	return u, nil
}

// IsZero says whether no NGUID is reported.
func (n NGUID) IsZero() bool { return n == NGUID{} }

// String is 32 hexadecimal digits.
func (n NGUID) String() string { return hex.EncodeToString(n[:]) }

// MarshalText is String.
func (n NGUID) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText is ParseNGUID.
func (n *NGUID) UnmarshalText(b []byte) (err error) {
	*n, err = ParseNGUID(string(b))
	return err
}

// ParseNGUID reads 32 hexadecimal digits.
func ParseNGUID(s string) (n NGUID, err error) {
	if err := parseHex(n[:], s); err != nil {
		return NGUID{}, fmt.Errorf("nvme: NGUID %q: %w", s, err)
	}
	return n, nil
}

// IsZero says whether no EUI-64 is reported.
func (e EUI64) IsZero() bool { return e == EUI64{} }

// String is 16 hexadecimal digits.
func (e EUI64) String() string { return hex.EncodeToString(e[:]) }

// MarshalText is String.
func (e EUI64) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText is ParseEUI64.
func (e *EUI64) UnmarshalText(b []byte) (err error) {
	*e, err = ParseEUI64(string(b))
	return err
}

// ParseEUI64 reads 16 hexadecimal digits.
func ParseEUI64(s string) (e EUI64, err error) {
	if err := parseHex(e[:], s); err != nil {
		return EUI64{}, fmt.Errorf("nvme: EUI-64 %q: %w", s, err)
	}
	return e, nil
}

// IsZero says whether h is all zero, which no host may use (Base 6.3).
func (h HostID) IsZero() bool { return h == HostID{} }

// String is the 8-4-4-4-12 form.
func (h HostID) String() string { return dashed(h) }

// MarshalText is String.
func (h HostID) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText is ParseHostID.
func (h *HostID) UnmarshalText(b []byte) (err error) {
	*h, err = ParseHostID(string(b))
	return err
}

// ParseHostID reads the form of a UUID.
func ParseHostID(s string) (HostID, error) {
	u, err := ParseUUID(s)
	return HostID(u), err
}

func dashed(b [16]byte) string {
	var out [36]byte
	at := 0
	for _, part := range [...][]byte{b[:4], b[4:6], b[6:8], b[8:10], b[10:]} {
		if at > 0 {
			out[at] = '-'
			at++
		}
		at += hex.Encode(out[at:], part)
	}
	return string(out[:])
}

func parseHex(dst []byte, s string) error {
	if len(s) != 2*len(dst) {
		return errHexID
	}
	if _, err := hex.Decode(dst, []byte(s)); err != nil {
		return errHexID
	}
	return nil
}
