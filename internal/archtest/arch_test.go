// Package archtest holds the layering of docs/ARCHITECTURE.md as a test: for
// each package of the module, which of the module's packages it may import.
//
// Run it with -count=1: the test cache does not see what go list read.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nvmf-go/nvmf/"

// layers lists, for each package (a trailing /... takes the folders below it),
// what it may import of ours. Tests may import more: test files are not held
// to it, but packages that exist for tests are.
var layers = []struct {
	pkg   string
	allow []string
}{
	{"nvme", nil},
	{"fabric", nil},
	{"fabric/verbs", []string{"fabric"}},
	{"fabric/fabrictest", []string{"fabric", "fabric/soft/..."}},
	{"fabric/soft/...", []string{"fabric", "fabric/soft/..."}},
	{"backend", []string{"nvme"}},
	{"backend/...", []string{"nvme", "backend", "backend/..."}},
	{"target", []string{"nvme", "backend"}},
	{"target/rdma", []string{"nvme", "backend", "target", "fabric"}},
	{"target/rdma/rdmatest", []string{"nvme", "fabric"}},
	{"initiator", []string{"nvme", "fabric"}},
	{"initiator/nbd", []string{"nvme", "initiator"}},
	{"internal/archtest", nil},
	{"internal/captures", nil},
	{"internal/config", []string{"nvme", "fabric", "backend", "backend/...", "target", "target/rdma"}},
	{"internal/...", []string{"nvme", "fabric", "fabric/...", "backend", "backend/...", "target", "target/...", "initiator", "initiator/...", "internal/..."}},
	{"cmd/...", []string{"nvme", "fabric", "fabric/...", "backend", "backend/...", "target", "target/...", "initiator", "initiator/...", "internal/..."}},
	{"lab/...", []string{"nvme", "fabric", "fabric/...", "internal/..."}},
	{"lab", nil},
}

type listed struct {
	ImportPath string
	Imports    []string
	CgoFiles   []string
}

func list(t *testing.T) (pkgs []listed) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,CgoFiles", "-tags", "lab", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func matches(pattern, pkg string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(pkg, base+"/")
	}
	return pattern == pkg
}

func TestLayers(t *testing.T) {
	pkgs := list(t)
	if len(pkgs) < 5 {
		t.Fatalf("go list found %d packages", len(pkgs))
	}
	for _, p := range pkgs {
		name := strings.TrimPrefix(p.ImportPath, module)
		i := slices.IndexFunc(layers, func(l struct {
			pkg   string
			allow []string
		}) bool {
			return matches(l.pkg, name)
		})
		if i < 0 {
			t.Errorf("%s is in no layer: add it to the table and to docs/ARCHITECTURE.md", name)
			continue
		}
		for _, imp := range p.Imports {
			of, ours := strings.CutPrefix(imp, module)
			if ours && !slices.ContainsFunc(layers[i].allow, func(a string) bool { return matches(a, of) }) {
				t.Errorf("%s imports %s, which its layer does not allow", name, of)
			}
		}
		if len(p.CgoFiles) > 0 && name != "fabric/verbs" {
			t.Errorf("%s uses cgo: only fabric/verbs may", name)
		}
	}
}
