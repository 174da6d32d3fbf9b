// Command nvmf is an NVMe over Fabrics/RDMA host for people and scripts: the
// verbs, options and output of nvme-cli, without a kernel driver, over RDMA
// devices or the built-in software RNIC.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/internal/providers"
	"github.com/nvmf-go/nvmf/internal/version"
)

func main() {
	w := &world{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		providers: providers.Default(), terminal: isTerminal(os.Stderr),
	}
	os.Exit(run(context.Background(), os.Args, w))
}

// world is what the program is given: streams, and ways to reach targets.
type world struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	providers      *providers.Set
	terminal       bool // stderr is a terminal: progress may be drawn
}

// isTerminal says whether f is a terminal that can be drawn on.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("TERM") != "dumb"
}

const description = `Names a controller by options, as nvme connect does, or by a DEVICE:

   nvmf discover -t rdma -a 192.0.2.1 -s 4420
   nvmf id-ctrl  -t rdma -a 192.0.2.1 -n nqn.2026-11.io.nvmf:disk0
   nvmf id-ctrl  rdma://192.0.2.1:4420/nqn.2026-11.io.nvmf:disk0
   nvmf read     rdma://192.0.2.1:4420/nqn.2026-11.io.nvmf:disk0/1 --data-size 4k | xxd

The last part of a DEVICE is the namespace. Where -n is left out the discovery
service is asked, and where -N is left out the controller, as long as there is
only one answer. NVMF_TRADDR, NVMF_TRSVCID, NVMF_NQN and NVMF_PROVIDER stand in
for -a, -s, -n and --provider.

Options may stand before and behind operands.

Where an option of nvme-cli has a letter that is an option of the connection
here, it has its long name only: --namespace-id is -N, --start-block and
--log-id have none.

EXIT CODES:
   0   success
   1   something else failed: a file, memory, an argument that the target cannot do
   2   the command line is wrong
   3   no connection: no device, nobody there, refused
   4   the controller answered with an error status
   5   data is not what it should be: compare, verify, bench --verify, copy --verify
   6   the connection was lost, or a command was not answered in time
   130 interrupted`

func (w *world) app() *cli.App {
	app := &cli.App{
		Name:                 "nvmf",
		Usage:                "an NVMe over Fabrics/RDMA host",
		Description:          description,
		Version:              version.String(),
		HideVersion:          true,
		EnableBashCompletion: true,
		Writer:               w.stdout,
		ErrWriter:            w.stderr,
		ExitErrHandler:       func(*cli.Context, error) {},
		Commands:             w.commands(),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return unknownCommand(c.App, c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return usageError{err} }
	}
	app.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return usageError{err} }
	return app
}

// commands are all verbs, in the order of the help.
func (w *world) commands() []*cli.Command {
	var list []*cli.Command
	for _, group := range []struct {
		category string
		commands []*cli.Command
	}{
		{"Discovery", w.discoveryCommands()},
		{"Controller", w.controllerCommands()},
		{"Namespace", w.namespaceCommands()},
		{"Log pages", w.logCommands()},
		{"Features and properties", w.featureCommands()},
		{"I/O", w.ioCommands()},
		{"Any command", w.passthruCommands()},
		{"Only here", w.hostCommands()},
	} {
		for _, c := range group.commands {
			c.Category = group.category
			list = append(list, c)
		}
	}
	return list
}

// hostCommands are what only a host in userspace has.
func (w *world) hostCommands() []*cli.Command {
	return []*cli.Command{w.pingCommand(), w.benchCommand(), w.copyCommand(), w.nbdCommand(), w.versionCommand()}
}

func (w *world) versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version",
		Action: func(*cli.Context) error {
			fmt.Fprintln(w.stdout, "nvmf", version.String())
			return nil
		},
	}
}

// run runs a command line and returns the exit code. SIGINT and SIGTERM end
// what is running in order; a second one ends the program at once.
func run(ctx context.Context, args []string, w *world) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	app := w.app()
	args, err := arrange(app, args)
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	if cerr := w.providers.Close(); err == nil {
		err = cerr
	}
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		fmt.Fprintln(w.stderr, "nvmf: interrupted")
		return exitInterrupted
	}
	report(w.stderr, err)
	return exitCode(err)
}
