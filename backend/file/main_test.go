package file

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs fewer random cases of the suite each time, unless the command
// line says how many: it runs many times here, over media that take their
// time. Afterwards no goroutine and no descriptor may be left.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "12"); err != nil {
		panic(err)
	}
	flag.Parse()
	before := descriptors()
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	// The runtime's poller has two of its own, from the first use on.
	if after := descriptors(); len(after) > len(before)+2 {
		fmt.Fprintf(os.Stderr, "open descriptors before %v, after %v\n", before, after)
		code = 1
	}
	os.Exit(code)
}

// descriptors lists what is open, with where it leads.
func descriptors() (open []string) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			open = append(open, e.Name()+"="+to)
		}
	}
	return open
}
