package show

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/nvmf-go/nvmf/nvme"
)

type unsigned interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64
}

// field is a field of a structure: the same name in text and in JSON.
type field struct {
	name  string
	text  string
	value any      // of JSON
	notes []string // what it means, for people who ask
}

// hexText is v as the %#x of C writes it, which is 0 for 0.
func hexText[T unsigned](v T) string {
	if v == 0 {
		return "0"
	}
	return "0x" + strconv.FormatUint(uint64(v), 16)
}

// hex is a field whose text is hexadecimal.
func hex[T unsigned](name string, v T, notes ...string) field {
	return field{name, hexText(v), v, notes}
}

// dec is a field whose text is decimal.
func dec[T unsigned](name string, v T, notes ...string) field {
	return field{name, strconv.FormatUint(uint64(v), 10), v, notes}
}

// big is a counter of 128 bits.
func big(name string, v nvme.Uint128, notes ...string) field {
	return field{name, v.String(), v, notes}
}

// str is a field of text.
func str(name, v string) field { return field{name, v, v, nil} }

// padded is an ASCII field with its padding, as nvme-cli shows it.
func padded(name string, b []byte) field {
	return str(name, fmt.Sprintf("%-*s", len(b), nvme.Text(b)))
}

// fields are the fields of a structure in their order.
type fields []field

// text writes a line for each field, names padded to width.
func (f fields) text(w *bytes.Buffer, width int, human bool) {
	for _, x := range f {
		fmt.Fprintf(w, "%-*s: %s\n", width, x.name, x.text)
		if human && len(x.notes) > 0 {
			for _, n := range x.notes {
				fmt.Fprintf(w, "  %s\n", n)
			}
			fmt.Fprintln(w)
		}
	}
}

// object is the fields as JSON.
func (f fields) object() (o Object) {
	for _, x := range f {
		o.Add(x.name, x.value)
	}
	return o
}

// bit is a bit or a range of bits with a meaning.
type bit struct {
	hi, lo uint8
	// what it stands for: the name of an ability, or, with values, a question
	// that they answer.
	what   string
	values []string
}

// ability is an ability that bit n says is there.
func ability(n uint8, what string) bit { return bit{n, n, what, nil} }

// choice is a range of bits whose values mean something.
func choice(hi, lo uint8, what string, values ...string) bit { return bit{hi, lo, what, values} }

// number is a range of bits that is a number.
func number(hi, lo uint8, what string) bit { return bit{hi, lo, what, []string{}} }

// bits are the meanings of v, a line each.
func bits[T unsigned](v T, list ...bit) []string {
	var lines []string
	for _, b := range list {
		n := uint64(v) >> b.lo & (1<<(b.hi-b.lo+1) - 1)
		lines = append(lines, fmt.Sprintf("[%d:%d] : %s\t%s", b.hi, b.lo, hexText(n), b.meaning(n)))
	}
	return lines
}

func (b bit) meaning(n uint64) string {
	switch {
	case b.values == nil && n == 0:
		return b.what + " not supported"
	case b.values == nil:
		return b.what + " supported"
	case len(b.values) == 0:
		return b.what
	case n < uint64(len(b.values)) && b.values[n] != "":
		return b.what + ": " + b.values[n]
	}
	return b.what + ": reserved"
}

// celsius is a temperature of so many kelvins, as nvme-cli rounds it.
func celsius(kelvins uint16) string {
	return fmt.Sprintf("%d°C (%d Kelvin)", int(kelvins)-273, kelvins)
}

// si is n bytes in the units of storage vendors.
func si(n float64) string {
	units := []string{"", "k", "M", "G", "T", "P", "E", "Z"}
	i := 0
	for n >= 1000 && i < len(units)-1 {
		n /= 1000
		i++
	}
	return fmt.Sprintf("%.2f %sB", n, units[i])
}

// rule is a line of dots as nvme-cli sets entries apart.
var rule = strings.Repeat(".", 17)
