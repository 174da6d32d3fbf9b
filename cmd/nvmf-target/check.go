package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/config"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "tell all mistakes of configuration files; opens and starts nothing",
		ArgsUsage: "FILE...",
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				return usagef("check: expected a configuration file")
			}
			bad := 0
			for _, path := range c.Args().Slice() {
				if !check(c, path) {
					bad++
				}
			}
			if bad > 0 {
				return fmt.Errorf("%d of %d files have mistakes", bad, c.NArg())
			}
			return nil
		},
	}
}

func check(c *cli.Context, path string) bool {
	f, err := config.Load(path)
	var errs config.Errors
	switch {
	case errors.As(err, &errs):
		for _, e := range errs {
			fmt.Fprintln(c.App.ErrWriter, e)
		}
	case err != nil:
		fmt.Fprintln(c.App.ErrWriter, err)
	default:
		fmt.Fprintf(c.App.Writer, "%s: good: %d listeners, %d backends, %d subsystems\n", path, len(f.Listeners), len(f.Backends), len(f.Subsystems))
	}
	return err == nil
}
