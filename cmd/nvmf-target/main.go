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
		OnUsageError:           func(_ *cli.Context, err error, _ bool) error { return usageError{err} },
		Commands:               []*cli.Command{serveCommand(), checkCommand(), statusCommand(), reloadCommand(), rdmaCommand(), versionCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("unknown command %q; `nvmf-target help` lists them", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	err := app.Run(args)
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
		Action: func(c *cli.Context) error {
			fmt.Fprintln(c.App.Writer, "nvmf-target", version.String())
			return nil
		},
	}
}
