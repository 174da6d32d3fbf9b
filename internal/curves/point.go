package curves

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// host is a Host while it runs.
type host struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log tail
}

// startHost starts program as a host. When ctx ends it is told to end, and
// killed when it does not.
func startHost(ctx context.Context, program string, s *Setup) (h *host, err error) {
	h = &host{cmd: exec.CommandContext(ctx, program, HostArgument)}
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h.cmd.Cancel = func() error { return h.cmd.Process.Signal(syscall.SIGTERM) }
	h.cmd.WaitDelay = orderly
	h.cmd.Stderr = &h.log
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.out = bufio.NewReader(out)
	return h, startOn(s.HostCPUs, h.cmd)
}

// say sends a line.
func (h *host) say(line string) error {
	_, err := io.WriteString(h.in, line+"\n")
	return err
}

// result reads the last line.
func (h *host) result() (r Result, err error) {
	line, err := h.out.ReadBytes('\n')
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// end waits for the end of the process. What it wrote on stderr explains why
// there is an error.
func (h *host) end(err error) error {
	_ = h.in.Close() // it is told so, when it still waits for a word
	werr := h.cmd.Wait()
	if err == nil && werr == nil {
		return nil
	}
	if said := strings.TrimSpace(string(h.log.b)); said != "" {
		werr = errors.Join(werr, errors.New(said))
	}
	return errors.Join(err, werr)
}

// patience is what a point may take beside its measured time: thousands of
// connections on a machine that does something else too.
const patience = 3 * time.Minute

// measure runs a point: the daemon, the host, and both to their end.
func (o *Options) measure(ctx context.Context, s Setup) (m Measured, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience+3*s.Load.Time, errors.New("the point takes too long"))
	defer cancel()
	t, err := startTarget(ctx, o.Target, &s)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	before, err := t.client.Status(ctx)
	if err != nil {
		return m, err
	}
	s.Load.Addr, s.Load.NQN, s.Load.PID = t.addr.String(), nqn, t.cmd.Process.Pid
	h, err := startHost(ctx, o.Host, &s)
	if err != nil {
		return m, err
	}
	defer func() { err = h.end(err) }()
	return h.converse(func() (Idle, error) {
		if !s.Idle {
			return Idle{}, nil
		}
		return t.idle(ctx, before.Process.RSS, s.Load.Time)
	}, &s.Load)
}

// converse has the host connect, looks at the daemon, and has the host load it.
func (h *host) converse(look func() (Idle, error), l *Load) (m Measured, err error) {
	spec, err := json.Marshal(l)
	if err != nil {
		return m, err
	}
	// What one that has ended already has said tells more than that it takes nothing.
	if err := h.say(string(spec)); err != nil && !errors.Is(err, syscall.EPIPE) {
		return m, err
	}
	first, err := h.out.Peek(1)
	if err != nil {
		return m, fmt.Errorf("the host has ended: %w", err)
	}
	if first[0] == '{' { // it could not connect
		_, err := h.result()
		return m, err
	}
	if line, err := h.out.ReadString('\n'); err != nil || line != lineConnected+"\n" {
		return m, errors.Join(fmt.Errorf("the host says %q", line), err)
	}
	if m.Idle, err = look(); err != nil {
		return m, err
	}
	if err := h.say(lineGo); err != nil {
		return m, err
	}
	m.Result, err = h.result()
	return m, err
}
