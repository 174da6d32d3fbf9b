package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/internal/curves"
)

const benchText = `goos: linux
pkg: github.com/nvmf-go/nvmf/target/rdma
cpu: a machine
BenchmarkIO/read-4K/depth-32-2   33582   901.1 ns/op   339.5 target-ns/op   0 B/op
BenchmarkIO/read-4K/depth-32-2   33582   700 ns/op   300 target-ns/op   0 B/op
BenchmarkIO/read-4K/depth-32-2   33582   1234567 ns/op   900 target-ns/op   0 B/op
BenchmarkIO/read-4K/depth-1 3511 10214 ns/op
BenchmarkBroken-2
PASS
pkg: github.com/nvmf-go/nvmf/fabric/soft/roce
BenchmarkIO/read-4K/depth-32-2   1   5 ns/op
`

const curveText = "# m\nreads [1],series,IOPS [1/s],p50 [us]\n32,roce,905123,12.345\n32,\"roce, a core each\",7,\n"

func testResults(t *testing.T) *results {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "depth.csv"), []byte(curveText), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.csv"), []byte("rubbish"), 0o644); err != nil {
		t.Fatal(err)
	}
	return &results{bench: readBench(benchText), dir: dir, tables: map[string]*curves.Table{}}
}

func TestValue(t *testing.T) {
	r := testResults(t)
	for spec, want := range map[string]string{
		"bench; target/rdma; BenchmarkIO/read-4K/depth-32; target-ns/op": "340",
		"bench; target/rdma; BenchmarkIO/read-4K/depth-32; ns/op":        "901",
		"bench; fabric/soft/roce; BenchmarkIO/read-4K/depth-32; ns/op":   "5",
		"bench;target/rdma;BenchmarkIO/read-4K/depth-1;ns/op":            "10,200",
		"bench; target/rdma; BenchmarkIO/read-4K; ns/op":                 noBench,
		"bench; target/rdma; BenchmarkIO/read-4K/depth-32; host-ns/op":   noBench,
		"bench; target; BenchmarkIO/read-4K/depth-32; ns/op":             noBench,
		"curve; depth; roce; 32; IOPS":                                   "905,000",
		"curve; depth; roce; 32; p50":                                    "12.3",
		"curve; depth; roce, a core each; 32; IOPS":                      "7",
		"curve; depth; roce, a core each; 32; p50":                       noCurve,
		"curve; depth; roce; 64; IOPS":                                   noCurve,
		"curve; none; roce; 32; IOPS":                                    noCurve,
	} {
		for range 2 { // the second time out of memory
			if got, err := r.value(spec); err != nil || got != want {
				t.Errorf("%s: %q %v, want %q", spec, got, err, want)
			}
		}
	}
	for _, bad := range []string{"", "bench; a; b", "curve; depth; roce; many; IOPS", "curve; depth; roce; 32; colour", "curve; bad; roce; 32; IOPS", "other; a; b; c"} {
		if got, err := r.value(bad); err == nil {
			t.Errorf("%s: %q", bad, got)
		}
	}
}

func TestFill(t *testing.T) {
	const doc = "| a | <!-- figure: curve; depth; roce; 32; p50 -->run `make curves`<!-- /figure --> us |\n" +
		"| b | <!-- figure: bench; x; BenchmarkY; ns/op -->5<!-- /figure --> |\n<!-- figures: by hand -->\n"
	const want = "| a | <!-- figure: curve; depth; roce; 32; p50 -->12.3<!-- /figure --> us |\n" +
		"| b | <!-- figure: bench; x; BenchmarkY; ns/op -->run `make bench`<!-- /figure --> |\n<!-- figures: by hand -->\n"
	r := testResults(t)
	got, missing, err := r.fill(doc)
	if err != nil || got != want || missing != 1 {
		t.Errorf("%v, %d missing:\n%s", err, missing, got)
	}
	if again, _, err := r.fill(got); err != nil || again != got {
		t.Errorf("a second time: %v\n%s", err, again)
	}
	for _, bad := range []string{"<!-- figure: curve; depth; roce; 32; p50 -->", "<!-- figure: nonsense -->x<!-- /figure -->", "<!-- figure: bench; a;\nb; c -->x<!-- /figure -->"} {
		if _, _, err := r.fill(bad); err == nil {
			t.Errorf("taken: %s", bad)
		}
	}
}

// What stands in the document itself can be filled in.
func TestDocument(t *testing.T) {
	const perf = "../../../docs/PERFORMANCE.md"
	doc, err := os.ReadFile(perf)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "PERFORMANCE.md")
	if err := os.WriteFile(copied, doc, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"--bench", "../../../docs/perf/bench.txt", "--curves", "../../../docs/perf", copied}, io.Discard); err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(doc), "<!-- figure: ") {
		t.Error("no figure")
	}
}

func TestRunErrors(t *testing.T) {
	var said bytes.Buffer
	for _, args := range [][]string{{}, {"a", "b"}, {"--no-such"}, {"/nowhere/doc.md"}, {"--bench", t.TempDir(), "x"}} {
		if err := run(args, &said); err == nil {
			t.Errorf("%v: taken", args)
		}
	}
}
