package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/show"
)

func (w *world) pingCommand() *cli.Command {
	c := w.verb("ping", "measure the round trip of a fabrics command that touches nothing", needs{}, []cli.Flag{
		&cli.IntFlag{Name: "count", Aliases: []string{"c"}, Usage: "how many; 0 goes on until interrupted", Value: 0},
		&cli.DurationFlag{Name: "interval", Usage: "time between them; 0 sends the next as the answer is there", Value: time.Second},
		&cli.BoolFlag{Name: "quiet", Usage: "the summary only"},
		outputFlag(),
	}, w.ping)
	c.Description = "Sends Property Get of CSTS, as ping sends ICMP echoes: the time is that of the RDMA\n" +
		"network and of both programs, without any medium."
	return c
}

// pinger counts round trips.
type pinger struct {
	sent, got   int
	least, most time.Duration
	sum, square float64 // of seconds
}

func (p *pinger) add(d time.Duration) {
	if p.got == 0 || d < p.least {
		p.least = d
	}
	p.most = max(p.most, d)
	p.got++
	p.sum += d.Seconds()
	p.square += d.Seconds() * d.Seconds()
}

// mean is the average, deviation how far the times are from it (mdev of ping).
func (p *pinger) mean() time.Duration {
	return time.Duration(p.sum / float64(max(p.got, 1)) * float64(time.Second))
}

func (p *pinger) deviation() time.Duration {
	n := float64(max(p.got, 1))
	v := p.square/n - p.sum/n*p.sum/n
	return time.Duration(math.Sqrt(max(v, 0)) * float64(time.Second))
}

func millis(d time.Duration) string { return fmt.Sprintf("%.3f", float64(d)/float64(time.Millisecond)) }

func (w *world) ping(s *session) error {
	count, interval := s.c.Int("count"), s.c.Duration("interval")
	if count < 0 || interval < 0 {
		return usagef("ping: --count and --interval are not negative")
	}
	text := s.show.Format == show.Normal
	if text {
		st := s.ctrl.Status()
		fmt.Fprintf(w.stdout, "PING %s at %v from %v (%s, device %s)\n", s.dev.nqn, s.cfg.Addr, st.Local.Addr(), s.provider.Name(), st.Device)
	}
	var p pinger
	start := time.Now()
	err := w.pings(s, &p, count, interval, text && !s.c.Bool("quiet"))
	if s.ctx.Err() != nil {
		err = nil // interrupted: that is how it ends
	}
	if perr := w.pingSummary(s, &p, time.Since(start)); err == nil {
		err = perr
	}
	return err
}

func (w *world) pings(s *session, p *pinger, count int, interval time.Duration, lines bool) error {
	for n := 1; count == 0 || n <= count; n++ {
		if n > 1 && interval > 0 {
			select {
			case <-time.After(interval):
			case <-s.ctx.Done():
				return nil
			}
		}
		p.sent++
		d, err := s.ctrl.Ping(s.ctx)
		switch {
		case s.ctx.Err() != nil:
			p.sent--
			return nil //nolint:nilerr // the user has seen enough
		case err != nil:
			return err
		}
		p.add(d)
		if lines {
			fmt.Fprintf(w.stdout, "answer from %v: seq=%d time=%s ms\n", s.cfg.Addr, n, millis(d))
		}
	}
	return nil
}

func (w *world) pingSummary(s *session, p *pinger, took time.Duration) error {
	lost := 0.0
	if p.sent > 0 {
		lost = 100 * float64(p.sent-p.got) / float64(p.sent)
	}
	if s.show.Format != show.Normal {
		return show.Pairs(show.Object{
			{Key: "address", Value: s.cfg.Addr}, {Key: "nqn", Value: s.dev.nqn}, {Key: "provider", Value: s.provider.Name()},
			{Key: "sent", Value: p.sent}, {Key: "answered", Value: p.got}, {Key: "lost_percent", Value: lost},
			{Key: "rtt_ns", Value: show.Object{{Key: "min", Value: p.least.Nanoseconds()}, {Key: "avg", Value: p.mean().Nanoseconds()},
				{Key: "max", Value: p.most.Nanoseconds()}, {Key: "mdev", Value: p.deviation().Nanoseconds()}}},
		}).Write(w.stdout, s.show.Format)
	}
	_, err := fmt.Fprintf(w.stdout, "\n--- %s statistics ---\n%d sent, %d answered, %g%% lost, time %d ms\n", s.cfg.Addr, p.sent, p.got, lost, took.Milliseconds())
	if p.got > 0 {
		_, err = fmt.Fprintf(w.stdout, "rtt min/avg/max/mdev = %s/%s/%s/%s ms\n", millis(p.least), millis(p.mean()), millis(p.most), millis(p.deviation()))
	}
	if err == nil && p.sent == 0 {
		err = errors.New("nothing was sent")
	}
	return err
}
