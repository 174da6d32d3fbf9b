package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPing(t *testing.T) {
	r := newRig(t)
	r.contains(r.nvmf("ping", ram, "-c", "3", "--interval", "1ms"), "PING "+ramNQN+" at 10.0.0.1:4420 from 10.0.0.2", "seq=3 time=", "3 sent, 3 answered, 0% lost", "rtt min/avg/max/mdev")
	if m := object(t, r.nvmf("ping", ram, "-c", "5", "--interval", "0", "-o", "json")); m["answered"] != 5.0 || m["rtt_ns"].(map[string]any)["min"].(float64) <= 0 {
		t.Errorf("%v", m)
	}
	if res := r.try("ping", ram, "-c", "-1"); res.code != exitUsage {
		t.Errorf("%+v", res)
	}
}

// canceller ends a context when something was written.
type canceller struct {
	bytes.Buffer
	at     string
	cancel func()
}

func (c *canceller) Write(p []byte) (int, error) {
	n, err := c.Buffer.Write(p)
	if strings.Contains(c.String(), c.at) {
		c.cancel()
	}
	return n, err
}

// An interrupted ping has its summary, as that of ping.
func TestPingInterrupted(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &canceller{at: "seq=3 ", cancel: cancel}
	var errOut bytes.Buffer
	if code := run(ctx, []string{"nvmf", "ping", ram, "--interval", "1ms"}, &world{stdout: out, stderr: &errOut, providers: set(r.far)}); code != exitOK {
		t.Errorf("exit %d: %s", code, errOut.String())
	}
	r.contains(out.String(), "3 sent, 3 answered, 0% lost")
}

func TestPingerNumbers(t *testing.T) {
	var p pinger
	for _, d := range []time.Duration{2, 4, 6} {
		p.add(d * time.Millisecond)
	}
	if p.least != 2*time.Millisecond || p.most != 6*time.Millisecond || p.mean().Round(time.Microsecond) != 4*time.Millisecond ||
		p.deviation().Round(10*time.Microsecond) != 1630*time.Microsecond {
		t.Errorf("%v %v %v %v", p.least, p.mean(), p.most, p.deviation())
	}
	if p = (pinger{}); p.mean() != 0 || p.deviation() != 0 {
		t.Error("nothing has a mean")
	}
}

func TestBench(t *testing.T) {
	r := newRig(t)
	r.contains(r.nvmf("bench", ram, "--rw", "randrw", "--iodepth", "16", "--runtime", "0", "--verify", "crc32c", "--numjobs", "2", "--size", "4m"),
		"randrw: bs=4KiB, iodepth=16, numjobs=2", "read: IOPS=", "write: IOPS=", "percentiles", "verify:", "cpu of this host")
	job := object(t, r.nvmf("bench", ram, "--runtime", "100ms", "--bs", "64k", "--iodepth", "8", "-o", "json", "--pid", "1"))["jobs"].([]any)[0].(map[string]any)
	if job["jobname"] != "randread" || job["read"].(map[string]any)["total_ios"].(float64) < 1 || job["target_cpu_ns_per_io"] == nil {
		t.Errorf("%v", job)
	}
	// What one run has written another can check, and what has changed since is found.
	r.nvmf("bench", ram, "--rw", "write", "--runtime", "0", "--verify", "crc32c")
	r.nvmf("bench", ram, "--rw", "read", "--runtime", "0", "--verify", "crc32c", "--iodepth", "4")
	r.nvmf("write-zeroes", ram, "--start-block", "17")
	res := r.try("bench", ram, "--rw", "read", "--runtime", "0", "--verify", "crc32c")
	if res.code != exitData || !strings.Contains(res.errOut, "offset 69632: no header") {
		t.Errorf("%+v", res)
	}
}

func TestBenchOptions(t *testing.T) {
	r := newRig(t)
	for _, args := range [][]string{
		{"--rw", "sideways"}, {"--bs", "512"}, {"--bs", "0"}, {"--bs", "2m"}, {"--iodepth", "0"}, {"--size", "9m"}, {"--verify", "md5"},
		{"--rwmixread", "101"}, {"--offset", "7"}, {"--suite"},
	} {
		if res := r.try(append([]string{"bench", ram, "--runtime", "10ms"}, args...)...); res.code != exitUsage {
			t.Errorf("%q: %+v", args, res)
		}
	}
}

func TestBenchSuite(t *testing.T) {
	r := newRig(t)
	out := r.nvmf("bench", "--suite", "--rounds", "2", "--runtime", "20ms", "-n", twoNQN, "-N", "7", "roce=10.0.0.1", "roce=10.0.0.1:4420")
	r.contains(out, "4KiB random read, depth 1 ", "4KiB random read, depth 32", "128KiB random read, depth 32", "p99 us")
	if n := strings.Count(out, "│ roce"); n != 8 {
		t.Errorf("%d rows:\n%s", n, out)
	}
	m := object(t, r.nvmf("bench", "--suite", "--rounds", "1", "--runtime", "10ms", "-n", twoNQN, "-N", "7", "-o", "json", "roce=10.0.0.1"))
	if n := len(m["cells"].([]any)); n != 4 {
		t.Errorf("%v", m)
	}
}

func TestCopy(t *testing.T) {
	r := newRig(t)
	content := make([]byte, 3<<20+5)
	copy(content[1<<20:], "something in the middle")
	content[len(content)-1] = 9
	in := r.file("in.img", content)
	res := r.try("copy", in, ram+"/1", "--verify", "--offset", "4k")
	if res.code != exitOK || !strings.Contains(res.errOut, "read again and the same") {
		t.Fatalf("%+v", res)
	}
	out := filepath.Join(r.dir, "out.img")
	r.nvmf("copy", "-a", "10.0.0.1", "-n", ramNQN, "ns:1", out, "--offset", "4k", "--size", "3145733", "--verify", "--quiet")
	if !bytes.Equal(r.read(out), content) {
		t.Error("the image is another one after a round trip")
	}
	r.nvmf("copy", two+"/3", out)
	if info, err := os.Stat(out); err != nil || info.Size() != 1<<20 {
		t.Errorf("%v, %v", info, err)
	}
	for _, c := range []struct {
		args []string
		code int
		has  string
	}{
		{[]string{in}, exitUsage, "expected SOURCE and DESTINATION"},
		{[]string{in, out}, exitUsage, "has to be a namespace"},
		{[]string{ram, two}, exitUsage, "has to be a namespace"},
		{[]string{in, two + "/3"}, exitFail, "not enough room"},
		{[]string{in, ram, "--offset", "5"}, exitUsage, "not on a block"},
		{[]string{r.dir + "/absent", ram}, exitFail, "no such file"},
		{[]string{r.file("q", []byte("QFI\xfb1234")), ram}, exitUsage, "is a qcow2 image"},
		{[]string{ram, "-", "--verify"}, exitUsage, "a pipe"},
		{[]string{in, ram, "--workers", "0"}, exitUsage, "--workers"},
		{[]string{in, "ns:x", "-a", "10.0.0.1", "-n", ramNQN}, exitUsage, "expected a number"},
		{[]string{in, ram + "/4"}, exitStatus, "no such namespace"},
	} {
		if res := r.try(append([]string{"copy"}, c.args...)...); res.code != c.code || !strings.Contains(res.errOut, c.has) {
			t.Errorf("%q: %+v", c.args, res)
		}
	}
}

func TestIdentityOf(t *testing.T) {
	r := &rig{T: t, dir: t.TempDir()}
	if nqn, id, ok := identityOf(r.file("good", []byte(hostNQN+"\n"))); !ok || string(nqn) != hostNQN || id.String() != "6f3c0000-0000-4000-8000-000000000001" {
		t.Errorf("%s, %v, %v", nqn, id, ok)
	}
	for _, content := range []string{"", "nonsense", "nqn.2026-11.io.nvmf:no-uuid\n"} {
		if _, _, ok := identityOf(r.file("bad", []byte(content))); ok {
			t.Errorf("%q is taken for an identity", content)
		}
	}
	if _, _, ok := identityOf(r.dir + "/absent"); ok {
		t.Error("an absent file is taken for an identity")
	}
}

// A bar is drawn and ends.
func TestBar(t *testing.T) {
	r := newRig(t)
	var out, errOut bytes.Buffer
	w := &world{stdout: &out, stderr: &errOut, providers: set(r.far), terminal: true}
	if code := run(t.Context(), []string{"nvmf", "copy", r.file("in", make([]byte, 1<<20)), ram}, w); code != exitOK {
		t.Errorf("exit %d: %s", code, errOut.String())
	}
	r.contains(errOut.String(), "1.0 MiB (1048576 bytes) copied")
}
