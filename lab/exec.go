package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// prepared is what a boot needs: the folders and the kernel.
type prepared struct {
	paths
	kernel kernel
}

// prepare installs, fetches and unpacks whatever is missing.
func prepare() (prepared, error) {
	p, err := findPaths()
	if err != nil {
		return prepared{}, err
	}
	if err := installDeps(); err != nil {
		return prepared{}, err
	}
	k, err := prepareKernel(p)
	return prepared{p, k}, err
}

// keptRuns is how many folders of earlier runs stay in lab/out.
const keptRuns = 40

// newRun makes the folder of a run: lab/out/TIME-NAME.
func newRun(out, name string) (string, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	old, err := filepath.Glob(filepath.Join(out, "2*"))
	if err != nil {
		return "", err
	}
	for i := 0; i < len(old)-keptRuns; i++ {
		os.RemoveAll(old[i])
	}
	dir, err := os.MkdirTemp(out, time.Now().Format("20060102-150405-")+name+"-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// execInGuest runs one program in a guest of its own and returns its exit code.
func execInGuest(ctx context.Context, args []string, timeout time.Duration) (int, error) {
	prep, err := prepare()
	if err != nil {
		return 0, err
	}
	if path, err := exec.LookPath(args[0]); err == nil {
		args[0], _ = filepath.Abs(path)
	}
	cwd, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	dir, err := newRun(prep.out, "exec")
	if err != nil {
		return 0, err
	}
	v, err := startVM(ctx, prep.paths, prep.kernel, vmConfig{
		dir: dir, mode: "exec", timeout: bootTimeout + timeout,
		env: map[string]string{"EXEC_DIR": cwd, "RUN_TIMEOUT": seconds(timeout)},
		raw: "EXEC_ARGS=(" + quoteAll(args) + ")\n" + passedEnv(os.Environ()),
	})
	if err != nil {
		return 0, err
	}
	defer v.stop(10 * time.Second)
	if err := v.waitReady(ctx); err != nil {
		return 0, err
	}
	code, err := v.follow(ctx, timeout+20*time.Second)
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "lab: exit code %d; the kernel's messages: %s\n", code, v.file("dmesg"))
	return code, nil
}

// follow copies the program's output until its exit code is there.
func (v *vm) follow(ctx context.Context, timeout time.Duration) (int, error) {
	tails := []*tail{{path: v.file("stdout"), w: os.Stdout}, {path: v.file("stderr"), w: os.Stderr}}
	stop := time.Now().Add(timeout)
	for {
		rc, err := v.waitFile(ctx, "rc", 200*time.Millisecond)
		for _, t := range tails {
			t.copy()
		}
		if err == nil {
			return strconv.Atoi(rc)
		}
		select {
		case <-v.done:
			return 0, err
		case <-ctx.Done():
			return 0, err
		default:
		}
		if time.Now().After(stop) {
			return 0, fmt.Errorf("no exit code in %s: see %s", timeout, v.dir)
		}
	}
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellQuote(w)
	}
	return strings.Join(quoted, " ")
}

// passedEnv picks the variables a Go test or a daemon may want from the
// runner's environment.
func passedEnv(environ []string) string {
	var b strings.Builder
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "NVMF_") || strings.HasPrefix(name, "LAB_") || strings.HasPrefix(name, "GO") {
			fmt.Fprintf(&b, "export %s=%s\n", name, shellQuote(value))
		}
	}
	return b.String()
}

// shellInGuest gives the terminal to a shell in the guest until it ends.
func shellInGuest(ctx context.Context) error {
	prep, err := prepare()
	if err != nil {
		return err
	}
	dir, err := newRun(prep.out, "shell")
	if err != nil {
		return err
	}
	v, err := startVM(ctx, prep.paths, prep.kernel, vmConfig{dir: dir, mode: "shell", timeout: 24 * time.Hour, terminal: true})
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "lab: booting; the shell's end powers the guest off\n")
	select {
	case <-v.done:
	case <-ctx.Done():
	}
	v.stop(0)
	return nil
}
