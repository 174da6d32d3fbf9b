// Command nvmf-target shows files and block devices to NVMe/RDMA hosts, as one
// YAML file says.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/version"
)

func main() { os.Exit(run(os.Args, os.Stdout, os.Stderr)) }

// Exit codes.
const (
	exitOK    = 0
	exitFail  = 1 // what was asked for did not work
	exitUsage = 2 // the command line is wrong
)

func run(args []string, stdout, stderr io.Writer) int {
	err := newApp(stdout, stderr).Run(args)
	if err == nil {
		return exitOK
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(stderr, "nvmf-target:", msg)
	}
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFail
}

func newApp(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:                   "nvmf-target",
		Usage:                  "an NVMe over Fabrics/RDMA target",
		Version:                version.String(),
		HideVersion:            true,
		Suggest:                true,
		UseShortOptionHandling: true,
		EnableBashCompletion:   true,
		Writer:                 stdout,
		ErrWriter:              stderr,
		ExitErrHandler:         func(*cli.Context, error) {},
		OnUsageError:           onUsageError,
		Commands:               []*cli.Command{serveCommand(), checkCommand(), statusCommand(), reloadCommand(), rdmaCommand(), versionCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return unknownCommand(c)
			}
			return cli.ShowAppHelp(c)
		},
	}
	tidy(app.Commands)
	return app
}

// tidy has usage errors of all commands told in one line.
func tidy(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = onUsageError
		c.HideHelpCommand = true
		tidy(c.Subcommands)
	}
}

func onUsageError(_ *cli.Context, err error, _ bool) error { return usageError{err} }

// unknownCommand is the error of a word that is no command.
func unknownCommand(c *cli.Context) error {
	word := c.Args().First()
	return usagef("unknown command %q. %s", word, cli.SuggestCommand(c.Command.Subcommands, word))
}

// noArguments wraps the action of a command that takes none.
func noArguments(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.Args().Present() {
			return usagef("%s: unexpected argument %q", c.Command.Name, c.Args().First())
		}
		return action(c)
	}
}

// usageError is a mistake of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// oneFile is the command's only argument.
func oneFile(c *cli.Context) (string, error) {
	if c.NArg() != 1 {
		return "", usagef("%s: expected one configuration file, got %d arguments", c.Command.Name, c.NArg())
	}
	return c.Args().First(), nil
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version",
		Action: noArguments(func(c *cli.Context) error {
			fmt.Fprintln(c.App.Writer, "nvmf-target", version.String())
			return nil
		}),
	}
}
