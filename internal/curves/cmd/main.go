// Command curves measures what target and host cost as work grows, and draws it.
// scripts/curves starts it; `scripts/curves --help` says more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/nvmf-go/nvmf/internal/curves"
)

const usage = `scripts/curves [OPTIONS]

Measures the software RNICs on this machine as work grows (queue depth, size,
connections, namespaces, processors), each point with a daemon and a host of
its own, and writes NAME.csv and NAME.svg of each curve. Nothing else should
run meanwhile. The cache's hit ratios are drawn from cache-hit-ratio.csv, which
go test ./backend/cache -run TestHitRatios -curve FILE writes.

A run of chosen points leaves the other rows of a table as they are, when the
table is of this machine. A point that fails is told at the end and costs
nothing but itself. Ctrl-C ends daemon and host in order and writes what there
is.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second one ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes.
const (
	exitOK          = 0
	exitFail        = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == curves.HostArgument {
		return code(ctx, curves.Host(ctx, stdin, stdout), stderr)
	}
	o, draw, err := options(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, "curves:", err)
		return exitUsage
	}
	cpus, err := curves.CPUs()
	if err != nil {
		return code(ctx, err, stderr)
	}
	list := curves.All(cpus)
	if !draw {
		err = curves.Run(ctx, list, o)
	}
	return code(ctx, errors.Join(err, curves.Draw(list, o)), stderr)
}

// code is the exit code of an error, which is told.
func code(ctx context.Context, err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "curves: interrupted:", err)
		return exitInterrupted
	}
	fmt.Fprintln(stderr, "curves:", err)
	return exitFail
}

// options reads the command line; draw says that nothing is to be measured.
func options(args []string, stderr io.Writer) (o curves.Options, draw bool, err error) {
	o = curves.Options{Log: stderr, Now: time.Now()}
	f := flag.NewFlagSet("curves", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, usage); f.PrintDefaults() }
	only := f.String("only", "", "measure the points whose names (depth/roce/32) match this `regex`")
	f.DurationVar(&o.Time, "time", 2*time.Second, "how long each point is measured")
	f.IntVar(&o.Rounds, "rounds", 1, "how often; values are medians")
	f.StringVar(&o.Out, "out", "docs/perf", "`folder` of the results")
	f.StringVar(&o.Target, "target", "bin/nvmf-target", "the daemon's `program`")
	f.BoolVar(&draw, "draw", false, "measure nothing, draw the tables there are")
	if err := f.Parse(args); err != nil {
		return o, false, err
	}
	if f.NArg() > 0 {
		return o, false, fmt.Errorf("unexpected operand %q", f.Arg(0))
	}
	if o.Time <= 0 || o.Rounds < 1 {
		return o, false, errors.New("--time and --rounds are more than 0")
	}
	if *only != "" {
		if o.Only, err = regexp.Compile(*only); err != nil {
			return o, false, fmt.Errorf("--only: %w", err)
		}
	}
	if o.Target, err = filepath.Abs(o.Target); err != nil {
		return o, false, err
	}
	o.Host, err = os.Executable()
	return o, draw, err
}
