package file

import (
	"flag"
	"os"
	"testing"
)

// The suite runs many times here, over media that take their time: fewer
// random cases each, unless the command line says how many.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "12"); err != nil {
		panic(err)
	}
	flag.Parse()
	os.Exit(m.Run())
}
