package nvme

import (
	"math/big"
	"math/bits"
)

// Uint128 is a 16-byte little-endian counter, as the SMART log and the
// capacities of Identify have it. Its JSON form is a number in decimal.
type Uint128 struct {
	Lo, Hi uint64
}

// Uint128Of makes a counter of n.
func Uint128Of(n uint64) Uint128 { return Uint128{Lo: n} }

// Add is u+n, and stays at the greatest value instead of wrapping.
func (u Uint128) Add(n uint64) Uint128 {
	lo, carry := bits.Add64(u.Lo, n, 0)
	hi, over := bits.Add64(u.Hi, 0, carry)
	if over != 0 {
		return Uint128{^uint64(0), ^uint64(0)}
	}
	return Uint128{lo, hi}
}

// Float64 is the nearest float.
func (u Uint128) Float64() float64 { return float64(u.Hi)*(1<<64) + float64(u.Lo) }

// String is u in decimal.
func (u Uint128) String() string {
	n := new(big.Int).SetUint64(u.Hi)
	return n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(u.Lo)).String()
}

// MarshalJSON makes the decimal number, which may exceed what JavaScript
// represents exactly.
func (u Uint128) MarshalJSON() ([]byte, error) { return []byte(u.String()), nil }
