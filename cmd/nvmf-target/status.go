package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/admin"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/daemon"
)

func socketFlag() cli.Flag {
	return &cli.StringFlag{Name: "socket", Aliases: []string{"s"}, Value: config.DefaultSocket, Usage: "control socket of the running daemon (admin.socket of its file)"}
}

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show the running daemon: listeners, subsystems, controllers, queues, load and latency",
		Flags: []cli.Flag{
			socketFlag(),
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "table or json"},
			&cli.DurationFlag{Name: "interval", Aliases: []string{"i"}, Value: time.Second, Usage: "how long IOPS and bandwidth are measured; 0 shows averages since the start"},
		},
		Action: noArguments(func(c *cli.Context) error {
			switch c.String("output") {
			case "json":
				return statusJSON(c)
			case "table":
				return statusTable(c)
			}
			return usagef("status: output %q: expected table or json", c.String("output"))
		}),
	}
}

func statusJSON(c *cli.Context) error {
	st, err := admin.NewClient(c.String("socket")).Status(c.Context)
	if err != nil {
		return err
	}
	e := json.NewEncoder(c.App.Writer)
	e.SetIndent("", "  ")
	return e.Encode(st)
}

func statusTable(c *cli.Context) error {
	client := admin.NewClient(c.String("socket"))
	st, err := client.Status(c.Context)
	if err != nil {
		return err
	}
	old := &daemon.Status{Time: st.Time.Add(-st.Uptime)}
	if d := c.Duration("interval"); d > 0 {
		if old, st, err = again(c.Context, client, st, d); err != nil {
			return err
		}
	}
	printStatus(c.App.Writer, old, st)
	return nil
}

func again(ctx context.Context, client *admin.Client, old *daemon.Status, d time.Duration) (_, _ *daemon.Status, err error) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	st, err := client.Status(ctx)
	return old, st, err
}

func printStatus(w io.Writer, old, st *daemon.Status) {
	fmt.Fprintf(w, "nvmf-target %s, pid %d, up %v, %s\n", st.Version, st.Process.PID, st.Uptime.Round(time.Second), st.File)
	fmt.Fprintf(w, "memory %s resident, %s registered of at most %s, beside %s of caches; %d connections, %d rejected, %d Connects refused\n",
		humanize.IBytes(st.Process.RSS), humanize.IBytes(uint64(st.RDMA.MemoryUsed)), humanize.IBytes(uint64(st.RDMA.MemoryLimit)),
		humanize.IBytes(uint64(st.RDMA.LentMemory)),
		st.RDMA.Connections, st.RDMA.Rejected, st.Refusals)
	printListeners(w, st)
	printNamespaces(w, old, st)
	printCaches(w, old, st)
	printControllers(w, st)
	printQueues(w, old, st)
}

func newTable(w io.Writer, title string, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Options.SeparateRows = false
	t.Style().Format.Header = 0
	t.SetTitle(title)
	t.AppendHeader(header)
	return t
}

func printListeners(w io.Writer, st *daemon.Status) {
	t := newTable(w, "Listeners", "name", "address", "provider", "state", "controllers")
	for _, l := range st.Listeners {
		state := l.State
		if l.Reason != "" {
			state += ": " + l.Reason
		}
		t.AppendRow(table.Row{l.Name, l.Address, l.Provider, state, l.Controllers})
	}
	t.Render()
}

func printNamespaces(w io.Writer, old, st *daemon.Status) {
	t := newTable(w, "Subsystems", "NQN", "nsid", "backend", "size", "block", "read IOPS", "read", "write IOPS", "write", "read p50/p99", "write p50/p99", "errors")
	for _, s := range st.Subsystems {
		if len(s.Namespaces) == 0 {
			t.AppendRow(table.Row{s.NQN, "-"})
		}
		for i := range s.Namespaces {
			n := &s.Namespaces[i]
			r := rateOf(findNamespace(old, s.NQN, n.UUID), n.Counters, st.Time.Sub(old.Time))
			t.AppendRow(table.Row{
				s.NQN, n.NSID, fmt.Sprintf("%s (%s)", n.Backend, n.Engine), humanize.IBytes(n.Bytes), n.BlockSize,
				r.iops("read"), r.bandwidth("read"), r.iops("write"), r.bandwidth("write"), percentiles(n.Read), percentiles(n.Write), n.Counters.Errors,
			})
		}
	}
	t.Render()
}

func findNamespace(st *daemon.Status, nqn, uuid string) daemon.Counters {
	for _, s := range st.Subsystems {
		for i := range s.Namespaces {
			if s.NQN == nqn && s.Namespaces[i].UUID == uuid {
				return s.Namespaces[i].Counters
			}
		}
	}
	return daemon.Counters{}
}

func printControllers(w io.Writer, st *daemon.Status) {
	t := newTable(w, "Controllers", "cntlid", "subsystem", "host", "peer", "listener", "queues", "keep alive", "age", "state", "error log")
	for i := range st.Controllers {
		c := &st.Controllers[i]
		state := "enabled"
		if !c.Ready {
			state = "not enabled"
		}
		sub := c.Subsystem
		if c.Discovery {
			sub = "discovery"
		}
		t.AppendRow(table.Row{c.ID, sub, c.Host, c.Peer, c.Listener, len(c.Queues), c.KeepAlive, c.Age.Round(time.Second), state, c.Errors})
	}
	t.Render()
}

func printQueues(w io.Writer, old, st *daemon.Status) {
	t := newTable(w, "Queues", "cntlid", "qid", "depth", "executing", "read IOPS", "read", "write IOPS", "write", "read p50/p99", "write p50/p99")
	for i := range st.Controllers {
		c := &st.Controllers[i]
		for j := range c.Queues {
			q := &c.Queues[j]
			r := rateOf(findQueue(old, c.ID, q.ID), q.Counters, st.Time.Sub(old.Time))
			t.AppendRow(table.Row{
				c.ID, q.ID, q.Depth, q.Executing, r.iops("read"), r.bandwidth("read"), r.iops("write"), r.bandwidth("write"),
				percentiles(q.Read), percentiles(q.Write),
			})
		}
	}
	t.Render()
}

func findQueue(st *daemon.Status, cntlid, qid uint16) daemon.Counters {
	for i := range st.Controllers {
		for j := range st.Controllers[i].Queues {
			if st.Controllers[i].ID == cntlid && st.Controllers[i].Queues[j].ID == qid {
				return st.Controllers[i].Queues[j].Counters
			}
		}
	}
	return daemon.Counters{}
}

// rate is what was done in a time.
type rate struct {
	ops, bytes map[string]float64 // a second
}

func rateOf(old, now daemon.Counters, d time.Duration) rate {
	r := rate{map[string]float64{}, map[string]float64{}}
	per := func(a, b uint64) float64 {
		if d <= 0 || b < a {
			return 0
		}
		return float64(b-a) / d.Seconds()
	}
	for op, n := range now.Ops {
		r.ops[op], r.bytes[op] = per(old.Ops[op], n), per(old.Bytes[op], now.Bytes[op])
	}
	return r
}

func (r rate) iops(op string) string { return humanize.Comma(int64(r.ops[op] + 0.5)) }

func (r rate) bandwidth(op string) string { return humanize.IBytes(uint64(r.bytes[op])) + "/s" }

func percentiles(l daemon.Latency) string {
	if l.Count == 0 {
		return "-"
	}
	return short(l.P50) + "/" + short(l.P99)
}

func short(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d < 10*time.Microsecond:
		return d.Round(100 * time.Nanosecond).String()
	case d < 10*time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func reloadCommand() *cli.Command {
	return &cli.Command{
		Name:  "reload",
		Usage: "make the running daemon read its file again, and say what changed",
		Flags: []cli.Flag{socketFlag()},
		Action: noArguments(func(c *cli.Context) error {
			r, err := admin.NewClient(c.String("socket")).Reload(c.Context)
			if err != nil {
				return err
			}
			for _, l := range r.Changes {
				fmt.Fprintln(c.App.Writer, l)
			}
			for _, k := range r.Restart {
				fmt.Fprintf(c.App.Writer, "%s has changed: a restart will take it up\n", k)
			}
			if len(r.Errors) > 0 {
				return fmt.Errorf("%s", strings.Join(r.Errors, "\n"))
			}
			if len(r.Changes)+len(r.Restart) == 0 {
				fmt.Fprintln(c.App.Writer, "nothing changed")
			}
			return nil
		}),
	}
}
