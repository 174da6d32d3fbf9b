package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/providers"
	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/nvme"
)

const catConnection = "Connection"

// connectFlags are the options that say what to connect to and how; their names
// and letters are those of nvme connect.
func connectFlags() []cli.Flag {
	str := func(name, alias, value, env, usage string) cli.Flag {
		f := &cli.StringFlag{Name: name, Value: value, Usage: usage, Category: catConnection}
		if alias != "" {
			f.Aliases = []string{alias}
		}
		if env != "" {
			f.EnvVars = []string{env}
		}
		return f
	}
	num := func(name, alias string, value int, usage string) cli.Flag {
		f := &cli.IntFlag{Name: name, Value: value, Usage: usage, Category: catConnection}
		if alias != "" {
			f.Aliases = []string{alias}
		}
		return f
	}
	return []cli.Flag{
		str("transport", "t", "rdma", "", "transport: rdma"),
		str("traddr", "a", "", "NVMF_TRADDR", "address or name of the target"),
		str("trsvcid", "s", "4420", "NVMF_TRSVCID", "port of the target"),
		str("host-traddr", "w", "", "", "address of this machine to connect from"),
		str("nqn", "n", "", "NVMF_NQN", "NQN of the subsystem"),
		str("hostnqn", "q", "", "", "NQN of this host; default as show-hostnqn prints it"),
		str("hostid", "I", "", "", "ID of this host, a UUID"),
		num("keep-alive-tmo", "k", 5, "keep alive timeout in seconds, 0 for none"),
		num("nr-io-queues", "i", 0, "I/O queues; 0 leaves it to the command"),
		num("queue-size", "Q", initiator.DefaultQueueDepth, "commands in flight on an I/O queue"),
		num("ctrl-loss-tmo", "", 0, "seconds to try to reconnect for; -1 for ever, 0 leaves it to the command"),
		num("reconnect-delay", "", 1, "seconds between attempts, twice as many after each, at most ten times as many"),
		num("fast-io-fail-tmo", "", 30, "seconds until I/O fails while there is no connection; -1 as ctrl-loss-tmo"),
		num("io-timeout", "", 30, "seconds that a command may take"),
		num("timeout", "", 10, "seconds that a connection may take to be made"),
		num("tos", "", 0, "type of service of the packets"),
		&cli.BoolFlag{Name: "disable-sqflow", Usage: "go without submission queue flow control", Category: catConnection},
		str("provider", "", providers.Auto, "NVMF_PROVIDER", "auto, verbs (RDMA devices), roce or iwarp (software RNIC)"),
		&cli.BoolFlag{Name: "verbose", Usage: "tell of the connection on stderr", Category: catConnection},
	}
}

// namespaceFlag is the option that nvme-cli has as -n where no connection is
// made.
func namespaceFlag() cli.Flag {
	return &cli.UintFlag{Name: "namespace-id", Aliases: []string{"N"}, Usage: "namespace; default the only one, or the last part of DEVICE"}
}

// outputFlag is -o.
func outputFlag() cli.Flag {
	return &cli.StringFlag{Name: "output-format", Aliases: []string{"o"}, Value: "normal", Usage: "normal, json or binary"}
}

func humanFlag() cli.Flag {
	return &cli.BoolFlag{Name: "human-readable", Aliases: []string{"H"}, Usage: "say what bits and units mean"}
}

func rawFlag() cli.Flag {
	return &cli.BoolFlag{Name: "raw-binary", Aliases: []string{"b"}, Usage: "the same as -o binary"}
}

// showOptions are the output options of a command.
func showOptions(c *cli.Context) (show.Options, error) {
	f, err := show.ParseFormat(c.String("output-format"))
	if c.Bool("raw-binary") {
		f = show.Binary
	}
	return show.Options{Format: f, Human: c.Bool("human-readable")}, err
}

// device is what a command is about: a controller, and maybe a namespace of it.
type device struct {
	traddr, trsvcid string
	nqn             nvme.NQN
	nsid            uint32 // 0: not said
}

const scheme = "rdma://"

// parseDevice reads rdma://HOST[:PORT][/NQN[/NSID]].
func parseDevice(s string) (d device, err error) {
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return d, usagef("device %q: expected %sADDRESS[:PORT]/NQN[/NSID]: there are no device files without a kernel driver", s, scheme)
	}
	host, path, _ := strings.Cut(rest, "/")
	d.traddr = host
	if h, p, err := net.SplitHostPort(host); err == nil {
		d.traddr, d.trsvcid = h, p
	}
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		if n, err := strconv.ParseUint(path[i+1:], 10, 32); err == nil {
			d.nsid, path = uint32(n), path[:i]
			if n == 0 {
				return d, usagef("device %q: namespace 0 is not one", s)
			}
		}
	}
	d.nqn = nvme.NQN(path)
	return d, nil
}

// String is the device as parseDevice reads it.
func (d device) String() string {
	s := scheme + net.JoinHostPort(d.traddr, d.trsvcid)
	if d.nqn != "" {
		s += "/" + string(d.nqn)
	}
	if d.nsid != 0 {
		s += fmt.Sprintf("/%d", d.nsid)
	}
	return s
}

// deviceOf is the device that the options and name, "" for none, give
// together.
func deviceOf(c *cli.Context, name string) (d device, err error) {
	if name != "" {
		if d, err = parseDevice(name); err != nil {
			return d, err
		}
	}
	if d.traddr == "" {
		d.traddr = c.String("traddr")
	}
	if d.trsvcid == "" {
		d.trsvcid = c.String("trsvcid")
	}
	said := nvme.NQN(c.String("nqn"))
	if err := checkNQN(said); err != nil {
		return d, err
	}
	if d.nqn == "" {
		d.nqn = said
	}
	if n := c.Uint("namespace-id"); n != 0 {
		if uint64(n) > math.MaxUint32 {
			return d, usagef("namespace %d: expected 1 to %d", n, uint32(math.MaxUint32))
		}
		d.nsid = uint32(n)
	}
	switch {
	case c.String("transport") != "rdma":
		return d, usagef("transport %q: this host speaks rdma", c.String("transport"))
	case d.traddr == "":
		return d, usagef("%s: which target? -a ADDRESS, or %sADDRESS/NQN as operand", c.Command.Name, scheme)
	}
	return d, checkNQN(d.nqn)
}

func checkNQN(n nvme.NQN) error {
	if n == "" || n.IsDiscovery() {
		return nil
	}
	if _, err := strconv.ParseUint(string(n), 0, 32); err == nil {
		return usagef("-n %s: -n is the subsystem's NQN, as of nvme connect; the namespace is -N", n)
	}
	if err := n.Check(); err != nil {
		return usagef("NQN %q: %w", string(n), err)
	}
	return nil
}

// required checks that options were given.
func required(c *cli.Context, names ...string) error {
	for _, n := range names {
		if !c.IsSet(n) {
			return usagef("%s: expected --%s", c.Command.Name, n)
		}
	}
	return nil
}

// seconds is an option in seconds, where -1 stands for ever.
func seconds(c *cli.Context, name string) time.Duration {
	return time.Duration(c.Int(name)) * time.Second
}

// config makes the initiator's configuration of the options, without address
// and subsystem.
func (w *world) config(ctx context.Context, c *cli.Context) (cfg initiator.Config, err error) {
	cfg = initiator.Config{
		IOQueues: -1, QueueDepth: c.Int("queue-size"), DisableSQFlow: c.Bool("disable-sqflow"),
		KeepAlive: seconds(c, "keep-alive-tmo"), ReconnectDelay: seconds(c, "reconnect-delay"),
		MaxReconnectDelay: 10 * seconds(c, "reconnect-delay"),
		FastIOFail:        seconds(c, "fast-io-fail-tmo"), IOTimeout: seconds(c, "io-timeout"), AdminTimeout: seconds(c, "io-timeout"),
		ConnectTimeout: seconds(c, "timeout"),
	}
	for _, o := range []struct {
		name  string
		least int
	}{{"keep-alive-tmo", 0}, {"nr-io-queues", 0}, {"queue-size", 1}, {"ctrl-loss-tmo", -1}, {"reconnect-delay", 1}, {"fast-io-fail-tmo", -1}, {"io-timeout", 1}, {"timeout", 1}, {"tos", 0}} {
		if v := c.Int(o.name); v < o.least {
			return cfg, usagef("--%s %d: expected %d or more", o.name, v, o.least)
		}
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = -1
	}
	if tos := c.Int("tos"); tos > math.MaxUint8 {
		return cfg, usagef("--tos %d: expected at most 255", tos)
	}
	cfg.TOS = uint8(c.Int("tos"))
	cfg.HostNQN = nvme.NQN(c.String("hostnqn"))
	if s := c.String("hostid"); s != "" {
		if cfg.HostID, err = nvme.ParseHostID(s); err != nil {
			return cfg, usagef("--hostid: %w", err)
		}
	}
	if s := c.String("host-traddr"); s != "" {
		local, err := initiator.ParseAddr(ctx, s, "")
		if err != nil {
			return cfg, usagef("--host-traddr: %w", err)
		}
		cfg.LocalAddr = local.Addr()
	}
	if c.Bool("verbose") {
		cfg.Log = logrus.New()
		cfg.Log.SetOutput(w.stderr)
		cfg.Log.SetLevel(logrus.DebugLevel)
	}
	return cfg, nil
}

// holdOn has a controller reconnect for as long as the user says, or the
// package does: for commands that go on for a while. Others give up at once.
func holdOn(c *cli.Context, cfg *initiator.Config, long bool) {
	loss := c.Int("ctrl-loss-tmo")
	cfg.NoReconnect = loss == 0 && !long
	switch {
	case loss < 0:
		cfg.CtrlLossTimeout = -1
	case loss > 0:
		cfg.CtrlLossTimeout = time.Duration(loss) * time.Second
	}
}
