package curves

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nvmf-go/nvmf/internal/admin"
	"github.com/nvmf-go/nvmf/internal/daemon"
)

const nqn = "nqn.2026-11.io.nvmf:curves"

// target is a daemon of ours while it runs.
type target struct {
	cmd    *exec.Cmd
	dir    string
	addr   netip.AddrPort
	client *admin.Client
	log    tail
	ended  chan struct{} // closed when the process is gone
}

// tail keeps the end of what is written to it. One goroutine writes, and others
// read when that has ended.
type tail struct{ b []byte }

const maxTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b) - maxTail; n > 0 {
		t.b = t.b[:copy(t.b, t.b[n:])]
	}
	return len(p), nil
}

// configuration is the daemon's file for a point.
func configuration(s *Setup, dir string, addr netip.Addr) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\nadmin: {socket: %s}\n", filepath.Join(dir, "socket"))
	groups := len(s.TargetCPUs)
	if s.Busy {
		groups = 1
		b.WriteString("poll: busy\n")
	}
	fmt.Fprintf(&b, "poll_groups: %d\nrdma: {memory_limit: 4GiB", groups)
	if s.QueueDepth > 0 {
		fmt.Fprintf(&b, ", queue_depth: %d", s.QueueDepth)
	}
	fmt.Fprintf(&b, "}\nlisteners: [{name: front, provider: %s, address: %s}]\nbackends:\n", s.Load.Provider, addr)
	n := max(s.Namespaces, 1)
	for i := range n {
		fmt.Fprintf(&b, "  - {name: void%d, type: \"null\", size: 1TiB, block_size: 512}\n", i+1)
	}
	fmt.Fprintf(&b, "subsystems:\n  - nqn: %s\n    hosts: any\n    namespaces:\n", nqn)
	for i := range n {
		fmt.Fprintf(&b, "      - {nsid: %d, backend: void%d}\n", i+1, i+1)
	}
	return b.String()
}

// loopback is an address that nobody else is likely to listen on.
func loopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(2 + rand.IntN(250)), byte(2 + rand.IntN(250)), byte(2 + rand.IntN(250))})
}

// startTarget starts program as a point's daemon and waits until it listens.
func startTarget(ctx context.Context, program string, s *Setup) (_ *target, err error) {
	t := &target{ended: make(chan struct{})}
	if t.dir, err = os.MkdirTemp("", "nvmf-curves-"); err != nil {
		return nil, err
	}
	t.client = admin.NewClient(filepath.Join(t.dir, "socket"))
	t.addr = netip.AddrPortFrom(loopback(), 4420)
	file := filepath.Join(t.dir, "target.yaml")
	if err := os.WriteFile(file, []byte(configuration(s, t.dir, t.addr.Addr())), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(t.dir))
	}
	t.cmd = exec.Command(program, "serve", file)
	t.cmd.Stdout, t.cmd.Stderr = io.Discard, &t.log
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM} // a Ctrl-C is for us to pass on
	if err := startOn(s.TargetCPUs, t.cmd); err != nil {
		return nil, errors.Join(err, os.RemoveAll(t.dir))
	}
	go func() { _ = t.cmd.Wait(); close(t.ended) }()
	if err := t.listening(ctx); err != nil {
		return nil, errors.Join(err, t.stop())
	}
	return t, nil
}

// listening waits until hosts may come.
func (t *target) listening(ctx context.Context) error {
	for {
		st, err := t.client.Status(ctx)
		if err == nil && len(st.Listeners) == 1 {
			switch l := st.Listeners[0]; l.State {
			case daemon.Listening:
				return nil
			case daemon.Down:
				return fmt.Errorf("the daemon does not listen: %s", l.Reason)
			}
		}
		select {
		case <-t.ended:
			return fmt.Errorf("the daemon ended: %s", bytes.TrimSpace(t.log.b))
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not listen: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Times that children have to end.
const (
	orderly = 10 * time.Second
	killed  = 5 * time.Second
)

// stop ends the daemon in order, and the hard way when that takes too long.
func (t *target) stop() error {
	_ = t.cmd.Process.Signal(syscall.SIGTERM) // may be gone
	err := t.wait(orderly)
	if err != nil {
		_ = t.cmd.Process.Kill()
		err = errors.Join(errors.New("the daemon had to be killed"), t.wait(killed))
	} else if code := t.cmd.ProcessState.ExitCode(); code != 0 {
		err = fmt.Errorf("the daemon ended with %v: %s", t.cmd.ProcessState, bytes.TrimSpace(t.log.b))
	}
	return errors.Join(err, os.RemoveAll(t.dir))
}

func (t *target) wait(d time.Duration) error {
	select {
	case <-t.ended:
		return nil
	case <-time.After(d):
		return fmt.Errorf("process %d has not ended in %v", t.cmd.Process.Pid, d)
	}
}

// idle watches the daemon for a time in which nothing happens. rss is what it
// had before hosts came.
func (t *target) idle(ctx context.Context, rss uint64, d time.Duration) (Idle, error) {
	st, err := t.client.Status(ctx)
	if err != nil {
		return Idle{}, err
	}
	if err := sleep(ctx, d/4); err != nil { // what the question has stirred up
		return Idle{}, err
	}
	pid := t.cmd.Process.Pid
	used, err := processCPU(pid)
	if err != nil {
		return Idle{}, err
	}
	start := time.Now()
	if err := sleep(ctx, d); err != nil {
		return Idle{}, err
	}
	elapsed := time.Since(start)
	now, err := processCPU(pid)
	if err != nil {
		return Idle{}, err
	}
	return Idle{
		Connections: float64(st.RDMA.Connections), RSS: float64(st.Process.RSS), Grown: float64(st.Process.RSS) - float64(rss),
		Registered: float64(st.Process.Registered), CPU: (now - used).Seconds() / elapsed.Seconds(),
	}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
