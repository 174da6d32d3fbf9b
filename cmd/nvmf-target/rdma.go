package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/internal/providers"
	"github.com/nvmf-go/nvmf/internal/rdmatool"
)

func rdmaCommand() *cli.Command {
	return &cli.Command{
		Name:        "rdma",
		Usage:       "look at RDMA devices, and try them",
		Subcommands: []*cli.Command{rdmaListCommand(), rdmaSmokeCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return unknownCommand(c)
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

func jsonFlag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "text or json"}
}

// wantsJSON reads the flag of jsonFlag.
func wantsJSON(c *cli.Context) (bool, error) {
	switch o := c.String("output"); o {
	case "json", "text":
		return o == "json", nil
	default:
		return false, usagef("%s: output %q: expected text or json", c.Command.Name, o)
	}
}

func providerFlag(usage string) cli.Flag {
	return &cli.StringFlag{
		Name: "provider", Aliases: []string{"p"}, Value: providers.Auto,
		Usage: usage + " (" + strings.Join(providers.Default().Names(), ", ") + ")",
	}
}

// wanted is the provider of the flag; Auto for none.
func wanted(c *cli.Context, set *providers.Set) (string, error) {
	p := c.String("provider")
	if p != providers.Auto && !slices.Contains(set.Names(), p) {
		return "", usagef("%s: provider %q: expected %s or %s", c.Command.Name, p, strings.Join(set.Names(), ", "), providers.Auto)
	}
	return p, nil
}

func rdmaListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the devices of every provider with their limits, and say what is missing where there is none",
		Flags: []cli.Flag{providerFlag("this `PROVIDER` only; auto: all"), jsonFlag()},
		Action: noArguments(func(c *cli.Context) (err error) {
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			set := providers.Default()
			defer closeAll(set, &err)
			names := set.Names()
			p, err := wanted(c, set)
			if err != nil {
				return err
			}
			if p != providers.Auto {
				names = []string{p}
			}
			var sources []rdmatool.Source
			for _, n := range names {
				p, err := set.Get(n)
				sources = append(sources, rdmatool.Source{Name: n, Provider: p, Err: err})
			}
			l := rdmatool.List(sources)
			if asJSON {
				return l.WriteJSON(c.App.Writer)
			}
			return l.WriteTable(c.App.Writer)
		}),
	}
}

func rdmaSmokeCommand() *cli.Command {
	return &cli.Command{
		Name:      "smoke",
		Usage:     "make one of everything on a device, connect it with itself, move data in every way, tell each step",
		ArgsUsage: "[DEVICE]",
		Description: "DEVICE is one that `nvmf-target rdma list` names, behind all options; without it the first RDMA\n" +
			"device that is up and has an address is tried, or, where there is none, software.",
		Flags: []cli.Flag{
			providerFlag("`PROVIDER` of the device; auto: the one that has it"),
			&cli.StringFlag{Name: "address", Aliases: []string{"a"}, Usage: "an `ADDRESS` of the device; default its first"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "the most `TIME` for each step"},
			jsonFlag(),
		},
		Action: smoke,
	}
}

func smoke(c *cli.Context) (err error) {
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if c.NArg() > 1 {
		return usagef("smoke: expected one device, got %d arguments", c.NArg())
	}
	cfg := rdmatool.SmokeConfig{Device: c.Args().First(), Timeout: c.Duration("timeout")}
	if a := c.String("address"); a != "" {
		if cfg.Address, err = netip.ParseAddr(a); err != nil {
			return usagef("smoke: address %q: expected an IPv4 or IPv6 address", a)
		}
	}
	set := providers.Default()
	defer closeAll(set, &err)
	p, err := smokeProvider(c, set, cfg.Device)
	if err != nil {
		return err
	}
	report := rdmatool.StepWriter(c.App.Writer)
	if asJSON {
		report = nil
	}
	r, err := rdmatool.Smoke(c.Context, p, cfg, report)
	write := r.WriteSummary
	if asJSON {
		write = r.WriteJSON
	}
	if werr := write(c.App.Writer); err == nil {
		err = werr
	}
	return err
}

// smokeProvider is the provider of the flag, or one with the device.
func smokeProvider(c *cli.Context, set *providers.Set, device string) (fabric.Provider, error) {
	name, err := wanted(c, set)
	if err != nil {
		return nil, err
	}
	if name != providers.Auto {
		return set.Get(name)
	}
	if device == "" {
		return set.For(c.Context, name, netip.IPv4Unspecified())
	}
	for _, n := range set.Names() {
		p, err := set.Get(n)
		if err != nil {
			continue
		}
		devices, err := p.Devices()
		if err == nil && slices.ContainsFunc(devices, func(d fabric.DeviceInfo) bool { return d.Name == device }) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no provider has a device %q: `nvmf-target rdma list` names them", device)
}

// closeAll closes the providers; an error there counts when there is no other.
func closeAll(set *providers.Set, err *error) {
	if cerr := set.Close(); cerr != nil && *err == nil {
		*err = fmt.Errorf("closing: %w", cerr)
	}
}
