package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return m
}

func TestDiscover(t *testing.T) {
	r := newRig(t)
	r.contains(r.nvmf("discover", "-t", "rdma", "-a", "10.0.0.1", "-s4420"),
		"Discovery Log Number of Records 3", "subtype: current discovery subsystem", "subnqn:  "+ramNQN, "traddr:  10.0.0.1", "trsvcid: 4420")
	m := object(t, r.nvmf("discover", "-a", "10.0.0.1", "-o", "json", "-q", hostNQN))
	if n := len(m["records"].([]any)); n != 3 {
		t.Errorf("%d records", n)
	}
	if b := r.nvmf("discover", "rdma://10.0.0.1", "-b"); len(b) != 4*1024 {
		t.Errorf("%d bytes of a raw log of three records", len(b))
	}
	r.contains(r.nvmf("list", "-a", "10.0.0.1"), "rdma://10.0.0.1:4420/"+ramNQN+"/1", "RAM0001", "0x7", "8.39 MB", "4 KiB +  0 B")
	devices := object(t, r.nvmf("list", two, "-o", "json"))["Devices"].([]any)
	if len(devices) != 2 || devices[1].(map[string]any)["PhysicalSize"] != float64(1<<30) {
		t.Errorf("%v", devices)
	}
	r.contains(r.nvmf("connect-all", "-a", "10.0.0.1", "-i", "1", "-Q", "16"), "NQN="+twoNQN, "traddr=10.0.0.1,trsvcid=4420,src_addr=10.0.0.2 live",
		"1 I/O queues of 16", "namespaces 3, 7")
	var list []map[string]any
	r.must(json.Unmarshal([]byte(r.nvmf("connect-all", "-a", "10.0.0.1", "-o", "json")), &list))
	if len(list) != 1 || len(list[0]["Subsystems"].([]any)) != 2 {
		t.Errorf("%v", list)
	}
}

// Every verb that shows a structure, in every format that it has.
func TestShow(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		args []string
		text string
		key  string // of JSON, "" when there is none
		size int    // in binary, 0 when there is none
	}{
		{[]string{"id-ctrl", ram}, "sn        : RAM0001 ", "sn", 4096},
		{[]string{"id-ctrl", ram, "-H"}, "Dataset Management supported", "", 0},
		{[]string{"id-ns", ram + "/1"}, "nsze    : 0x800", "nsze", 4096},
		{[]string{"id-ns", two, "-N", "7", "-H"}, "Data Size: 512 bytes", "", 0},
		{[]string{"cmdset-ind-id-ns", ram}, "nstat   : 0x1", "nstat", 4096},
		{[]string{"list-ns", two}, "[   1]:0x7", "nsid_list", 4096},
		{[]string{"ns-descs", ram}, "uuid    : 6f3cbb5a-7d8e-4f6b-9a3c-0123456789ab", "ns-descs", 4096},
		{[]string{"smart-log", ram}, "available_spare				: 100%", "avail_spare", 512},
		{[]string{"fw-log", ram}, "afi  : 0x1", ramNQN, 512},
		{[]string{"effects-log", ram}, "ACS6     [Identify ", "", 4096},
		{[]string{"changed-ns-list-log", ram}, "", "Changed Namespace List Log", 4096},
		{[]string{"supported-log-pages", ram}, "LID 0x2 (SMART / Health Information)", "supported_logs", 1024},
		{[]string{"fid-support-effects-log", ram, "-H"}, "Number of Queues", "fid_support", 1024},
		{[]string{"get-log", ram, "--log-id=0x02", "-l", "64"}, "log-id:2 namespace-id:0xffffffff", "", 64},
		{[]string{"get-feature", ram, "-f", "0x0f"}, "get-feature:0x0f (Keep Alive Timer), Current value:0x00001388", "feature: 0x0f", 4},
		{[]string{"get-feature", ram, "-f", "0x81", "-H", "-q", hostNQN}, "6f3c0000-0000-4000-8000-000000000001", "feature: 0x81", 16},
		{[]string{"get-feature", ram, "-f", "0x0b", "--sel", "3", "-H"}, "changing supported", "", 4},
		{[]string{"show-regs", ram}, "version : 20000", "csts", 0x6c},
		{[]string{"get-property", ram, "--offset", "0x1c"}, "property: 0x1c (CSTS), value: 1", "property", 0},
	} {
		r.contains(r.nvmf(c.args...), c.text)
		if testing.Short() {
			continue
		}
		if c.key != "" {
			if m := object(t, r.nvmf(append(slices.Clone(c.args), "-o", "json")...)); m[c.key] == nil {
				t.Errorf("%q: no %s in %v", c.args, c.key, m)
			}
		}
		if c.size > 0 {
			if n := len(r.nvmf(append(slices.Clone(c.args), "-o", "binary")...)); n != c.size {
				t.Errorf("%q: %d bytes, want %d", c.args, n, c.size)
			}
		}
	}
	r.contains(r.nvmf("get-feature", ram), "(Arbitration)", "(Host Identifier)")
	r.contains(r.nvmf("list-ns", two, "--from", "4"), "[   0]:0x7")
}

// A failed command is in the controller's error log.
func TestErrorLog(t *testing.T) {
	r := newRig(t)
	if res := r.try("get-log", ram, "--log-id", "0xc7"); res.code != exitStatus || !strings.HasPrefix(res.errOut, "nvmf: log page 0xc7: Get Log Page: ") || !strings.Contains(res.errOut, "try: `nvmf supported-log-pages`") {
		t.Errorf("%+v", res)
	}
	if out := r.nvmf("error-log", ram, "-e", "3"); !strings.Contains(out, "Error Log Entries") {
		t.Error(out)
	}
	if res := r.try("error-log", ram, "-e", "0"); res.code != exitUsage {
		t.Errorf("%+v", res)
	}
}

func TestFeatures(t *testing.T) {
	r := newRig(t)
	r.contains(r.nvmf("set-feature", ram, "-f", "0x0b", "--value", "0x100"), "set-feature:0x0b (Async Event Configuration), value:0x00000100")
	if res := r.try("set-feature", ram, "-f", "0xC5", "--value", "1"); res.code != exitStatus {
		t.Errorf("a feature that there is none of: %+v", res)
	}
	if res := r.try("set-feature", ram, "-f", "0x16", "--value", "0"); res.code != exitUsage || !strings.Contains(res.errOut, "--data FILE") {
		t.Errorf("data is missing: %+v", res)
	}
	if res := r.with(string(make([]byte, 512)), "set-feature", ram, "-f", "0x16", "--value", "0", "-d", "-"); res.code != exitOK {
		t.Errorf("%+v", res)
	}
	if res := r.with("short", "set-feature", ram, "-f", "0x16", "--value", "0", "-d", "-"); res.code != exitFail {
		t.Errorf("%+v", res)
	}
	r.contains(r.nvmf("reset", ram), "was reset and is live again")
}

func TestPassthru(t *testing.T) {
	r := newRig(t)
	if got := r.nvmf("admin-passthru", ram, "--opcode=6", "--cdw10=1", "-l", "4k", "-b"); len(got) != 4096 || !strings.Contains(got, "RAM0001") {
		t.Errorf("%d bytes of Identify", len(got))
	}
	r.contains(r.nvmf("admin-passthru", ram, "--opcode", "0x0a", "--cdw10", "7"), "command 0x0a succeeded, result: 0x00")
	if res := r.with(strings.Repeat("z", 4096), "io-passthru", ram+"/1", "--opcode", "1", "--cdw10", "5", "-l", "4096", "-d", "-"); res.code != exitOK {
		t.Errorf("%+v", res)
	}
	r.contains(r.nvmf("io-passthru", ram+"/1", "--opcode", "2", "--cdw10", "5", "-l", "4096"), "0ff0: 7a 7a", "zzzzzzzz")
	if res := r.try("io-passthru", ram+"/1", "--opcode", "2", "--cdw10", "5", "--dry-run"); res.code != exitOK || res.out != "" || !strings.Contains(res.errOut, "cdw10        : 00000005") {
		t.Errorf("%+v", res)
	}
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{}, exitUsage}, {[]string{"--opcode", "256"}, exitUsage}, {[]string{"--opcode", "9", "-l", "4"}, exitUsage},
		{[]string{"--opcode", "6", "-l", "1g"}, exitUsage}, {[]string{"--opcode", "6", "--cdw10", "0x100000000"}, exitUsage}, {[]string{"--opcode", "0xff"}, exitStatus},
	} {
		if res := r.try(append([]string{"admin-passthru", ram}, c.args...)...); res.code != c.code {
			t.Errorf("%q: %+v", c.args, res)
		}
	}
}

func TestReadWrite(t *testing.T) {
	r := newRig(t)
	content := make([]byte, 5<<20+300)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	in, out := r.file("in", content), r.file("out", nil)
	r.nvmf("write", ram+"/1", "--data", in, "--start-block", "3", "-f")
	r.nvmf("read", ram, "-d", out, "--slba", "3", "--data-size", "5243180")
	if !bytes.Equal(r.read(out), content) {
		t.Error("what was read is not what was written")
	}
	r.nvmf("compare", ram, "-d", in, "--start-block=3")
	if res := r.try("compare", ram, "-d", in); res.code != exitData || !strings.Contains(res.errOut, ": Compare: ") {
		t.Errorf("a comparison at another place: %+v", res)
	}
	// The rest of the last block is zero, and one block is what is read unless more is asked for.
	if got := r.nvmf("read", ram, "--start-block", "1283"); len(got) != 4096 || got[:300] != string(content[5<<20:]) || strings.Trim(got[300:], "\x00") != "" {
		t.Errorf("the last block has %d bytes", len(got))
	}
	if got := r.nvmf("read", ram, "-c", "2"); len(got) != 3*4096 {
		t.Errorf("--block-count is 0-based: %d bytes", len(got))
	}
	if res := r.with("hello", "write", two, "-N", "3"); res.code != exitOK || !strings.HasPrefix(r.nvmf("read", two+"/3"), "hello\x00") {
		t.Errorf("%+v", res)
	}
	r.contains(r.nvmf("flush", ram), "success")
	r.nvmf("write-zeroes", ram, "--start-block", "3", "-c", "0", "--deac")
	if got := r.nvmf("read", ram, "--start-block", "3"); strings.Trim(got, "\x00") != "" {
		t.Error("not zero after write-zeroes")
	}
	r.contains(r.nvmf("verify", ram, "-c", "99"), "success")
	r.contains(r.nvmf("dsm", ram, "--slbs", "4,6", "--blocks", "1,0x2", "--ad", "--ctx-attrs", "0"), "success")
}

func TestBadIO(t *testing.T) {
	r := newRig(t)
	small := r.file("small", []byte("few"))
	for _, c := range []struct {
		args []string
		code int
		has  string
	}{
		{[]string{"read", ram, "--start-block", "2048"}, exitFail, "beyond the end"},
		{[]string{"read", ram, "--start-block", "0xffffffffffffffff"}, exitUsage, "beyond the end"},
		{[]string{"read", ram, "--data-size", "8k", "-c", "0"}, exitUsage, "more than 1 blocks"},
		{[]string{"write", ram, "-d", small, "-z", "8k"}, exitFail, "expected 8192"},
		{[]string{"write", ram, "-d", r.dir + "/absent"}, exitFail, "no such file"},
		{[]string{"write", two, "-N", "3", "-d", r.file("big", make([]byte, 2<<20))}, exitFail, "beyond the end"},
		{[]string{"write", ram, "-d", r.file("empty", nil)}, exitFail, "the input has 0 bytes"},
		{[]string{"read", two}, exitUsage, "-N one of 3 7"},
		{[]string{"read", two, "-N", "9"}, exitStatus, "try: `nvmf list-ns`"},
		{[]string{"id-ns", two, "-N", "9"}, exitStatus, "no such namespace"},
		{[]string{"dsm", ram, "--slbs", "1,2", "--blocks", "1"}, exitUsage, "as many numbers"},
		{[]string{"dsm", ram, "--slbs", "x", "--blocks", "1"}, exitUsage, "separated by commas"},
		{[]string{"dsm", ram, "--slbs", "99999", "--blocks", "1", "--ad"}, exitStatus, ""},
		{[]string{"set-property", ram, "--offset", "0x4444", "--value", "1"}, exitStatus, ""},
	} {
		if res := r.try(c.args...); res.code != c.code || !strings.Contains(res.errOut, c.has) {
			t.Errorf("%q: %+v", c.args, res)
		}
	}
	// A pipe that does not end is stopped by the end of the namespace.
	if res := r.with(strings.Repeat("x", 1<<20+1), "write", two, "-N", "3"); res.code != exitFail || !strings.Contains(res.errOut, "the input goes on") {
		t.Errorf("%+v", res)
	}
}

func TestConnectErrors(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		args []string
		code int
		has  []string
	}{
		{[]string{"id-ctrl", "rdma://10.0.0.1/nqn.2026-11.io.nvmf:none"}, exitConnect, []string{"connect invalid parameters", "subsystem NQN", "try: `nvmf discover -a 10.0.0.1 -s 4420`"}},
		{[]string{"id-ctrl", "rdma://10.0.0.1/" + onlyNQN}, exitConnect, []string{"does not let this host in", "try: let this host in: `nvmf show-hostnqn`"}},
		{[]string{"id-ctrl", "rdma://10.0.0.1:4999/" + ramNQN}, exitConnect, []string{"nobody listens on that port", "try: the host is there"}},
		{[]string{"id-ctrl", "-a", "10.0.0.1"}, exitUsage, []string{"which subsystem? -n one of " + ramNQN + ", " + twoNQN}},
		{[]string{"id-ctrl", ram, "--provider", "verbs"}, exitUsage, []string{"one of roce"}},
		{[]string{"id-ctrl", ram, "-w", "10.0.0.7"}, exitConnect, []string{"try: --provider roce"}},
		{[]string{"discover"}, exitUsage, []string{"which target?"}},
		{[]string{"id-ctrl", "/dev/nvme0"}, exitUsage, []string{"no device files"}},
		{[]string{"id-ctrl", ram, "-t", "tcp"}, exitUsage, []string{"this host speaks rdma"}},
		{[]string{"id-ns", ram, "-n", "1"}, exitUsage, []string{"the namespace is -N"}},
		{[]string{"id-ns", ram + "/0"}, exitUsage, []string{"namespace 0"}},
		{[]string{"id-ctrl", ram, ram}, exitUsage, []string{"unexpected operand"}},
		{[]string{"id-ctrl", ram, "-o", "yaml"}, exitUsage, []string{"expected normal, json or binary"}},
		{[]string{"list", ram, "-o", "binary"}, exitUsage, []string{"no binary output"}},
		{[]string{"id-ctrl", ram, "-k", "-3"}, exitUsage, []string{"--keep-alive-tmo -3"}},
		{[]string{"id-ctrl", ram, "--tos", "256"}, exitUsage, []string{"at most 255"}},
		{[]string{"id-ctrl", ram, "-I", "5"}, exitUsage, []string{"--hostid"}},
		{[]string{"id-ctrl", ram, "-s", "0"}, exitUsage, []string{"port"}},
		{[]string{"id-ctrl", ram, "-q", "nqn.2026-11.io.nvmf:me"}, exitUsage, []string{"needs a host ID", "try: -q and -I"}},
		{[]string{"get-feature", ram, "-f", "256"}, exitUsage, []string{"at most 255"}},
		{[]string{"get-log", ram, "--log-id", "1", "-l", "3"}, exitUsage, []string{"multiple of 4"}},
		{[]string{"get-log", ram}, exitUsage, []string{"log-id"}},
	} {
		res := r.try(c.args...)
		if res.code != c.code {
			t.Errorf("%q: exit %d: %s", c.args, res.code, res.errOut)
		}
		r.contains(res.errOut, c.has...)
	}
}

func TestUsage(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		args []string
		has  string
	}{
		{[]string{"idctrl"}, `Did you mean "id-ctrl"?`},
		{[]string{"id-ctrl", "--tradr", "x"}, "--traddr"},
		{[]string{"id-ctrl", "-y"}, "unknown option -y"},
		{[]string{"id-ctrl", "--host"}, "may be any of --host-traddr, --hostnqn, --hostid"},
		{[]string{"id-ctrl", "-a"}, "--traddr wants a value"},
		{[]string{"id-ctrl", "--verbose=1"}, "takes no value"},
		{[]string{"read", "-z", "4q"}, "no size"},
		{[]string{"bench", "--runtime", "soon", ram}, "expected seconds"},
	} {
		if res := r.try(c.args...); res.code != exitUsage || !strings.Contains(res.errOut, c.has) {
			t.Errorf("%q: %+v", c.args, res)
		}
	}
	r.contains(r.nvmf("help"), "EXIT CODES", "id-ctrl", "Only here")
	r.contains(r.nvmf(), "EXIT CODES")
	r.contains(r.nvmf("read", "--help"), "--start-block", "Connection", "--traddr value, -a value")
	r.contains(r.nvmf("version"), "nvmf ")
}

// Shells complete verbs and options. Package cli looks at os.Args for that.
func TestCompletion(t *testing.T) {
	r := newRig(t)
	before := os.Args
	defer func() { os.Args = before }()
	for line, want := range map[string]string{"": "id-ctrl", "read --sta": "--start-block"} {
		args := append(strings.Fields(line), completion)
		os.Args = append([]string{"nvmf"}, args...)
		r.contains(r.nvmf(args...), want)
	}
}

func TestArrange(t *testing.T) {
	app := &cli.App{Commands: []*cli.Command{{Name: "do", Flags: []cli.Flag{
		&cli.StringFlag{Name: "text", Aliases: []string{"t"}}, &cli.BoolFlag{Name: "human", Aliases: []string{"H"}},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}}, &cli.IntFlag{Name: "number"},
	}}, {Name: "raw", SkipFlagParsing: true}}}
	for in, want := range map[string]string{
		"do x --text y z":       "do --text=y -- x z",
		"do -Hq x":              "do --human=true --quiet=true -- x",
		"do -Htvalue":           "do --human=true --text=value",
		"do -t=value":           "do --text=value",
		"do --num 3 --te a":     "do --number=3 --text=a",
		"do --text=a=b":         "do --text=a=b",
		"do -t -H x":            "do --text=-H -- x",
		"do -- -H x":            "do -- -H x",
		"do - x":                "do -- - x",
		"do -h":                 "do --help=true",
		"raw -x --whatever y":   "raw -x --whatever y",
		"unknown --whatever -y": "unknown --whatever -y",
		"--help":                "--help",
		"":                      "",
	} {
		got, err := arrange(app, append([]string{"nvmf"}, strings.Fields(in)...))
		if err != nil || strings.Join(got[1:], " ") != want {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
	if got, err := arrange(app, nil); err != nil || got != nil {
		t.Errorf("nothing: %q, %v", got, err)
	}
}

func TestParseDevice(t *testing.T) {
	for in, want := range map[string]device{
		"rdma://h":                     {traddr: "h"},
		"rdma://h:1":                   {traddr: "h", trsvcid: "1"},
		"rdma://[fe80::1%eth0]:4420/n": {traddr: "fe80::1%eth0", trsvcid: "4420", nqn: "n"},
		"rdma://[::1]/n/2":             {traddr: "[::1]", nqn: "n", nsid: 2},
		"rdma://h/nqn.x:a/b":           {traddr: "h", nqn: "nqn.x:a/b"},
		"rdma://h/nqn.x:a/b/77":        {traddr: "h", nqn: "nqn.x:a/b", nsid: 77},
	} {
		if got, err := parseDevice(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	d := device{"fe80::1%eth0", "4420", "nqn.x:a", 3}
	if got, err := parseDevice(d.String()); err != nil || got != d {
		t.Errorf("%s: %+v, %v", d, got, err)
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]uint64{"0": 0, "512": 512, "0x200": 512, "4k": 4096, "4K": 4096, "4KiB": 4096, "4kb": 4000, "1m": 1 << 20, "2G": 2 << 30, "1.5k": 1536, "1t": 1 << 40} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("%s: %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "k", "-1", "4q", "0x", "99999999999999999999"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("%q: %d", in, got)
		}
	}
}

// A signal ends what is running, and the exit code says so.
func TestInterrupted(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errOut bytes.Buffer
	if code := run(ctx, []string{"nvmf", "id-ctrl", ram}, &world{stderr: &errOut, providers: set(r.far)}); code != exitInterrupted || errOut.String() != "nvmf: interrupted\n" {
		t.Errorf("exit %d: %s", code, errOut.String())
	}
}

// Exit codes are of the cause, however deep it lies.
func TestExitCodes(t *testing.T) {
	status := &nvme.StatusError{Status: nvme.InvalidField}
	for _, c := range []struct {
		err  error
		code int
	}{
		{errors.New("x"), exitFail}, {usagef("x"), exitUsage}, {status, exitStatus},
		{errors.Join(errors.New("x"), status), exitStatus}, {initiator.ErrMiscompare, exitData}, {errData, exitData},
		{&initiator.ConnectError{Err: status}, exitConnect}, {addressError(&net.DNSError{}), exitConnect}, {addressError(errors.New("x")), exitUsage}, {fabric.ErrNoDevice, exitConnect}, {initiator.ErrControllerLost, exitLost},
		{initiator.ErrTimeout, exitLost}, {initiator.ErrNoNamespace, exitStatus}, {os.ErrNotExist, exitFail},
	} {
		if got := exitCode(c.err); got != c.code {
			t.Errorf("%v: %d, want %d", c.err, got, c.code)
		}
	}
}
