// Command figures puts measured figures into a document, so that nobody has to
// copy them: medians of benchmarks, and points of curves. scripts/figures starts
// it.
//
//	figures [--bench docs/perf/bench.txt] [--curves docs/perf] DOCUMENT
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/nvmf-go/nvmf/internal/curves"
)

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(args []string, stderr io.Writer) error {
	f := flag.NewFlagSet("figures", flag.ContinueOnError)
	f.SetOutput(stderr)
	bench := f.String("bench", "docs/perf/bench.txt", "what go test -bench has printed")
	dir := f.String("curves", "docs/perf", "folder of the curves' tables")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return errors.New("expected one operand, the document")
	}
	text, err := os.ReadFile(*bench)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	doc, err := os.ReadFile(f.Arg(0))
	if err != nil {
		return err
	}
	r := &results{bench: readBench(string(text)), dir: *dir, tables: map[string]*curves.Table{}}
	filled, missing, err := r.fill(string(doc))
	if err != nil {
		return err
	}
	if missing > 0 {
		fmt.Fprintf(stderr, "%s: %d figures are not measured\n", f.Arg(0), missing)
	}
	if filled == string(doc) {
		return nil
	}
	return os.WriteFile(f.Arg(0), []byte(filled), 0o644)
}
