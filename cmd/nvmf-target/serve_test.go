package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/roce"
	"github.com/nvmf-go/nvmf/internal/admin"
	"github.com/nvmf-go/nvmf/internal/daemon"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// Addresses of the daemon and of the host, of this process alone.
var targetAt, hostAt = loopback(101), loopback(102)

func loopback(block byte) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, block, byte(pid >> 8), byte(pid)})
}

// rig is a folder with a file for a daemon, and who looks at it.
type rig struct {
	t      *testing.T
	ctx    context.Context
	dir    string
	client *admin.Client
	device fabric.Device // of the host, once it has connected
}

func newRig(t *testing.T) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, dir: t.TempDir()}
	r.client = admin.NewClient(r.path("socket"))
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// write makes yaml the daemon's file. In it are DIR, ADDRESS and HEAD.
func (r *rig) write(name, yaml string) {
	r.t.Helper()
	const head = "version: 1\nadmin: {socket: DIR/socket}\nlisteners: [{name: front, provider: roce, address: ADDRESS}]\n" +
		"poll_groups: 1\nrdma: {buffers: 4MiB}\n"
	yaml = strings.NewReplacer("DIR", r.dir, "ADDRESS", targetAt.String()).Replace(strings.Replace(yaml, "HEAD", head, 1))
	if err := os.WriteFile(r.path(name), []byte(yaml), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

const nqn = "nqn.2026-11.io.nvmf:a"

// ram is a file with a subsystem of n mem namespaces.
func ram(n int) string {
	backends, namespaces := "", ""
	for i := range n {
		backends += fmt.Sprintf("  - {name: ram%d, type: mem, size: 1MiB}\n", i)
		namespaces += fmt.Sprintf("      - {nsid: %d, backend: ram%d}\n", i+1, i)
	}
	return "HEADbackends:\n" + backends + "subsystems:\n  - nqn: " + nqn + "\n    hosts: any\n    namespaces:\n" + namespaces
}

// process is a daemon.
type process struct {
	r     *rig
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // set when ended is closed

	mu  sync.Mutex
	log bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) said(s string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(p.log.String(), s)
}

// launch runs a daemon on a file of the folder. It is killed at the end of the
// test, if it still runs.
func (r *rig) launch(name string) *process {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	p := &process{r: r, ended: make(chan struct{})}
	p.cmd = &exec.Cmd{Path: exe, Args: []string{"nvmf-target", "serve", r.path(name)}, Stdout: p, Stderr: p}
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	r.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if r.t.Failed() {
			r.t.Logf("%s:\n%s", name, p.log.String())
		}
	})
	return p
}

// start is launch until the daemon listens.
func (r *rig) start() *process {
	r.t.Helper()
	p := r.launch("nvmf.yaml")
	r.until("the daemon listens", func() bool {
		st, err := r.client.Status(r.ctx)
		return err == nil && len(st.Listeners) == 1 && st.Listeners[0].State == daemon.Listening
	})
	return p
}

func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	for !cond() {
		select {
		case <-r.ctx.Done():
			r.t.Fatalf("never: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.r.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.r.t.Fatal(err)
	}
}

// wait waits for the end and has the exit code.
func (p *process) wait() int {
	p.r.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-p.r.ctx.Done():
		p.r.t.Fatal("the daemon does not end")
		return -1
	}
}

func (r *rig) status() *daemon.Status {
	r.t.Helper()
	st, err := r.client.Status(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

// openHost opens the host's device.
func (r *rig) openHost() {
	r.t.Helper()
	p, err := roce.New(roce.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Close() })
	if r.device, err = p.DeviceFor(r.ctx, hostAt, targetAt); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.device.Close() })
}

// connect makes a controller of the host with one I/O queue.
func (r *rig) connect() (*rdmatest.Session, *rdmatest.Queue) {
	r.t.Helper()
	if r.device == nil {
		r.openHost()
	}
	h := &rdmatest.Host{Device: r.device, Target: netip.AddrPortFrom(targetAt, 4420), NQN: "nqn.2026-11.io.nvmf:host", ID: nvme.HostID{1}}
	s, err := h.Admin(r.ctx, nqn, rdmatest.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	q, err := s.Queue(r.ctx, rdmatest.Options{QID: 1}, rdmatest.ConnectParams{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { q.Close() })
	return s, q
}

// The daemon as a whole: it serves, shows itself, reads its file again, and
// ends.
func TestServe(t *testing.T) {
	r := newRig(t)
	r.write("nvmf.yaml", ram(1))
	p := r.start()
	_, q := r.connect()
	if err := q.Write(r.ctx, 1, 0, 8, 0, 4096); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, want string
	}{
		{"status -i 0", "pid"}, {"status -i 0", "front"}, {"status -i 10ms", nqn}, {"status -i 0", "nqn.2026-11.io.nvmf:host"},
		{"status -o json", `"connections": 2`},
	} {
		code, out, errs := nvmfTarget(append(strings.Fields(c.args), "-s", r.path("socket"))...)
		if code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit code %d\n%s%s", c.args, code, out, errs)
		}
	}

	r.write("nvmf.yaml", ram(2))
	p.signal(syscall.SIGHUP)
	r.until("there are two namespaces", func() bool { return len(r.status().Subsystems[0].Namespaces) == 2 })
	if err := q.Read(r.ctx, 2, 0, 1, 0, 512); err != nil {
		t.Error(err)
	}
	if code, out, _ := nvmfTarget("reload", "-s", r.path("socket")); code != 0 || out != "nothing changed\n" {
		t.Errorf("reload of the same: exit code %d, %q", code, out)
	}
	r.write("nvmf.yaml", ram(1))
	if code, out, _ := nvmfTarget("reload", "-s", r.path("socket")); code != 0 || out != "subsystem "+nqn+": namespace 2 removed\nbackend ram1: closed\n" {
		t.Errorf("reload: exit code %d, %q", code, out)
	}

	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 || !p.said("terminated: ending") || !p.said("msg=ended") {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(r.path("socket")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// A file with mistakes changes nothing, by signal or by command, and the daemon
// says which they are.
func TestReloadOfMistakes(t *testing.T) {
	r := newRig(t)
	r.write("nvmf.yaml", ram(2))
	p := r.start()
	s, q := r.connect()
	generation := r.status().Discovery
	for i, mistake := range []struct{ from, to, want string }{
		{"nsid: 1", "nsid: 0", "subsystems[0].namespaces[0].nsid"},
		{"hosts: any", "hosts: some", "subsystems[0].hosts"},
		{"version", "- version", "not YAML"},
	} {
		r.write("nvmf.yaml", strings.Replace(strings.Replace(ram(1), "HEAD", "version: 1\nHEAD", 1), mistake.from, mistake.to, 1))
		p.signal(syscall.SIGHUP)
		r.until("the log has mistake "+mistake.want, func() bool { return p.said("nothing changed: ") && p.said(mistake.want) })
		code, _, errs := nvmfTarget("reload", "-s", r.path("socket"))
		if code != 1 || !strings.Contains(errs, "nothing changed: "+r.path("nvmf.yaml")) || !strings.Contains(errs, mistake.want) {
			t.Errorf("mistake %d: exit code %d, %q", i, code, errs)
		}
	}
	if err := os.Remove(r.path("nvmf.yaml")); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	r.until("the log says that there is no file", func() bool { return p.said("no such file or directory") })
	if st := r.status(); len(st.Subsystems[0].Namespaces) != 2 || st.Discovery != generation {
		t.Errorf("something changed: %+v", st)
	}
	if err := q.Read(r.ctx, 2, 0, 1, 0, 512); err != nil {
		t.Error(err)
	}
	if _, err := s.Admin.Identify(r.ctx, 1, 0); err != nil {
		t.Error(err)
	}
}

// SIGTERM under load: the host is disconnected in order, and the exit code is 0.
func TestTermUnderLoad(t *testing.T) {
	r := newRig(t)
	r.write("nvmf.yaml", ram(1))
	p := r.start()
	_, q := r.connect()
	cmd := make(nvme.Command, nvme.SQESize)
	term := time.AfterFunc(200*time.Millisecond, func() { p.signal(syscall.SIGTERM) })
	defer term.Stop()
	free, done := 16, 0
	for cid := uint16(0); ; {
		for ; free > 0; free-- {
			cid++
			q.IO(cmd, nvme.CmdRead, cid, 1, 0, 128, 0, 65536)
			if err := q.SendCommand(cmd, nil); err != nil {
				break
			}
		}
		if _, err := q.Poll(); err != nil || r.ctx.Err() != nil {
			break
		}
		n := len(q.Take())
		free, done = free+n, done+n
	}
	if code := p.wait(); code != 0 || done == 0 || !p.said("ends: the target is closing") {
		t.Errorf("exit code %d after %d reads", code, done)
	}
}

// A second daemon on the same socket or the same medium does not start, and
// names what is in its way.
func TestSecondDaemon(t *testing.T) {
	r := newRig(t)
	const medium = "backends: [{name: d, type: file, path: DIR/d.img, size: 1MiB}]\n"
	r.write("nvmf.yaml", "HEAD"+medium)
	p := r.start()
	second := r.launch("nvmf.yaml")
	if code := second.wait(); code != 1 || !second.said("control socket: "+r.path("socket")+": another nvmf-target answers there") {
		t.Errorf("the same socket: exit code %d", code)
	}
	r.write("other.yaml", "version: 1\nstrict: true\nadmin: {socket: none}\nlisteners: [{name: front, provider: roce, address: ADDRESS, port: 4421}]\n"+
		"poll_groups: 1\nrdma: {buffers: 4MiB}\n"+medium)
	third := r.launch("other.yaml")
	want := fmt.Sprintf("backend d: backend/file: %s: locked by another opener: process %d (", r.path("d.img"), p.cmd.Process.Pid)
	if code := third.wait(); code != 1 || !third.said(want) {
		t.Errorf("the same medium: exit code %d, want %q", code, want)
	}
	if st := r.status(); st.Process.PID != p.cmd.Process.Pid {
		t.Errorf("pid %d answers", st.Process.PID)
	}
}

// What a daemon that was killed has left does not hinder the next one.
func TestAfterKill(t *testing.T) {
	r := newRig(t)
	r.write("nvmf.yaml", "HEADbackends: [{name: d, type: file, path: DIR/d.img, size: 1MiB}]\n")
	p := r.start()
	p.signal(syscall.SIGKILL)
	p.wait()
	if _, err := os.Stat(r.path("socket")); err != nil {
		t.Fatalf("no socket was left: %v", err)
	}
	r.start()
	if st, err := os.Stat(r.path("socket")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket is not the owner's alone: %v %v", st.Mode(), err)
	}
}

// A path that is no socket is not removed.
func TestSocketIsAFile(t *testing.T) {
	r := newRig(t)
	r.write("nvmf.yaml", "HEAD")
	r.write("socket", "precious")
	p := r.launch("nvmf.yaml")
	if code := p.wait(); code != 1 || !p.said(r.path("socket")+": exists and is no socket") {
		t.Errorf("exit code %d", code)
	}
	if b, err := os.ReadFile(r.path("socket")); err != nil || string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
}

// Metrics and profiles are on the address of the file; JSON logs are JSON.
func TestMetricsAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.write("nvmf.yaml", strings.Replace(strings.Replace(ram(1), "HEAD", "log: {format: json}\nHEAD", 1), "backends", "cntlid: {min: 7}\nbackends", 1))
	text, err := os.ReadFile(r.path("nvmf.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r.write("nvmf.yaml", strings.Replace(string(text), "admin: {", "admin: {http: '"+at+"', ", 1))
	p := r.start()
	if s, _ := r.connect(); s.CNTLID != 7 {
		t.Errorf("cntlid %d", s.CNTLID)
	}
	for path, want := range map[string]string{
		"/metrics": `nvmf_listener_up{address="` + targetAt.String() + `:4420",listener="front",provider="roce"} 1`, "/debug/pprof/": "goroutine",
	} {
		req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, "http://"+at+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %v\n%s", path, err, body)
		}
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	if !p.said(`"level":"info"`) || !p.said(`"host":"nqn.2026-11.io.nvmf:host"`) {
		t.Error("the log is not JSON")
	}
}

// drain waits for the end, for its limit, or for a second signal.
func TestDrain(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	stuck := func(context.Context) error { select {} }
	patient := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	failed := errors.New("a backend is stuck")
	for _, c := range []struct {
		name    string
		end     func(context.Context) error
		limit   time.Duration
		signals []os.Signal
		want    string
	}{
		{"ends", func(context.Context) error { return nil }, time.Hour, nil, ""},
		{"fails", func(context.Context) error { return failed }, time.Hour, nil, failed.Error()},
		{"runs out of time", patient, time.Millisecond, nil, "not everything ended within 1ms"},
		{"does not look at its context", stuck, time.Millisecond, nil, "not everything ended within 1ms"},
		{"second signal", stuck, time.Hour, []os.Signal{syscall.SIGHUP, syscall.SIGTERM}, "ended at once by a second signal"},
	} {
		signals := make(chan os.Signal, 2)
		for _, s := range c.signals {
			signals <- s
		}
		err := drain(t.Context(), c.limit, c.end, signals, log)
		if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && got != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
