package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/initiator/nbd"
)

const nbdDescription = `Serves a namespace over the Network Block Device protocol until it is told to end
(SIGINT, SIGTERM), for qemu, qemu-img, nbdcopy, fio or the kernel's nbd-client:

   nvmf nbd --socket /run/user/1000/disk0.sock rdma://192.0.2.1/nqn.2026-11.io.nvmf:disk0/1
   nvmf nbd --listen 127.0.0.1 -a 192.0.2.1 -n nqn.2026-11.io.nvmf:disk0 -N 1

It prints the URI, and what to do with it. The socket is its owner's alone; on TCP
everybody on this machine can read and write the namespace, for NBD knows no
authentication.

When the target is away, requests wait for it, until --fast-io-fail-tmo has them
fail; it is waited for as long as --ctrl-loss-tmo says, by default for ever.`

func (w *world) nbdCommand() *cli.Command {
	return &cli.Command{
		Name: "nbd", Usage: "export a namespace over the Network Block Device protocol", ArgsUsage: "[DEVICE]", Description: nbdDescription,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "socket", Usage: "path of a unix socket to serve at"},
			&cli.StringFlag{Name: "listen", Usage: fmt.Sprintf("address of this machine to serve at, ADDRESS[:PORT]; the port is %d by default", nbd.DefaultPort)},
			&cli.BoolFlag{Name: "any-address", Usage: "let --listen be an address that others can reach: they can read and write all, unasked"},
			&cli.StringFlag{Name: "name", Usage: "name of the export; clients that give none get it too"},
			&cli.BoolFlag{Name: "read-only", Usage: "refuse writes"},
			&cli.IntFlag{Name: "connections", Value: nbd.DefaultConnections, Usage: "clients at a time"},
			&cli.IntFlag{Name: "queues", Value: nbd.DefaultQueues, Usage: "I/O queues; clients share them"},
			&cli.DurationFlag{Name: "spin", Value: initiator.DefaultSpin, Usage: "how long a queue polls before it sleeps, less where that finds nothing, more where a sleep is dear; 1ms and more always: less latency for more CPU"},
			namespaceFlag(),
		}, connectFlags()...),
		Action: w.nbd,
	}
}

// nbdForce is how long commands in flight may hold up the end.
const nbdForce = 10 * time.Second

func (w *world) nbd(c *cli.Context) (err error) {
	if c.Int("connections") < 1 || c.Int("queues") < 1 {
		return usagef("nbd: --connections and --queues are 1 or more")
	}
	name, err := operand(c)
	if err != nil {
		return err
	}
	l, err := w.nbdListener(c)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // Serve has closed it, when it came to that
	if !c.IsSet("ctrl-loss-tmo") {
		if err := c.Set("ctrl-loss-tmo", "-1"); err != nil {
			return err
		}
	}
	s, err := w.open(c, name, needs{queues: c.Int("queues"), long: true})
	if err != nil {
		return err
	}
	defer s.close(&err)
	n, err := s.namespace()
	if err != nil {
		return err
	}
	return w.nbdServe(s, n, l)
}

// nbdListener listens where the command line says.
func (w *world) nbdListener(c *cli.Context) (net.Listener, error) {
	path, addr := c.String("socket"), c.String("listen")
	if (path == "") == (addr == "") {
		return nil, usagef("nbd: where? --socket PATH, or --listen ADDRESS[:PORT]")
	}
	if path != "" {
		return nbd.ListenUnix(path)
	}
	l, err := nbd.ListenTCP(addr, c.Bool("any-address"))
	switch {
	case errors.Is(err, nbd.ErrNotLoopback):
		return nil, usagef("%w: whoever reaches it can read and write the namespace, for NBD knows no authentication; --any-address does it all the same", err)
	case err != nil:
		return nil, err
	case c.Bool("any-address"):
		fmt.Fprintf(w.stderr, "nvmf: warning: whoever reaches %v can read and write the namespace\n", l.Addr())
	}
	return l, nil
}

// nbdServe serves until the session is told to end.
func (w *world) nbdServe(s *session, n *initiator.Namespace, l net.Listener) error {
	log := logrus.New()
	log.SetOutput(w.stderr)
	log.SetLevel(logrus.WarnLevel)
	if s.c.Bool("verbose") {
		log.SetLevel(logrus.InfoLevel)
	}
	srv, err := nbd.New(s.ctx, n, nbd.Options{
		Name: s.c.String("name"), Description: fmt.Sprintf("%s namespace %d", s.dev.nqn, n.ID()), ReadOnly: s.c.Bool("read-only"),
		Connections: s.c.Int("connections"), Queues: s.c.Int("queues"), Log: log,
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w.stdout, "%s namespace %d (%d bytes, blocks of %d) at %v, %s on %s, %d queues\n",
		s.dev.nqn, n.ID(), n.Size(), n.BlockSize(), s.cfg.Addr, s.provider.Name(), s.ctrl.Status().Device, srv.Queues())
	w.nbdExamples(l.Addr(), s.c.String("name"))
	// Commands that nobody answers must not hold up the end for ever.
	force := time.AfterFunc(math.MaxInt64, func() { _ = s.ctrl.Close() })
	defer force.Stop()
	defer context.AfterFunc(s.ctx, func() { force.Reset(nbdForce) })()
	if err := srv.Serve(s.ctx, l); err != nil {
		return err
	}
	fmt.Fprintln(w.stdout, "ended")
	return nil
}

// nbdURI is the address of an export as clients take it (the NBD URI
// specification).
func nbdURI(at net.Addr, name string) string {
	u := url.URL{Scheme: "nbd", Host: at.String(), Path: "/" + name}
	if at.Network() == "unix" {
		u.Scheme, u.Host, u.RawQuery = "nbd+unix", "", "socket="+strings.ReplaceAll(url.QueryEscape(at.String()), "%2F", "/")
		return u.Scheme + "://" + u.EscapedPath() + "?" + u.RawQuery
	}
	return u.String()
}

// nbdExamples prints the URI and what to do with it.
func (w *world) nbdExamples(at net.Addr, name string) {
	uri := nbdURI(at, name)
	client := fmt.Sprintf("nbd-client -unix %s /dev/nbd0", at)
	if tcp, ok := at.(*net.TCPAddr); ok {
		client = fmt.Sprintf("nbd-client %s %d /dev/nbd0", tcp.IP, tcp.Port)
	}
	if name != "" {
		client += " -N " + name
	}
	fmt.Fprintf(w.stdout, `serving at %s
  nbdinfo '%[1]s'
  qemu-img convert -n -p -O raw image.qcow2 '%[1]s'
  nbdcopy --progress '%[1]s' image.raw
  fio --name=nbd --ioengine=nbd --uri='%[1]s' --rw=randread --bs=4k --iodepth=32 --size=100%%
  %s
`, uri, client)
}
