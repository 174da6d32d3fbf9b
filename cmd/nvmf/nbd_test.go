package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/daemon"
)

// The test program is, for its children, what this variable says: the daemon, or
// the program under test.
const roleVariable = "NVMF_TEST_ROLE"

func init() {
	switch os.Getenv(roleVariable) {
	case "nvmf":
		main()
	case "target":
		if err := serveTarget(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// serveTarget is the daemon, until SIGTERM.
func serveTarget(path string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := config.Parse(path, text)
	if err != nil {
		return err
	}
	log := logrus.New()
	log.SetOutput(os.Stderr)
	d, err := daemon.Start(ctx, f, daemon.Options{Log: log})
	if err != nil {
		return err
	}
	fmt.Println("serving")
	<-ctx.Done()
	return d.Close(context.Background())
}

// child is a process of a test.
type child struct {
	*testing.T
	cmd    *exec.Cmd
	out    *bufio.Reader
	errOut bytes.Buffer
	ended  chan error
	gone   bool
}

// start starts the test program in a role and waits until it has printed a line
// that begins with ready; the rest of the line is returned.
func start(t *testing.T, role, ready string, args ...string) (*child, string) {
	t.Helper()
	c := &child{T: t, cmd: exec.Command(os.Args[0], args...), ended: make(chan error, 1)}
	c.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	c.cmd.Stderr = &c.errOut
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // should the test be killed
	pipe, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.kill() })
	c.out = bufio.NewReader(pipe)
	for {
		line, err := c.out.ReadString('\n')
		if rest, ok := strings.CutPrefix(line, ready); ok {
			return c, strings.TrimSpace(rest)
		}
		if err != nil {
			_ = c.cmd.Wait()
			t.Fatalf("%s %q: %v: %s", role, args, err, c.errOut.String())
		}
	}
}

// kill is kill -9.
func (c *child) kill() {
	if !c.gone {
		c.gone = true
		_ = c.cmd.Process.Kill() // it may have ended
		_ = c.cmd.Wait()         // with the signal
	}
}

// stop is SIGTERM; it returns what was printed since the start.
func (c *child) stop() string {
	c.Helper()
	c.gone = true
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.Fatal(err)
	}
	out, _ := io.ReadAll(c.out)
	if err := c.cmd.Wait(); err != nil {
		c.Errorf("%v: %s", err, c.errOut.String())
	}
	return string(out)
}

// tool is a program of somebody else, run to its end.
type tool struct {
	out  string
	code int
}

// use runs a program; a test whose program is not installed is skipped
// (scripts/deps peers installs them).
func use(t *testing.T, args ...string) tool {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skipf("%s is not installed: scripts/deps peers", args[0])
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = t.TempDir() // fio leaves files
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return tool{string(out), cmd.ProcessState.ExitCode()}
}

// succeed runs a program that has to succeed, and to print all of the parts.
func succeed(t *testing.T, parts []string, args ...string) string {
	t.Helper()
	res := use(t, args...)
	if res.code != 0 {
		t.Fatalf("%q: exit %d: %s", args, res.code, res.out)
	}
	for _, p := range parts {
		if !strings.Contains(res.out, p) {
			t.Errorf("%q: %q is not in:\n%s", args, p, res.out)
		}
	}
	return res.out
}

// nbdWorld is our daemon with a file as disk and some memory, and its exports.
type nbdWorld struct {
	*testing.T
	dir, addr, provider, file string
	size                      int64
	target                    *child
	uri                       string
}

const nbdTarget = `
version: 1
listeners: [{name: front, address: %s, provider: %s}]
poll_groups: 1
rdma: {buffers: 32MiB}
backends:
  - {name: disk, type: file, path: %s}
  - {name: ram, type: mem, size: 16MiB, block_size: 4096}
subsystems:
  - nqn: nqn.2026-11.io.nvmf:two
    hosts: any
    namespaces: [{nsid: 1, backend: disk}, {nsid: 2, backend: ram}]
`

func newNBDWorld(t *testing.T, provider string) *nbdWorld {
	w := &nbdWorld{T: t, dir: t.TempDir(), provider: provider, size: 256 << 20}
	if testing.Short() {
		w.size = 32 << 20
	}
	w.addr = fmt.Sprintf("127.%d.%d.%d", 2+rand.IntN(250), 2+rand.IntN(250), 2+rand.IntN(250))
	w.file = filepath.Join(w.dir, "disk.img")
	w.image(w.file, 0)
	w.serve()
	return w
}

// serve starts the daemon.
func (w *nbdWorld) serve() {
	w.Helper()
	path := filepath.Join(w.dir, "target.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, nbdTarget, w.addr, w.provider, w.file), 0o600); err != nil {
		w.Fatal(err)
	}
	w.target, _ = start(w.T, "target", "serving", path)
}

// image makes a file of the disk's size: random bytes and holes.
func (w *nbdWorld) image(path string, seed byte) {
	w.Helper()
	f, err := os.Create(path)
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(w.size); err != nil {
		w.Fatal(err)
	}
	if seed == 0 {
		return
	}
	rng := rand.NewChaCha8([32]byte{seed})
	b := make([]byte, 1<<20)
	for off := int64(0); off < w.size; off += 4 << 20 {
		for i := range int64(3) { // and a hole of one MiB
			_, _ = rng.Read(b) // never fails
			if _, err := f.WriteAt(b, off+i<<20); err != nil {
				w.Fatal(err)
			}
		}
	}
}

// export starts nvmf nbd.
func (w *nbdWorld) export(t *testing.T, nsid string, args ...string) *child {
	t.Helper()
	args = append([]string{"nbd", "-a", w.addr, "--provider", w.provider, "-n", twoNQN, "-N", nsid, "-k", "1"}, args...)
	c, uri := start(t, "nvmf", "serving at ", args...)
	w.uri = uri
	return c
}

func same(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Errorf("%s and %s differ", filepath.Base(a), filepath.Base(b))
	}
}

// What people use NBD with is content, over both software RNICs.
func TestNBDPeers(t *testing.T) {
	for _, provider := range []string{"roce", "iwarp"} {
		t.Run(provider, func(t *testing.T) {
			w := newNBDWorld(t, provider)
			socket := filepath.Join(w.dir, "nbd.sock")
			c := w.export(t, "1", "--socket", socket)
			t.Run("nbdinfo", w.nbdinfo)
			t.Run("qemu-img", w.qemuImg)
			t.Run("qemu-io", w.qemuIO)
			t.Run("nbdcopy", w.nbdcopy)
			t.Run("fio", w.fio)
			t.Run("client killed", w.clientKilled)
			t.Run("daemon killed", w.daemonKilled)
			if out := c.stop(); !strings.HasSuffix(out, "ended\n") {
				t.Errorf("the end is %q", out)
			}
			if _, err := os.Lstat(socket); !os.IsNotExist(err) {
				t.Errorf("the socket is still there: %v", err)
			}
			t.Run("TCP", w.tcp)
		})
	}
}

func (w *nbdWorld) nbdinfo(t *testing.T) {
	succeed(t, []string{
		"newstyle-fixed without TLS, using structured packets", "description: " + twoNQN + " namespace 1", fmt.Sprintf("export-size: %d", w.size),
		"base:allocation", "is_rotational: false", "is_read_only: false", "can_cache: false", "can_df: true", "can_fast_zero: true",
		"can_flush: true", "can_fua: true", "can_multi_conn: true", "can_trim: true", "can_zero: true",
		"block_size_minimum: 512", "block_size_preferred: 4096", "block_size_maximum: 8388608",
	}, "nbdinfo", w.uri)
	succeed(t, []string{fmt.Sprintf("%10d  %10d    0  data", 0, w.size)}, "nbdinfo", "--map", w.uri)
	succeed(t, []string{`export="":`}, "nbdinfo", "--list", w.uri)
	succeed(t, []string{"file format: raw"}, "qemu-img", "info", w.uri)
}

func (w *nbdWorld) qemuImg(t *testing.T) {
	in := filepath.Join(w.dir, "in.img")
	w.image(in, 1)
	succeed(t, nil, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", in, w.uri)
	succeed(t, []string{"Images are identical."}, "qemu-img", "compare", "-f", "raw", "-F", "raw", in, w.uri)
	same(t, in, w.file)
	succeed(t, nil, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", w.uri, filepath.Join(w.dir, "out.qcow2"))
	succeed(t, []string{"Images are identical."}, "qemu-img", "compare", "-f", "qcow2", "-F", "raw", filepath.Join(w.dir, "out.qcow2"), w.uri)
}

func (w *nbdWorld) qemuIO(t *testing.T) {
	args := []string{"qemu-io", "-f", "raw", w.uri}
	moved := 0
	for _, c := range []string{
		"write -P 0xab 0 1M", "read -P 0xab 0 1M", "write -z 64k 64k", "read -P 0 64k 64k", "read -P 0xab 128k 1k",
		"write -P 0x11 100 1000", "read -P 0x11 100 1000", "read -P 0xab 0 100", // qemu reads, changes and writes back
		"discard 0 1M", "write -f -P 3 2M 64k", "read -P 3 2M 64k", "flush", "writev -P 5 4M 1M 3k 1M", "read -P 5 4M 2051k",
		"aio_write -P 9 7M 1M", "aio_write -P 8 8M 16M", "aio_flush", "read -P 8 8M 16M", "read -P 9 7M 1M",
		"write -z -u 8M 16M", "read -P 0 8M 16M",
	} {
		args = append(args, "-c", c)
		if !strings.Contains(c, "flush") {
			moved++
		}
	}
	out := succeed(t, nil, args...)
	if n := strings.Count(out, " bytes at offset "); n != moved || strings.Contains(out, "failed") {
		t.Errorf("%d of %d moved:\n%s", n, moved, out)
	}
	if res := use(t, "qemu-io", "-f", "raw", w.uri, "-c", "read -P 7 2M 64k"); !strings.Contains(res.out, "Pattern verification failed") {
		t.Errorf("a wrong pattern goes unnoticed: %s", res.out)
	}
}

func (w *nbdWorld) nbdcopy(t *testing.T) {
	in, out := filepath.Join(w.dir, "in2.img"), filepath.Join(w.dir, "out.img")
	w.image(in, 2)
	succeed(t, nil, "nbdcopy", "--connections=4", "--requests=64", "--flush", in, w.uri)
	same(t, in, w.file)
	succeed(t, nil, "nbdcopy", "--connections=4", w.uri, out)
	same(t, in, out)
}

// fioArgs is a verified load; every I/O is of whole blocks.
func (w *nbdWorld) fioArgs(more ...string) []string {
	return append([]string{
		"fio", "--name=nbd", "--ioengine=nbd", "--uri=" + w.uri, "--rw=randrw", "--bsrange=512-64k", "--blockalign=512", "--iodepth=32",
		"--verify=crc32c", "--verify_fatal=1", "--size=16m",
	}, more...)
}

func (w *nbdWorld) fio(t *testing.T) {
	if testing.Short() {
		succeed(t, []string{"err= 0"}, w.fioArgs("--io_size=8m")...)
		return
	}
	succeed(t, []string{"err= 0"}, w.fioArgs()...)
	succeed(t, []string{"err= 0"}, w.fioArgs("--rw=write", "--bs=1m", "--bsrange=1m-1m", "--blockalign=1m", "--iodepth=8", "--fsync=4", "--trim_percentage=0")...)
}

// A client that dies in the middle of writing leaves a server that is well.
func (w *nbdWorld) clientKilled(t *testing.T) {
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed: scripts/deps peers")
	}
	before := w.written()
	cmd := exec.Command("fio", "--name=nbd", "--ioengine=nbd", "--uri="+w.uri, "--rw=randwrite", "--bs=64k", "--iodepth=32", "--size=16m", "--time_based", "--runtime=120",
		"--thread") // one process, which can be killed
	cmd.Dir = w.dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); w.written() == before && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	if w.written() == before {
		t.Error("fio writes nothing")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	w.nbdinfo(t)
}

// written changes when the disk is written.
func (w *nbdWorld) written() time.Time {
	st, err := os.Stat(w.file)
	if err != nil {
		w.Fatal(err)
	}
	return st.ModTime()
}

// The daemon dies under load and comes back; no client hears of it.
func (w *nbdWorld) daemonKilled(t *testing.T) {
	done := make(chan tool, 1)
	before := w.written()
	go func() { done <- use(t, w.fioArgs("--time_based", "--runtime=6")...) }()
	for end := time.Now().Add(time.Minute); w.written() == before && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	for range 2 {
		time.Sleep(time.Second)
		w.target.kill()
		w.serve()
	}
	if res := <-done; res.code != 0 || !strings.Contains(res.out, "err= 0") {
		t.Errorf("fio: exit %d: %s", res.code, res.out)
	}
}

// Another namespace, on TCP, by name, read-only.
func (w *nbdWorld) tcp(t *testing.T) {
	c := w.export(t, "2", "--listen", "127.0.0.1:0", "--name", "a disk", "--read-only", "--queues", "1")
	if !strings.HasPrefix(w.uri, "nbd://127.0.0.1:") || !strings.HasSuffix(w.uri, "/a%20disk") {
		t.Errorf("the URI is %s", w.uri)
	}
	succeed(t, []string{"is_read_only: true", "block_size_minimum: 4096", "export-size: 16777216"}, "nbdinfo", w.uri)
	succeed(t, []string{"read 4194304/4194304"}, "qemu-io", "-r", "-f", "raw", w.uri, "-c", "read -P 0 1000 4M")
	if res := use(t, "qemu-io", "-f", "raw", w.uri, "-c", "write 0 4k"); !strings.Contains(res.out, "read-only") && !strings.Contains(res.out, "not permitted") && !strings.Contains(res.out, "Permission denied") {
		t.Errorf("a write: %+v", res)
	}
	if res := use(t, "nbdinfo", strings.TrimSuffix(w.uri, "a%20disk")+"other"); res.code == 0 || !strings.Contains(res.out, "server replied with error") {
		t.Errorf("another name: %+v", res)
	}
	c.stop()
}

func TestNBDUsage(t *testing.T) {
	r := newRig(t)
	file := r.file("precious", []byte("x"))
	live, err := net.Listen("unix", filepath.Join(r.dir, "live"))
	r.must(err)
	defer live.Close()
	for _, c := range []struct {
		args []string
		code int
		has  string
	}{
		{nil, exitUsage, "--socket PATH, or --listen"},
		{[]string{"--socket", r.dir + "/s", "--listen", "127.0.0.1"}, exitUsage, "--socket PATH, or --listen"},
		{[]string{"--socket", file}, exitFail, "is not a socket of ours"},
		{[]string{"--socket", r.dir + "/live"}, exitFail, "somebody answers there already"},
		{[]string{"--listen", "0.0.0.0"}, exitUsage, "--any-address"},
		{[]string{"--listen", "nowhere"}, exitFail, "expected ADDRESS"},
		{[]string{"--socket", r.dir + "/s", "--queues", "0"}, exitUsage, "1 or more"},
		{[]string{"--socket", r.dir + "/s", "-N", "9"}, exitStatus, "no such namespace"},
	} {
		if res := r.try(append([]string{"nbd", ram}, c.args...)...); res.code != c.code || !strings.Contains(res.errOut, c.has) {
			t.Errorf("%q: %+v", c.args, res)
		}
	}
	if string(r.read(file)) != "x" {
		t.Error("a file was replaced")
	}
}

// The export ends with its context, as with SIGTERM, and says so.
func TestNBDEnds(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &canceller{at: "nbd-client 127.0.0.1 ", cancel: cancel}
	var errOut bytes.Buffer
	if code := run(ctx, []string{"nvmf", "nbd", ram, "--listen", "127.0.0.1:0", "--name", "x"}, &world{stdout: out, stderr: &errOut, providers: set(r.far)}); code != exitOK {
		t.Errorf("exit %d: %s", code, errOut.String())
	}
	r.contains(out.String(), "8388608 bytes, blocks of 4096", "serving at nbd://127.0.0.1:", "/x", "ended")
}
