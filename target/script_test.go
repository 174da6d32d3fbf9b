package target

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

// Interaction scripts: testdata/*.txt hold commands, each group of them
// followed by ---- and the trace of what happened, up to an empty line. With
// -rewrite the traces are written anew: look at the difference before you
// commit it, it is what hosts will see. Time in a script is virtual.
//
// The commands are in scriptCommands, one function each.
var rewrite = flag.Bool("rewrite", false, "write the traces of testdata/*.txt anew")

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runScript(t, file) })
		})
	}
}

func runScript(t *testing.T, file string) {
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{rig: newRig(t, Config{})}
	var out strings.Builder
	for _, block := range parseScript(string(src)) {
		out.WriteString(block.text)
		if len(block.commands) == 0 {
			continue
		}
		got := s.run(block.commands)
		if !*rewrite && got != block.trace {
			t.Errorf("%s:%d:\n%s\ngot:\n%s\nwant:\n%s", file, block.line, strings.Join(block.commands, "\n"), got, block.trace)
		}
		fmt.Fprintf(&out, "----\n%s\n", got)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// scriptBlock is a group of commands with its trace.
type scriptBlock struct {
	text     string // all that is not trace: comments and commands
	commands []string
	trace    string
	line     int
}

func parseScript(src string) (blocks []scriptBlock) {
	var b scriptBlock
	inTrace := false
	for i, line := range strings.Split(strings.TrimRight(src, "\n")+"\n", "\n") {
		switch {
		case inTrace && line == "":
			blocks = append(blocks, b)
			b, inTrace = scriptBlock{}, false
		case inTrace:
			b.trace += line + "\n"
		case line == "----":
			inTrace = true
		default:
			b.text += line + "\n"
			if line != "" && line[0] != '#' {
				if len(b.commands) == 0 {
					b.line = i + 1
				}
				b.commands = append(b.commands, line)
			}
		}
	}
	b.text = strings.TrimRight(b.text, "\n")
	return append(blocks, b)
}

// script is the state of a running script.
type script struct {
	*rig
	out strings.Builder
}

// scriptArgs are the arguments of a command: words, and key=value pairs.
type scriptArgs struct {
	s     *script
	words []string
	named map[string]string
	used  map[string]bool
}

func (s *script) run(commands []string) string {
	s.out.Reset()
	for _, line := range commands {
		fields := strings.Fields(line)
		fn := scriptCommands[fields[0]]
		if fn == nil {
			s.tb.Fatalf("no such command: %s", line)
		}
		a := scriptArgs{s: s, named: map[string]string{}, used: map[string]bool{}}
		for _, f := range fields[1:] {
			if k, v, ok := strings.Cut(f, "="); ok && strings.Trim(k, "abcdefghijklmnopqrstuvwxyz0123456789") == "" {
				a.named[k] = v
			} else {
				a.words = append(a.words, f)
			}
		}
		fn(s, &a)
		for k := range a.named {
			if !a.used[k] {
				s.tb.Fatalf("%s: argument %s means nothing", line, k)
			}
		}
		s.step()
		s.flush()
	}
	return s.out.String()
}

// flush writes what the links have noted.
func (s *script) flush() {
	for _, name := range s.order {
		for _, line := range s.links[name].take() {
			s.printf("%s\n", line)
		}
	}
}

func (s *script) printf(format string, a ...any) { fmt.Fprintf(&s.out, format, a...) }

// result prints an error, or nothing.
func (s *script) result(err error) {
	if err != nil {
		s.printf("error: %v\n", err)
	}
}

func (a *scriptArgs) word(i int) string {
	if i >= len(a.words) {
		a.s.tb.Fatalf("argument %d is missing after %v", i, a.words)
	}
	return a.words[i]
}

// has says whether a bare word is among the arguments.
func (a *scriptArgs) has(w string) bool {
	for _, x := range a.words {
		if x == w {
			return true
		}
	}
	return false
}

func (a *scriptArgs) str(k, dflt string) string {
	a.used[k] = true
	if v, ok := a.named[k]; ok {
		return v
	}
	return dflt
}

func (a *scriptArgs) num(k string, dflt uint64) uint64 {
	v := a.str(k, "")
	if v == "" {
		return dflt
	}
	return a.parse(v)
}

func (a *scriptArgs) parse(v string) uint64 {
	n, err := strconv.ParseUint(v, 0, 64)
	if err != nil {
		a.s.tb.Fatal(err)
	}
	return n
}

// link is the link that the first word names.
func (a *scriptArgs) link() *fakeLink {
	l := a.s.links[a.word(0)]
	if l == nil {
		a.s.tb.Fatalf("no queue %q", a.word(0))
	}
	return l
}
