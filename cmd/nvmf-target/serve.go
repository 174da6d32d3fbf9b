package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/admin"
	"github.com/nvmf-go/nvmf/internal/config"
	target "github.com/nvmf-go/nvmf/internal/daemon"
)

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:      "serve",
		Usage:     "run the daemon",
		ArgsUsage: "FILE",
		Description: "Serves what FILE describes until SIGTERM or SIGINT, which end it in order: hosts see\n" +
			"their queues disconnected. A second one ends it at once. SIGHUP reads FILE again and\n" +
			"applies what changed.",
		Action: func(c *cli.Context) error {
			file, err := oneFile(c)
			if err != nil {
				return err
			}
			f, err := config.Load(file)
			if err != nil {
				return err
			}
			log := logrus.New()
			log.SetOutput(c.App.ErrWriter)
			return serve(c.Context, f, log)
		},
	}
}

// serve runs until a signal ends it.
func serve(ctx context.Context, f *config.File, log *logrus.Logger) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	// First the socket: a second daemon on one file must not come as far as
	// the media.
	sock, err := admin.Listen(f.Admin.Socket, f.Admin.HTTP)
	if err != nil {
		return err
	}
	defer sock.Close()
	d, err := target.Start(ctx, f, target.Options{Log: log})
	if err != nil {
		return err
	}
	ctl := &control{d: d, path: f.Path, log: log}
	sock.Serve(ctl)
	notify(log, daemon.SdNotifyReady)
	log.Infof("serving %s", f.Path)

	for s := range signals {
		if s == syscall.SIGHUP {
			go ctl.hangup(ctx) // it may wait for media, and the end must not
			continue
		}
		log.Infof("%v: ending", s)
		break
	}
	notify(log, daemon.SdNotifyStopping)
	return drain(ctx, d.DrainTime(), d.Close, signals, log)
}

// hangup is what SIGHUP does.
func (c *control) hangup(ctx context.Context) {
	notify(c.log, daemon.SdNotifyReloading)
	if _, err := c.Reload(ctx); err != nil {
		c.log.Error(err)
	}
	notify(c.log, daemon.SdNotifyReady)
}

func notify(log *logrus.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warnf("telling the service manager: %v", err)
	}
}

// drain ends all with end, within limit or until another signal.
func drain(ctx context.Context, limit time.Duration, end func(context.Context) error, signals <-chan os.Signal, log *logrus.Logger) error {
	late := fmt.Errorf("not everything ended within %v", limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- end(ctx) }()
	const grace = 500 * time.Millisecond // to say what has not ended
	expired := time.After(limit + grace)
	for {
		select {
		case err := <-done:
			if err == nil {
				log.Info("ended")
			}
			return err
		case s := <-signals:
			if s == syscall.SIGHUP {
				continue
			}
			return errors.New("ended at once by a second signal")
		case <-expired:
			return late
		}
	}
}

// control is what the socket may ask of the daemon.
type control struct {
	d    *target.Daemon
	path string
	log  *logrus.Logger

	mu sync.Mutex // held by Reload: what is read last is in force last
}

// Reload reads the file again; with mistakes in it nothing changes.
func (c *control) Reload(ctx context.Context) (*target.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := config.Load(c.path)
	if err != nil {
		return nil, fmt.Errorf("nothing changed: %w", err)
	}
	c.log.Infof("reading %s again", c.path)
	return c.d.Reload(ctx, f), nil
}

// Status is the daemon's state now.
func (c *control) Status(ctx context.Context) (*target.Status, error) { return c.d.Status(ctx) }
