package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/bench"
	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/internal/version"
)

const benchDescription = `Loads a namespace as fio does and says how fast it was. Writes destroy what is
on the namespace.

   nvmf bench --rw randread --bs 4k --iodepth 32 --runtime 10s DEVICE
   nvmf bench --rw randrw --rwmixread 70 --verify crc32c --size 1g DEVICE

With --verify every I/O's data begins with a header (what wrote it, where, how
often, CRC32C of all of it), and every read is checked against what was written
last; at the end all that was written is read again.

--suite runs four loads (4 KiB random reads at depth 1, 32 and 128, 128 KiB at
depth 32) against one target after another and prints one table:

   nvmf bench --suite roce=192.0.2.1:4420 iwarp=192.0.2.1:4420 verbs=192.0.2.7`

func benchFlags() []cli.Flag {
	return []cli.Flag{
		namespaceFlag(),
		&cli.StringFlag{Name: "rw", Aliases: []string{"readwrite"}, Value: "randread", Usage: "load: read, write, randread, randwrite, rw, randrw, trim or randtrim"},
		sizeFlag("bs", "", 4096, "bytes of an I/O"),
		&cli.IntFlag{Name: "iodepth", Value: 1, Usage: "I/Os in flight of each job"},
		&cli.IntFlag{Name: "numjobs", Aliases: []string{"jobs"}, Value: 1, Usage: "jobs, each with a queue and a part of the range of its own"},
		&cli.StringFlag{Name: "runtime", Value: "10s", Usage: "how long, in seconds or as 1m30s; 0 moves --size bytes once"},
		&cli.StringFlag{Name: "ramp_time", Value: "0", Usage: "time before that is not measured"},
		sizeFlag("size", "", 0, "bytes of the range; default all of the namespace"),
		sizeFlag("offset", "", 0, "where the range begins"),
		&cli.IntFlag{Name: "rwmixread", Value: 50, Usage: "percent of reads in rw and randrw"},
		&cli.StringFlag{Name: "verify", Usage: "check what is read: crc32c"},
		&cli.Uint64Flag{Name: "randseed", Usage: "makes the random numbers; 0 takes any"},
		&cli.IntFlag{Name: "pid", Usage: "process ID of the target on this machine, to tell its CPU time"},
		&cli.DurationFlag{Name: "spin", Value: initiator.DefaultSpin, Usage: "how long a queue polls before it sleeps, less where that finds nothing, more where a sleep is dear; 1ms and more always: less latency for more CPU"},
		&cli.BoolFlag{Name: "suite", Usage: "the table; operands are PROVIDER=ADDRESS[:PORT]"},
		&cli.IntFlag{Name: "rounds", Value: 3, Usage: "of --suite: how often each load runs; the table has medians"},
		outputFlag(),
	}
}

func (w *world) benchCommand() *cli.Command {
	return &cli.Command{
		Name: "bench", Usage: "measure IOPS, bandwidth, latencies and CPU", ArgsUsage: "[DEVICE]", Description: benchDescription,
		Flags: append(benchFlags(), connectFlags()...), Action: w.bench,
	}
}

// timeOption is an option in seconds or as Go writes durations.
func timeOption(c *cli.Context, name string) (time.Duration, error) {
	s := c.String(name)
	d, err := time.ParseDuration(s)
	if err != nil {
		d, err = time.ParseDuration(s + "s")
	}
	if err != nil || d < 0 {
		return 0, usagef("--%s %q: expected seconds, or a time like 1m30s", name, s)
	}
	return d, nil
}

// benchOptions are the options of a load.
func benchOptions(c *cli.Context) (o bench.Options, err error) {
	o = bench.Options{
		Depth: c.Int("iodepth"), Jobs: c.Int("numjobs"), ReadPercent: c.Int("rwmixread"), Seed: c.Uint64("randseed"), Process: c.Int("pid"),
	}
	if o.Mode, err = bench.ParseMode(c.String("rw")); err != nil {
		return o, usageError{err}
	}
	switch v := c.String("verify"); v {
	case "", "none", "0":
	case "crc32c":
		o.Verify = true
	default:
		return o, usagef("--verify %q: expected crc32c", v)
	}
	if o.Runtime, err = timeOption(c, "runtime"); err != nil {
		return o, err
	}
	if o.Ramp, err = timeOption(c, "ramp_time"); err != nil {
		return o, err
	}
	bs, err := size(c, "bs")
	if err != nil {
		return o, err
	}
	const most = 1 << 30
	if bs == 0 || bs > most || o.Depth < 1 || o.Jobs < 1 {
		return o, usagef("--bs, --iodepth and --numjobs are 1 or more, and --bs at most %d", most)
	}
	o.BlockSize = int(bs)
	if o.Size, err = size(c, "size"); err != nil {
		return o, err
	}
	o.Offset, err = size(c, "offset")
	return o, err
}

func (w *world) bench(c *cli.Context) error {
	o, err := benchOptions(c)
	if err != nil {
		return err
	}
	if c.Bool("suite") {
		return w.benchSuite(c, o)
	}
	name, err := operand(c)
	if err != nil {
		return err
	}
	return w.benchOne(c, name, o)
}

func (w *world) benchOne(c *cli.Context, name string, o bench.Options) (err error) {
	s, err := w.open(c, name, needs{queues: o.Jobs, depth: o.Depth, long: true})
	if err != nil {
		return err
	}
	defer s.close(&err)
	n, err := s.namespace()
	if err != nil {
		return err
	}
	text := s.show.Format == show.Normal
	if text {
		st := s.ctrl.Status()
		fmt.Fprintf(w.stdout, "%s namespace %d (%d bytes, blocks of %d) at %v, %s on %s\n",
			s.dev.nqn, n.ID(), n.Size(), n.BlockSize(), s.cfg.Addr, s.provider.Name(), st.Device)
	}
	o.Live = w.live(text)
	rep, err := bench.Run(s.ctx, n, o)
	if rep != nil {
		err = errors.Join(benchError(err), w.printReport(s, rep, err))
	}
	if errors.Is(err, bench.ErrOptions) {
		err = usageError{err}
	}
	return err
}

// benchError marks data that is wrong for the exit code.
func benchError(err error) error {
	var wrong *bench.VerifyError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%w: %w", errData, err)
	}
	return err
}

// live draws how a load goes, where somebody can see it.
func (w *world) live(text bool) func(bench.Live) {
	if !text || !w.terminal {
		return nil
	}
	return func(l bench.Live) { fmt.Fprintf(w.stderr, "\r\x1b[K%s", l.Text()) }
}

func (w *world) printReport(s *session, rep *bench.Report, failed error) error {
	if s.show.Format == show.Normal {
		if w.terminal {
			fmt.Fprint(w.stderr, "\r\x1b[K")
		}
		_, err := io.WriteString(w.stdout, rep.Text())
		if n := s.ctrl.Status().Reconnects; n > 0 {
			fmt.Fprintf(w.stdout, "  connection: lost and made anew %d times\n", n)
		}
		return err
	}
	job := rep.JSON()
	job.Add("reconnects", s.ctrl.Status().Reconnects)
	if failed != nil {
		job.Add("failure", failed.Error())
	}
	return show.Pairs(show.Object{
		{Key: "nvmf version", Value: version.String()}, {Key: "timestamp", Value: time.Now().Unix()},
		{Key: "subsystem", Value: s.dev.nqn}, {Key: "namespace", Value: s.dev.nsid}, {Key: "address", Value: s.cfg.Addr},
		{Key: "provider", Value: s.provider.Name()}, {Key: "jobs", Value: []show.Object{job}},
	}).Write(w.stdout, s.show.Format)
}
