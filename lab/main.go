// Command lab boots a virtual machine with a stock Debian kernel and runs
// things in it that need a real NVMe host, a real kernel target or the
// kernel's software RDMA (rxe, siw): the scenarios of lab/scenarios, or any
// program of this machine. README.md in this folder says how it works.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	app := &cli.App{
		Name:  "lab/run",
		Usage: "a virtual machine with a stock Debian kernel, and what runs in it",
		Commands: []*cli.Command{
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
	var code cli.ExitCoder
	if errors.As(err, &code) {
		os.Exit(code.ExitCode())
	}
	if err != nil {
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
