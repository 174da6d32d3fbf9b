package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// vm is one boot of the guest. Its folder is shared with the guest read-write
// (as /run/lab/share there); all that passes between the two is files in it.
type vm struct {
	dir  string // the run's folder
	cmd  *exec.Cmd
	done chan struct{} // closed when QEMU has ended
	err  error         // how; valid after done
}

// bootTimeout bounds the time from QEMU's start to the first command in the
// guest. It is 7 s on two idle cores.
const bootTimeout = 180 * time.Second

// vmConfig says what to boot.
type vmConfig struct {
	dir      string
	mode     string            // of guest/main.sh: exec, scenarios, shell
	env      map[string]string // further variables of boot.env
	raw      string            // further lines of it, as they stand
	timeout  time.Duration     // of the whole boot: the guest ends itself then
	terminal bool              // the second serial port is the runner's terminal
}

// scratchSize is the size in bytes of the guest's /scratch, a sparse file.
const scratchSize = 8 << 30

// startVM boots a guest and returns as soon as QEMU runs.
func startVM(ctx context.Context, p paths, k kernel, c vmConfig) (*vm, error) {
	initrd := filepath.Join(c.dir, "initrd")
	if err := k.writeInitrd(initrd, p); err != nil {
		return nil, err
	}
	if err := writeScratch(filepath.Join(c.dir, "scratch.img")); err != nil {
		return nil, err
	}
	if err := writeEnv(filepath.Join(c.dir, "boot.env"), p, k, c); err != nil {
		return nil, err
	}
	v := &vm{dir: c.dir, done: make(chan struct{})}
	v.cmd = exec.CommandContext(ctx, "qemu-system-x86_64", qemuArgs(p, k, c)...)
	v.cmd.WaitDelay = 5 * time.Second
	log, err := os.Create(filepath.Join(c.dir, "qemu.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	v.cmd.Stdout, v.cmd.Stderr = log, log
	if c.terminal {
		v.cmd.Stdin, v.cmd.Stdout = os.Stdin, os.Stdout
	}
	started := make(chan error)
	go func() {
		// QEMU dies with this thread: no runner, no guest.
		runtime.LockOSThread()
		v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := v.cmd.Start()
		started <- err
		if err == nil {
			v.err = v.cmd.Wait()
			close(v.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("qemu: %w", err)
	}
	return v, nil
}

// qemuArgs is QEMU's command line. TCG is the default because a stock kernel
// does not start under every nested KVM; LAB_ACCEL=kvm is for machines where
// it does.
func qemuArgs(p paths, k kernel, c vmConfig) []string {
	accel, cpu := "tcg,thread=multi", "max"
	if a := os.Getenv("LAB_ACCEL"); a != "" {
		accel, cpu = a, "host"
	}
	cmdline := []string{
		"console=ttyS0", "panic=-1", "oops=panic", "loglevel=5", "log_buf_len=8M", "printk.devkmsg=on",
		"mitigations=off", "tsc=reliable", "no_timer_check", "audit=0", "apparmor=0",
		"lab.main=" + filepath.Join(p.lab, "guest", "main.sh"),
		"lab.deadline=" + strconv.Itoa(int(c.timeout.Seconds())),
	}
	args := []string{
		"-accel", accel, "-cpu", cpu, "-smp", envOr("LAB_SMP", "2"), "-m", envOr("LAB_MEMORY", "2048"),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", k.image(), "-initrd", filepath.Join(c.dir, "initrd"), "-append", strings.Join(cmdline, " "),
		"-serial", "file:" + filepath.Join(c.dir, "console.log"),
		"-virtfs", "local,path=/,mount_tag=machine,security_model=none,readonly=on,multidevs=remap",
		"-virtfs", "local,path=" + c.dir + ",mount_tag=share,security_model=none",
		"-drive", "file=" + filepath.Join(c.dir, "scratch.img") + ",if=virtio,format=raw,cache=unsafe,aio=threads,discard=unmap",
		"-device", "virtio-rng-pci",
	}
	if c.terminal {
		args = append(args, "-chardev", "stdio,id=tty,signal=off", "-serial", "chardev:tty")
	}
	return args
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// writeScratch makes a sparse ext4 image.
func writeScratch(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(scratchSize), f.Close()); err != nil {
		return err
	}
	out, err := exec.Command(sbin("mkfs.ext4"), "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-L", "scratch", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.ext4 %s: %w: %s", path, err, out)
	}
	return nil
}

// writeEnv writes the variables guest/main.sh starts from.
func writeEnv(path string, p paths, k kernel, c vmConfig) error {
	vars := map[string]string{"MODE": c.mode, "REPO": p.repo, "LAB": p.lab, "MODULES": k.modules()}
	for name, value := range c.env {
		vars[name] = value
	}
	var b []byte
	for name, value := range vars {
		b = fmt.Appendf(b, "%s=%s\n", name, shellQuote(value))
	}
	return os.WriteFile(path, append(b, c.raw...), 0o644)
}

// shellQuote makes s one word of a shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// waitFile waits until the guest has written the file name and returns what it
// says. It fails when the guest ends first or the time is over.
func (v *vm) waitFile(ctx context.Context, name string, timeout time.Duration) (string, error) {
	deadline := time.After(timeout)
	for {
		if b, err := os.ReadFile(filepath.Join(v.dir, name)); err == nil && len(b) > 0 {
			return strings.TrimSpace(string(b)), nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-deadline:
			return "", fmt.Errorf("no %s from the guest in %s: see %s", name, timeout, v.file("console.log"))
		case <-v.done:
			if b, err := os.ReadFile(filepath.Join(v.dir, name)); err == nil && len(b) > 0 {
				return strings.TrimSpace(string(b)), nil
			}
			return "", fmt.Errorf("the guest ended before it wrote %s (QEMU: %w): see %s", name, v.ended(), v.file("console.log"))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ended is how QEMU ended.
func (v *vm) ended() error {
	if v.err == nil {
		return errors.New("in order")
	}
	return v.err
}

func (v *vm) file(name string) string { return filepath.Join(v.dir, name) }

// waitReady waits for the guest's set-up.
func (v *vm) waitReady(ctx context.Context) error {
	answer, err := v.waitFile(ctx, "ready", bootTimeout)
	if err != nil {
		return err
	}
	if answer == "failed" {
		log, _ := os.ReadFile(v.file("setup.log"))
		return fmt.Errorf("the guest's set-up failed: %s", log)
	}
	return nil
}

// stop gives the guest time to power off and then ends QEMU.
func (v *vm) stop(grace time.Duration) {
	select {
	case <-v.done:
	case <-time.After(grace):
		_ = v.cmd.Process.Kill() // it may have ended
		<-v.done
	}
	os.Remove(v.file("initrd"))
	os.Remove(v.file("scratch.img"))
}

// tail copies what is appended to a file of the run's folder to w.
type tail struct {
	path string
	w    io.Writer
	off  int64
}

func (t *tail) copy() {
	f, err := os.Open(t.path)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := f.Seek(t.off, io.SeekStart); err != nil {
		return
	}
	n, _ := io.Copy(t.w, f)
	t.off += n
}
