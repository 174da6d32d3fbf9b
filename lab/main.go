// Command lab boots a virtual machine with a stock Debian kernel and runs
// things in it that need a real NVMe host, a real kernel target or the
// kernel's software RDMA (rxe, siw): the scenarios of lab/scenarios, or any
// program of this machine. README.md in this folder says how it works.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
)

// quiet is a flag of run.
var quiet = &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print verdicts only"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	app := &cli.App{
		Name:  "lab/run",
		Usage: "a virtual machine with a stock Debian kernel, and what runs in it",
		// lab/run NAME... is lab/run run NAME...
		Action: runCommand,
		Flags:  []cli.Flag{quiet},
		Commands: []*cli.Command{
			{Name: "run", Usage: "run scenarios by name or set (the default command)", ArgsUsage: "NAME|quick|soak|all...", Flags: []cli.Flag{quiet}, Action: runCommand},
			{Name: "list", Usage: "list the scenarios", Action: listCommand},
			{
				Name: "exec", Usage: "run one program in the guest, with rxe0 up on 10.9.0.1", ArgsUsage: "-- PROGRAM [ARG...]",
				Flags:  []cli.Flag{&cli.DurationFlag{Name: "timeout", Value: 2 * time.Minute, Usage: "end the program after `TIME`"}},
				Action: execCommand,
			},
			{Name: "shell", Usage: "a shell in the guest on this terminal", Action: shellCommand},
			{Name: "deps", Usage: "install by apt what the machine lacks", Action: func(*cli.Context) error { return installDeps() }},
		},
	}
	err := app.RunContext(ctx, os.Args)
	stop()
	if err != nil { // an ExitCoder has ended the program; a program that failed is an error like others
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func execCommand(c *cli.Context) error {
	if c.NArg() == 0 {
		return errors.New("exec: no program: lab/run exec -- PROGRAM [ARG...]")
	}
	code, err := execInGuest(c.Context, c.Args().Slice(), c.Duration("timeout"))
	if err != nil {
		return err
	}
	return cli.Exit("", code)
}

func shellCommand(c *cli.Context) error { return shellInGuest(c.Context) }

// scenarios loads the scenarios the words name; none: all.
func scenarios(words []string) ([]scenario, error) {
	p, err := findPaths()
	if err != nil {
		return nil, err
	}
	all, err := loadScenarios(filepath.Join(p.lab, "scenarios"))
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		words = []string{"all"}
	}
	return selectScenarios(all, words)
}

func listCommand(c *cli.Context) error {
	chosen, err := scenarios(c.Args().Slice())
	if err != nil {
		return err
	}
	for _, s := range chosen {
		fmt.Printf("%-24s %-11s %s\n", s.name, strings.Join(s.sets, " "), s.about)
	}
	return nil
}

func runCommand(c *cli.Context) error {
	if c.NArg() == 0 {
		return errors.New("name scenarios or a set: quick, soak, all; lab/run list shows them")
	}
	chosen, err := scenarios(c.Args().Slice())
	if err != nil {
		return err
	}
	said := io.Writer(os.Stdout)
	if c.Bool("quiet") {
		said = io.Discard
	}
	s, err := newSession(c.Context, strings.Join(c.Args().Slice(), "+"), chosen, said)
	if err != nil {
		return err
	}
	defer s.close()
	var results []result
	for _, sc := range chosen {
		fmt.Printf("=== %s: %s\n", sc.name, sc.about)
		r := s.run(sc)
		r.print(os.Stdout)
		results = append(results, r)
		if c.Context.Err() != nil {
			break
		}
	}
	return summarize(os.Stdout, s.dir, results)
}
