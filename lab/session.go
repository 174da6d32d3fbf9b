package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// session runs scenarios one after the other, several in a boot. A scenario
// that leaves the guest unusable costs the next one a new boot.
type session struct {
	ctx     context.Context // ends the guest and whatever waits for it
	prep    prepared
	dir     string // lab/out/TIME-NAME
	routine []*regexp.Regexp
	out     io.Writer // what the scenarios say

	vm    *vm // nil: the next scenario boots
	boots int
	asked int // scenarios this boot was given
}

// result is how a scenario ended.
type result struct {
	scenario
	faults []string // none: it passed
	took   time.Duration
	dir    string // its logs
}

// cleanupTime bounds what guest/scenarios.sh does after a script.
const cleanupTime = 4 * time.Minute

// newSession prepares everything the scenarios need.
func newSession(ctx context.Context, name string, scenarios []scenario, out io.Writer) (*session, error) {
	prep, err := prepare()
	if err != nil {
		return nil, err
	}
	dir, err := newRun(prep.out, name)
	if err != nil {
		return nil, err
	}
	if err := prep.freeze(dir); err != nil {
		return nil, err
	}
	if err := prep.provide(scenarios, filepath.Join(dir, "bin")); err != nil {
		return nil, err
	}
	routine, err := loadPatterns(filepath.Join(prep.lab, "kernel-lines.txt"))
	if err != nil {
		return nil, err
	}
	latest := filepath.Join(prep.out, "latest")
	os.Remove(latest)
	if err := os.Symlink(dir, latest); err != nil {
		return nil, err
	}
	return &session{ctx: ctx, prep: prep, dir: dir, routine: routine, out: out}, nil
}

// freeze gives the run a copy of the lab's scripts. The guest caches what it
// has read of the machine's files: one that changes under it would be half old
// and half new. It also shows later what was run.
func (p *prepared) freeze(dir string) error {
	frozen := filepath.Join(dir, "lab")
	if err := os.Mkdir(frozen, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"guest", "scenarios", "kernel-lines.txt"} {
		if err := runAll(exec.Command("cp", "-r", filepath.Join(p.lab, name), frozen)); err != nil {
			return err
		}
	}
	p.lab = frozen
	return nil
}

// provide makes the programs that the scenarios need, in the folder bin.
func (p prepared) provide(scenarios []scenario, bin string) error {
	need := func(word string) bool {
		return slices.ContainsFunc(scenarios, func(s scenario) bool { return slices.Contains(s.needs, word) })
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	if need("siw") || need("siw_wire") || need("soft_iwarp") || need("nvmf_iwarp") {
		if err := prepareModule(p.paths, p.kernel, siw); err != nil {
			return err
		}
	}
	var cmds []*exec.Cmd
	if need("raw") {
		cmds = append(cmds, exec.Command("go", "test", "-c", "-tags", "lab", "-o", filepath.Join(bin, "raw.test"), "./lab/raw"))
	}
	if other := os.Getenv("LAB_TARGET"); other != "" {
		cmds = append(cmds, exec.Command("cp", other, filepath.Join(bin, "nvmf-target")))
	} else if need("target") || need("nvmf") {
		cmds = append(cmds, exec.Command("go", "build", "-o", bin+"/", "./cmd/..."))
	}
	for _, c := range cmds {
		c.Dir = p.repo
	}
	return runAll(cmds...)
}

// run runs one scenario, booting a guest when there is none.
func (s *session) run(sc scenario) result {
	r := result{scenario: sc, dir: filepath.Join(s.dir, sc.name)}
	if s.vm == nil {
		if err := s.boot(); err != nil {
			r.faults = append(r.faults, err.Error())
			return r
		}
	}
	start := time.Now()
	r.faults = s.perform(sc)
	r.took = time.Since(start)
	return r
}

// boot starts a guest and waits until it takes scenarios.
func (s *session) boot() error {
	s.boots++
	s.asked = 0
	dir := filepath.Join(s.dir, fmt.Sprintf("boot%d", s.boots))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	v, err := startVM(s.ctx, s.prep.paths, s.prep.kernel, vmConfig{dir: dir, mode: "scenarios", timeout: 12 * time.Hour,
		env: map[string]string{"BIN": filepath.Join(s.dir, "bin"), "PATIENCE": strconv.Itoa(int(patience()))}, raw: passedEnv(os.Environ()),
	})
	if err != nil {
		return err
	}
	s.vm = v
	if err := v.waitReady(s.ctx); err != nil {
		s.stop(0)
		return err
	}
	return nil
}

// perform gives the scenario to the guest and judges what came of it.
func (s *session) perform(sc scenario) (faults []string) {
	v := s.vm
	s.asked++
	order := fmt.Sprintf("%s %s %s\n", sc.name, seconds(sc.timeout), strings.Join(sc.needs, " "))
	if err := writeAtomic(v.file(fmt.Sprintf("next.%d", s.asked)), order); err != nil {
		return []string{err.Error()}
	}
	verdict, err := s.watch(sc)
	if err != nil {
		faults = append(faults, err.Error())
		faults = append(faults, consoleTail(v.file("console.log"))...)
	}
	if verdict != "" && verdict != "0 clean" {
		faults = append(faults, describe(verdict, sc.timeout))
	}
	if err != nil || !strings.HasSuffix(verdict, " clean") {
		s.stop(time.Second)
	}
	folder := filepath.Join(s.dir, sc.name)
	if err := os.Rename(v.file(sc.name), folder); err != nil {
		return append(faults, err.Error())
	}
	kmsg, err := kernelLog(folder, v.file("dmesg.all"), sc.name)
	if err != nil {
		return append(faults, fmt.Sprintf("the guest did not give the kernel's lines: %v", err))
	}
	return append(faults, judgeKernel(kernelLines(kmsg), slices.Concat(s.routine, sc.may), sc.must)...)
}

// kernelLog is what the kernel said during a scenario: as the guest cut it out
// at the end, or else, when it did not live to the end, from all of the boot.
func kernelLog(folder, all, name string) (string, error) {
	if b, err := os.ReadFile(filepath.Join(folder, "dmesg")); err == nil {
		return string(b), nil
	}
	b, err := os.ReadFile(all)
	if err != nil {
		return "", err
	}
	_, after, found := strings.Cut(string(b), "lab: begin "+name+"\n")
	if !found {
		return "", fmt.Errorf("%s has no line \"lab: begin %s\"", all, name)
	}
	return after, nil
}

// watch copies the scenario's output until its verdict is there.
func (s *session) watch(sc scenario) (string, error) {
	out := &tail{path: s.vm.file(filepath.Join(sc.name, "out")), w: s.out}
	verdict := filepath.Join(sc.name, "verdict")
	stop := time.Now().Add(sc.timeout + cleanupTime)
	for {
		text, err := s.vm.waitFile(s.ctx, verdict, 200*time.Millisecond)
		out.copy()
		if err == nil {
			return text, nil
		}
		select {
		case <-s.vm.done:
			return "", err
		case <-s.ctx.Done():
			return "", s.ctx.Err()
		default:
		}
		if time.Now().After(stop) {
			return "", fmt.Errorf("no verdict in %s: the guest hangs", sc.timeout+cleanupTime)
		}
	}
}

// describe puts a verdict ("exit-code clean" or "exit-code left ...") into words.
func describe(verdict string, timeout time.Duration) string {
	code, rest, _ := strings.Cut(verdict, " ")
	var words []string
	switch code {
	case "0":
	case "124", "137":
		words = append(words, fmt.Sprintf("the script did not end in %s", timeout))
	default:
		words = append(words, "the script failed: exit code "+code)
	}
	if rest != "clean" {
		words = append(words, rest)
	}
	return strings.Join(words, "; ")
}

// consoleTail is the end of the guest's console: where a panic shows.
func consoleTail(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return append([]string{"the end of " + path + ":"}, lines[max(0, len(lines)-15):]...)
}

// stop ends the boot.
func (s *session) stop(grace time.Duration) {
	if s.vm == nil {
		return
	}
	// A guest that still takes orders powers itself off.
	if err := writeAtomic(s.vm.file(fmt.Sprintf("next.%d", s.asked+1)), "end\n"); err != nil {
		grace = 0
	}
	s.vm.stop(grace)
	s.vm = nil
}

// close ends the session. The programs go; they can be built again.
func (s *session) close() {
	s.stop(15 * time.Second)
	os.RemoveAll(filepath.Join(s.dir, "bin"))
}

// writeAtomic writes a file that a reader sees either not at all or whole.
func writeAtomic(path, text string) error {
	if err := os.WriteFile(path+".part", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}
