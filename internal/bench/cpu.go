package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is processor time.
type CPU struct{ User, System time.Duration }

// Total is both.
func (c CPU) Total() time.Duration { return c.User + c.System }

func (c CPU) sub(d CPU) CPU { return CPU{c.User - d.User, c.System - d.System} }

// ownCPU is the time that this program has used.
func ownCPU() CPU {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return CPU{}
	}
	return CPU{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}
}

// ticksPerSecond is USER_HZ, which Linux keeps at 100 for all programs.
const ticksPerSecond = 100

// processCPU is the time that a process has used; its resolution is 10 ms.
func processCPU(pid int) (CPU, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return CPU{}, err
	}
	// The second field is the name in parentheses, which may contain anything.
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return CPU{}, fmt.Errorf("process %d: unexpected stat", pid)
	}
	var ticks [2]int64
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
			return CPU{}, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	const tick = time.Second / ticksPerSecond
	return CPU{time.Duration(ticks[0]) * tick, time.Duration(ticks[1]) * tick}, nil
}

// meter measures the processor time from when it was made.
type meter struct {
	pid         int
	own, target CPU
}

func newMeter(pid int) meter {
	m := meter{pid: pid, own: ownCPU()}
	if pid != 0 {
		m.target, _ = processCPU(pid) // a process that is gone has used nothing
	}
	return m
}

// used is the time of this program, and of the process when there is one.
func (m meter) used() (own, target CPU) {
	if m.pid != 0 {
		if now, err := processCPU(m.pid); err == nil {
			target = now.sub(m.target)
		}
	}
	return ownCPU().sub(m.own), target
}
