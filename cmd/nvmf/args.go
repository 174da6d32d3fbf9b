package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// arrange brings a command line into the one form that package cli reads:
// options first, each with its value, then "--", then operands. It knows what
// users of nvme-cli write (getopt_long): options behind operands, -s4420, -Hv,
// --trad for --traddr.
func arrange(app *cli.App, args []string) ([]string, error) {
	at := slices.IndexFunc(args[min(1, len(args)):], func(a string) bool { return !strings.HasPrefix(a, "-") })
	if at < 0 {
		return args, nil
	}
	at++
	cmd := app.Command(args[at])
	if cmd == nil || cmd.SkipFlagParsing || args[len(args)-1] == completion {
		return args, nil
	}
	a := arranger{cmd: cmd, rest: args[at+1:]}
	if err := a.run(); err != nil {
		return nil, err
	}
	out := append(slices.Clone(args[:at+1]), a.options...)
	if len(a.operands) > 0 {
		out = append(append(out, "--"), a.operands...)
	}
	return out, nil
}

// completion is what a shell appends to a line that it wants completed.
const completion = "--generate-bash-completion"

type arranger struct {
	cmd               *cli.Command
	rest              []string
	options, operands []string
}

func (a *arranger) run() error {
	for len(a.rest) > 0 {
		arg := a.rest[0]
		a.rest = a.rest[1:]
		var err error
		switch {
		case arg == "--":
			a.operands = append(a.operands, a.rest...)
			return nil
		case strings.HasPrefix(arg, "--"):
			err = a.long(arg[2:])
		case len(arg) > 1 && arg[0] == '-':
			err = a.short(arg[1:])
		default:
			a.operands = append(a.operands, arg)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// long takes an option written --name, --name=value or --name value.
func (a *arranger) long(text string) error {
	name, value, has := strings.Cut(text, "=")
	flag, err := a.find(name)
	switch {
	case err != nil:
		return err
	case has && !takesValue(flag):
		return usagef("%s: option --%s takes no value", a.cmd.Name, flag.Names()[0])
	case has:
		a.add(flag, value)
		return nil
	}
	return a.withNext(flag)
}

// short takes options written -x, -xy, -x value or -xvalue.
func (a *arranger) short(text string) error {
	for text != "" {
		name := text[:1]
		text = text[1:]
		flag, err := a.find(name)
		switch {
		case err != nil:
			return err
		case !takesValue(flag):
			a.add(flag, "true")
		case text != "":
			a.add(flag, strings.TrimPrefix(text, "="))
			return nil
		default:
			return a.withNext(flag)
		}
	}
	return nil
}

// withNext takes the option's value from the next argument.
func (a *arranger) withNext(flag cli.Flag) error {
	if !takesValue(flag) {
		a.add(flag, "true")
		return nil
	}
	if len(a.rest) == 0 {
		return usagef("%s: option --%s wants a value", a.cmd.Name, flag.Names()[0])
	}
	a.add(flag, a.rest[0])
	a.rest = a.rest[1:]
	return nil
}

func (a *arranger) add(flag cli.Flag, value string) {
	a.options = append(a.options, "--"+flag.Names()[0]+"="+value)
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// find is the option of that name, of which a beginning is enough when it is
// the only one.
func (a *arranger) find(name string) (cli.Flag, error) {
	var begins []cli.Flag
	var names []string
	for _, f := range append(a.cmd.Flags, cli.HelpFlag) {
		for _, n := range f.Names() {
			if n == name {
				return f, nil
			}
			if len(name) > 1 && strings.HasPrefix(n, name) && !slices.Contains(begins, f) {
				begins = append(begins, f)
				names = append(names, "--"+n)
			}
		}
	}
	switch len(begins) {
	case 1:
		return begins[0], nil
	case 0:
		return nil, usagef("%s: unknown option %s%s `nvmf %s --help` lists them", a.cmd.Name, dashed(name), a.suggestion(name), a.cmd.Name)
	}
	return nil, usagef("%s: option %s may be any of %s", a.cmd.Name, dashed(name), strings.Join(names, ", "))
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func (a *arranger) suggestion(name string) string {
	if len(name) == 1 {
		return "."
	}
	if s := cli.SuggestFlag(a.cmd.Flags, name, false); s != "" {
		return ". " + s
	}
	return "."
}

// unknownCommand is the error of a verb that there is none of.
func unknownCommand(app *cli.App, name string) error {
	if s := cli.SuggestCommand(app.Commands, name); s != "" {
		return usagef("unknown command %q. %s `nvmf help` lists all", name, s)
	}
	return usagef("unknown command %q; `nvmf help` lists all", name)
}
