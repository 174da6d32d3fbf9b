package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/internal/version"
)

// The test's own program is nvmf-target when it is called so.
func TestMain(m *testing.M) {
	if os.Args[0] == "nvmf-target" {
		main()
	}
	os.Exit(m.Run())
}

// nvmfTarget runs a command line in here.
func nvmfTarget(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(append([]string{"nvmf-target"}, args...), &out, &err)
	return code, out.String(), err.String()
}

func TestCommandLine(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("version: 1\nlisteners:\n  - {name: a, adress: 10.0.0.1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string // regular expressions
	}{
		{"", 0, `(?s)USAGE.*serve .*check .*status .*reload .*rdma .*version `, `^$`},
		{"help", 0, `(?s)USAGE.*serve `, `^$`},
		{"--help", 0, `(?s)USAGE.*serve `, `^$`},
		{"help serve", 0, `(?s)serve \[command options\] FILE.*SIGTERM.*SIGHUP`, `^$`},
		{"serve --help", 0, `(?s)serve \[command options\] FILE.*SIGTERM.*SIGHUP`, `^$`},
		{"check -h", 0, `FILE\.\.\.`, `^$`},
		{"status -h", 0, `(?s)--socket.*/run/nvmf-target.sock.*--output.*--interval`, `^$`},
		{"reload -h", 0, `--socket`, `^$`},
		{"version", 0, `^nvmf-target ` + regexp.QuoteMeta(version.String()) + `\n$`, `^$`},

		{"chekc", 2, `^$`, `^nvmf-target: unknown command "chekc"\. Did you mean "check"\?\n$`},
		{"serve", 2, `^$`, `^nvmf-target: serve: expected one configuration file, got 0 arguments\n$`},
		{"serve a b", 2, `^$`, `^nvmf-target: serve: expected one configuration file, got 2 arguments\n$`},
		{"serve --strict a", 2, `^$`, `^nvmf-target: flag provided but not defined: -strict\n$`},
		{"check", 2, `^$`, `^nvmf-target: check: expected a configuration file\n$`},
		{"status now", 2, `^$`, `^nvmf-target: status: unexpected argument "now"\n$`},
		{"status -o xml", 2, `^$`, `^nvmf-target: status: output "xml": expected table or json\n$`},
		{"status -i often", 2, `^$`, `^nvmf-target: invalid value "often" for flag -i: parse error\n$`},
		{"reload x.yaml", 2, `^$`, `^nvmf-target: reload: unexpected argument "x.yaml"\n$`},
		{"version 2", 2, `^$`, `^nvmf-target: version: unexpected argument "2"\n$`},

		{"rdma", 0, `(?s)list .*smoke `, `^$`},
		{"rdma lst", 2, `^$`, `^nvmf-target: unknown command "lst"\. Did you mean "list"\?\n$`},
		{"rdma list -h", 0, `(?s)--provider.*iwarp, roce, verbs.*--output`, `^$`},
		{"rdma list -p iwarp", 0, `(?s)iwarp-lo .*127\.0\.0\.1.*QP DEPTH`, `^$`},
		{"rdma list -p iwarp -o json", 0, `(?s)"name": "iwarp-lo".*"qp_depth"`, `^$`},
		{"rdma list -p tcp", 2, `^$`, `^nvmf-target: list: provider "tcp": expected iwarp, roce, verbs or auto\n$`},
		{"rdma list -o xml", 2, `^$`, `^nvmf-target: list: output "xml": expected text or json\n$`},
		{"rdma list x", 2, `^$`, `^nvmf-target: list: unexpected argument "x"\n$`},
		{"rdma smoke -h", 0, `(?s)\[DEVICE\].*--provider.*--address.*--timeout`, `^$`},
		{"rdma smoke -p iwarp", 0, `(?s)^ok .*open the device.*iwarp-lo.*ok .*RDMA READ.*take down.*passed: \d+ steps passed, \d+ skipped, 0 failed`, `^$`},
		{"rdma smoke -a 127.0.0.1 -o json iwarp-lo", 0, `(?s)^\{.*"address": "127\.0\.0\.1".*"steps"`, `^$`},
		{"rdma smoke -a 10.255.0.1 iwarp-lo", 1, `(?s)^FAIL.*FAILED: 0 steps`, `address is not on any RDMA device: iwarp-lo has \[127\.0\.0\.1\], not 10\.255\.0\.1\n$`},
		{"rdma smoke nosuch", 1, `^$`, "no provider has a device \"nosuch\": `nvmf-target rdma list` names them\n$"},
		{"rdma smoke -a here", 2, `^$`, `address "here": expected an IPv4 or IPv6 address\n$`},
		{"rdma smoke a b", 2, `^$`, `smoke: expected one device, got 2 arguments\n$`},

		{"serve /none.yaml", 1, `^$`, `^nvmf-target: open /none.yaml: no such file or directory\n$`},
		{"serve " + bad, 1, `^$`, `^nvmf-target: \S+/bad.yaml:3:\d+: listeners\[0\].adress: unknown key; did you mean address\?\n\S+/bad.yaml:3:\d+: listeners\[0\].address: missing: an IPv4 or IPv6 address\n$`},
		{"check ../../configs/quickstart.yaml", 0, `^\S+: good: 1 listeners, 1 backends, 1 subsystems\n$`, `^$`},
		{"check ../../configs/quickstart.yaml " + bad + " /none.yaml", 1, `^\S+quickstart.yaml: good: .*\n$`,
			`^\S+:3:\d+: .*\n\S+:3:\d+: .*\nopen /none.yaml: .*\nnvmf-target: 2 of 3 files have mistakes\n$`},
		{"status -s /none.sock", 1, `^$`, `^nvmf-target: no daemon answers on /none.sock: dial unix /none.sock: connect: no such file or directory\n$`},
		{"reload -s /none.sock", 1, `^$`, `^nvmf-target: no daemon answers on /none.sock: `},
	} {
		code, stdout, stderr := nvmfTarget(strings.Fields(c.args)...)
		if code != c.code || !regexp.MustCompile(c.stdout).MatchString(stdout) || !regexp.MustCompile(c.stderr).MatchString(stderr) {
			t.Errorf("nvmf-target %s: exit code %d\nstdout %q\nstderr %q", c.args, code, stdout, stderr)
		}
	}
}
