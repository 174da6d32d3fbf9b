package main

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/daemon"
	"github.com/nvmf-go/nvmf/internal/providers"
)

func TestMain(m *testing.M) {
	for _, name := range []string{"NVMF_TRADDR", "NVMF_TRSVCID", "NVMF_NQN", "NVMF_PROVIDER"} {
		os.Unsetenv(name)
	}
	dir, err := os.MkdirTemp("", "nvmf") // where a host without an identity makes one
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CONFIG_HOME", dir)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { os.RemoveAll(dir); os.Exit(code) }))
}

const (
	ramNQN  = "nqn.2026-11.io.nvmf:ram"
	twoNQN  = "nqn.2026-11.io.nvmf:two"
	onlyNQN = "nqn.2026-11.io.nvmf:closed" // for a host that is not the tests'
	ram     = "rdma://10.0.0.1/" + ramNQN
	two     = "rdma://10.0.0.1/" + twoNQN

	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:6f3c0000-0000-4000-8000-000000000001"
)

const configuration = `
version: 1
listeners: [{name: front, address: 10.0.0.1, provider: roce}]
poll_groups: 1
rdma: {buffers: 16MiB}
backends:
  - {name: ram, type: mem, size: 8MiB, block_size: 4096}
  - {name: small, type: mem, size: 1MiB}
  - {name: void, type: "null", size: 1GiB}
subsystems:
  - nqn: nqn.2026-11.io.nvmf:ram
    serial: RAM0001
    hosts: any
    namespaces: [{nsid: 1, backend: ram, uuid: 6f3cbb5a-7d8e-4f6b-9a3c-0123456789ab}]
  - nqn: nqn.2026-11.io.nvmf:two
    hosts: any
    namespaces: [{nsid: 3, backend: small}, {nsid: 7, backend: void}]
  - nqn: nqn.2026-11.io.nvmf:closed
    hosts: [nqn.2026-11.io.nvmf:somebody]
    namespaces: []
`

// rig is our own daemon on an in-memory network, and command lines of a host
// beside it.
type rig struct {
	*testing.T
	far    *fabrictest.Provider
	daemon *daemon.Daemon
	dir    string
}

// kept is a provider that outlives the command that closes it.
type kept struct{ fabric.Provider }

func (kept) Close() error { return nil }

func set(p fabric.Provider) *providers.Set {
	return &providers.Set{
		Software: "roce",
		Open:     map[string]func() (fabric.Provider, error){"roce": func() (fabric.Provider, error) { return kept{p}, nil }},
	}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	n := fabrictest.NewNetwork(fabrictest.Options{})
	near := n.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	r := &rig{T: t, far: n.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}), dir: t.TempDir()}
	f, err := config.Parse("test.yaml", []byte(configuration))
	r.must(err)
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	d, err := daemon.Start(ctx, f, daemon.Options{Log: log, Providers: set(near)})
	r.must(err)
	t.Cleanup(func() { r.must(d.Close(ctx)) })
	r.daemon = d
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// result is what a command line has left behind.
type result struct {
	code        int
	out, errOut string
}

// with runs a command line with something on standard input.
func (r *rig) with(stdin string, args ...string) result {
	r.Helper()
	var out, errOut bytes.Buffer
	w := &world{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errOut, providers: set(r.far)}
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	code := run(ctx, append([]string{"nvmf"}, args...), w)
	return result{code, out.String(), errOut.String()}
}

// try runs a command line as the tests' host.
func (r *rig) try(args ...string) result {
	r.Helper()
	return r.with("", args...)
}

// nvmf runs a command line that succeeds, and returns what it printed.
func (r *rig) nvmf(args ...string) string {
	r.Helper()
	res := r.try(args...)
	if res.code != exitOK {
		r.Fatalf("%q: exit %d: %s", args, res.code, res.errOut)
	}
	return res.out
}

func (r *rig) file(name string, content []byte) string {
	r.Helper()
	path := filepath.Join(r.dir, name)
	r.must(os.WriteFile(path, content, 0o600))
	return path
}

func (r *rig) read(path string) []byte {
	r.Helper()
	b, err := os.ReadFile(path)
	r.must(err)
	return b
}

// contains checks that text has all of the parts.
func (r *rig) contains(text string, parts ...string) {
	r.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			r.Errorf("%q is not in:\n%s", p, text)
		}
	}
}
