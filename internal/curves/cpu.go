package curves

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processCPU is the processor time that a process has used, in nanoseconds: the
// clock of that process (clock_getcpuclockid(3)), which is finer than the ticks
// of /proc.
func processCPU(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of linux/posix-timers.h
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return 0, fmt.Errorf("processor time of %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// CPUs are the processors that this program may use.
func CPUs() (list []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("processors: %w", err)
	}
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	return list, nil
}

// startOn starts a command that may use only those processors, nil for all. Go
// makes GOMAXPROCS of them.
func startOn(cpus []int, cmd *exec.Cmd) error {
	if cpus == nil {
		return cmd.Start()
	}
	var all, some unix.CPUSet
	for _, c := range cpus {
		some.Set(c)
	}
	runtime.LockOSThread() // a child inherits the thread's
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	if err := unix.SchedSetaffinity(0, &some); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("processors %v: %w", cpus, err)
	}
	err := cmd.Start()
	if back := unix.SchedSetaffinity(0, &all); back != nil {
		if err == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		return fmt.Errorf("processors of this program: %w", back) // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// Machine says on what was measured, in a line.
func Machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		model = cpuModel(string(b))
	}
	var u unix.Utsname
	kernel := "unknown kernel"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%s, %d processors, %s, %s", model, runtime.NumCPU(), kernel, runtime.Version())
}

func cpuModel(info string) string {
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}
