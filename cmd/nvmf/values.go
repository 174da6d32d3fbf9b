package main

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"
)

// sizeValue is an option that is a number of bytes: 4096, 4k and 4KiB are the
// same, as fio has it; 4kB is 4000.
type sizeValue uint64

func (v *sizeValue) Set(s string) error {
	if s == "" {
		*v = 0
		return nil
	}
	n, err := parseSize(s)
	*v = sizeValue(n)
	return err
}

// String is exact: package cli makes one value of another by it.
func (v *sizeValue) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(*v), 10)
}

// suffixes of fio that humanize takes for powers of 1000.
const suffixes = "kmgtpe"

func parseSize(s string) (uint64, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	if n, ok := new(big.Int).SetString(t, 0); ok {
		if !n.IsUint64() {
			return 0, fmt.Errorf("%q is no size", s)
		}
		return n.Uint64(), nil
	}
	if t != "" && strings.IndexByte(suffixes, t[len(t)-1]) >= 0 {
		t += "ib"
	}
	n, err := humanize.ParseBytes(t)
	if err != nil {
		return 0, fmt.Errorf("%q is no size: expected 4096, 4k, 4KiB or 4kB, for example", s)
	}
	return n, nil
}

// sizeFlag is an option that is a number of bytes.
func sizeFlag(name, alias string, value uint64, usage string) cli.Flag {
	v := sizeValue(value)
	f := &cli.GenericFlag{Name: name, Value: &v, Usage: usage}
	if alias != "" {
		f.Aliases = []string{alias}
	}
	return f
}

// size is the value of a sizeFlag that fits an int64.
func size(c *cli.Context, name string) (int64, error) {
	v, ok := c.Generic(name).(*sizeValue)
	if !ok {
		return 0, nil
	}
	if *v > math.MaxInt64 {
		return 0, usagef("--%s %v: too large", name, v)
	}
	return int64(*v), nil
}

// numbers reads a list separated by commas.
func numbers(name, s string) (list []uint64, err error) {
	if s == "" {
		return nil, nil
	}
	for _, part := range strings.Split(s, ",") {
		n, ok := new(big.Int).SetString(strings.TrimSpace(part), 0)
		if !ok || !n.IsUint64() {
			return nil, usagef("--%s %q: expected numbers separated by commas", name, s)
		}
		list = append(list, n.Uint64())
	}
	return list, nil
}
