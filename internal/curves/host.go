package curves

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/bench"
	"github.com/nvmf-go/nvmf/internal/providers"
	"github.com/nvmf-go/nvmf/nvme"
)

// HostArgument is the only argument of a program that is to call Host.
const HostArgument = "host"

// Lines between Host and who has started it.
const (
	lineConnected = "connected"
	lineGo        = "go"
)

// The host's identity; none is made on the machine for a measurement.
const hostNQN = "nqn.2014-08.org.nvmexpress:uuid:6d5f0c1e-3b0a-4f5c-9c1f-0c75e1b0a001"

// Host is the other end: it reads a Load as a line of JSON, connects, says so,
// waits for word, loads, and writes its Result as a line of JSON. What goes
// wrong is in Result.Error; the error is of the conversation.
func Host(ctx context.Context, in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	var l Load
	line, err := r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &l)
	}
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	res, err := l.run(ctx, func() error {
		fmt.Fprintln(out, lineConnected)
		if word, err := r.ReadString('\n'); err != nil || word != lineGo+"\n" {
			return errors.Join(fmt.Errorf("word %q: expected %s", word, lineGo), err)
		}
		return nil
	})
	if err != nil {
		res.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(res)
}

// run connects, calls ready, and does the load.
func (l *Load) run(ctx context.Context, ready func() error) (res Result, err error) {
	var devices deviceSets
	defer func() { err = errors.Join(err, devices.close()) }()
	controllers, err := l.connect(ctx, &devices)
	defer func() {
		for _, c := range controllers {
			err = errors.Join(err, c.Close())
		}
	}()
	if err != nil {
		return res, err
	}
	list, err := namespaces(ctx, controllers)
	if err != nil {
		return res, err
	}
	if err := ready(); err != nil {
		return res, err
	}
	if l.Callers > 0 {
		return l.spread(ctx, list)
	}
	return l.queues(ctx, list)
}

// queueCounts is how many I/O queues each controller has.
func (l *Load) queueCounts() (list []int) {
	most := l.PerController
	if most == 0 {
		most = l.Queues
	}
	for left := l.Queues; left > 0; left -= list[len(list)-1] {
		list = append(list, min(left, most))
	}
	return list
}

// deviceSets are the providers of a host that is larger than one device: a
// software RoCE device has no more than 511 completion queues, and each queue
// wants one. It stands for several hosts.
type deviceSets struct {
	sets []*providers.Set
	addr netip.Addr // of the last: two devices cannot share one
	left int        // queues that the last may still have
}

const queuesPerDevice = 256

// get is a provider with room for a controller of n I/O queues and its admin
// queue, and the address to connect from.
func (d *deviceSets) get(name string, n int) (fabric.Provider, netip.Addr, error) {
	if len(d.sets) == 0 || d.left < n+1 {
		d.sets, d.addr = append(d.sets, providers.Default()), loopback()
		d.left = queuesPerDevice + queuesPerDevice/queuesPerController
	}
	d.left -= n + 1
	p, err := d.sets[len(d.sets)-1].Get(name)
	return p, d.addr, err
}

func (d *deviceSets) close() (err error) {
	for _, s := range d.sets {
		err = errors.Join(err, s.Close())
	}
	return err
}

// connect makes the controllers; with an error those that were made.
func (l *Load) connect(ctx context.Context, devices *deviceSets) (list []*initiator.Controller, err error) {
	addr, err := netip.ParseAddrPort(l.Addr)
	if err != nil {
		return nil, err
	}
	cfg := initiator.Config{
		Addr: addr, Subsystem: nvme.NQN(l.NQN), HostNQN: hostNQN, NoReconnect: true,
		QueueDepth: max(l.Depth, initiator.DefaultQueueDepth), ConnectTimeout: time.Minute, IOTimeout: time.Minute,
		Spin: l.Spin,
	}
	for _, n := range l.queueCounts() {
		cfg.IOQueues = n
		p, local, err := devices.get(l.Provider, n)
		if err != nil {
			return list, err
		}
		cfg.LocalAddr = local
		c, err := initiator.Connect(ctx, p, cfg)
		if err != nil {
			return list, fmt.Errorf("controller %d: %w", len(list)+1, err)
		}
		list = append(list, c)
		if have := c.Status().IOQueues; have != n {
			return list, fmt.Errorf("controller %d: %d queues granted of %d", len(list), have, n)
		}
	}
	return list, nil
}

// namespaces are those of each controller.
func namespaces(ctx context.Context, controllers []*initiator.Controller) (list []*initiator.Namespace, err error) {
	for _, c := range controllers {
		some, err := c.Namespaces(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	return list, nil
}

// queues loads with a goroutine for each queue.
func (l *Load) queues(ctx context.Context, list []*initiator.Namespace) (res Result, err error) {
	// Each controller's namespace as often as the controller has queues.
	var turns []*initiator.Namespace
	for i, n := range l.queueCounts() {
		turns = append(turns, slices.Repeat(list[i:i+1], n)...)
	}
	r, err := bench.RunOn(ctx, turns, bench.Options{
		Mode: bench.RandRead, BlockSize: l.BlockSize, Depth: l.Depth, Jobs: l.Queues, Runtime: l.Time, Ramp: l.Time / 10, Process: l.PID,
	})
	if err != nil {
		return res, err
	}
	ios, bytes := r.Total()
	switch {
	case r.Interrupted:
		return res, context.Cause(ctx)
	case r.Depth < l.Depth:
		return res, fmt.Errorf("a depth of %d granted of %d", r.Depth, l.Depth)
	case ios == 0:
		return res, errNothing
	}
	seconds := r.Elapsed.Seconds()
	return Result{
		IOPS: float64(ios) / seconds, Bandwidth: float64(bytes) / seconds,
		P50: micros(r.Percentile(50)), P99: micros(r.Percentile(99)),
		Host: micros(r.CPU.Total()) / float64(ios), Target: micros(r.Target.Total()) / float64(ios),
		Least: float64(slices.Min(r.PerJob)) / seconds, Most: float64(slices.Max(r.PerJob)) / seconds,
	}, nil
}

var errNothing = errors.New("no read came back")

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
