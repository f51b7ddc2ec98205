package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine is what figures depend on.
type machine struct {
	CPU    string      `json:"cpu"`
	CPUs   int         `json:"cpus"`
	Memory uint64      `json:"memory_bytes"`
	Kernel string      `json:"kernel"`
	Uring  bool        `json:"fuse_over_io_uring"` // the kernel has it switched on, so that mounts use it
	UID    int         `json:"uid"`
	Lowers []lowerKind `json:"lowers"`
	Tools  []tool      `json:"tools"`
}

type lowerKind struct {
	Name       string `json:"name"`       // tmpfs or disk
	Filesystem string `json:"filesystem"` // its own name
}

type tool struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

func newMachine(o options) machine {
	m := machine{CPU: cpuModel(), CPUs: runtime.NumCPU(), UID: os.Geteuid(), Tools: []tool{{"hyperfs", commit()}, {"go", strings.TrimPrefix(runtime.Version(), "go")}}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	uring, _ := os.ReadFile("/sys/module/fuse/parameters/enable_uring")
	m.Uring = strings.HasPrefix(string(uring), "Y")
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = info.Totalram * uint64(info.Unit)
	}
	for _, l := range lowers(o) {
		m.Lowers = append(m.Lowers, lowerKind{l.name, l.kind})
	}
	for _, name := range []string{"git", "node", "npm", "tar", "cp", "grep", "fusermount3", "fuse-overlayfs", "bindfs", "btrfs"} {
		if v := toolVersion(name); v != "" {
			m.Tools = append(m.Tools, tool{name, v})
		}
	}
	return m
}

// cpuModel gives the processor's name; "unknown" where /proc/cpuinfo has none.
func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

var versionNumber = regexp.MustCompile(`\bv?\d+(\.\d+)+\S*`)

// toolVersion gives the version number that a program says it has, at best on a line that begins with its name; "" if there is no such program.
func toolVersion(name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, "--version").CombinedOutput()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		if v := versionNumber.FindString(line); strings.HasPrefix(line, name) && v != "" {
			return v
		}
	}
	return versionNumber.FindString(string(out))
}

// commit gives what git calls the state of the source here; "" outside of a repository.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--tags", "--dirty").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// loadAverage gives the load over 1, 5 and 15 minutes as the kernel writes it.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// cpuTime is what all CPUs have done since the start, in ticks of the clock.
type cpuTime struct{ used, stolen uint64 }

// readCPUTime reads it from /proc/stat (see proc_stat(5)); it is 0 where that can't be read.
func readCPUTime() (c cpuTime) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	const user, nice, system, irq, softirq, steal = 1, 2, 3, 6, 7, 8
	if len(fields) <= steal {
		return c
	}
	for _, i := range []int{user, nice, system, irq, softirq} {
		n, _ := strconv.ParseUint(fields[i], 10, 64)
		c.used += n
	}
	c.stolen, _ = strconv.ParseUint(fields[steal], 10, 64)
	return c
}

func (c cpuTime) since(before cpuTime) cpuTime {
	return cpuTime{c.used - before.used, c.stolen - before.stolen}
}

// stolenShare is what share of the time that was wanted a hypervisor has given to others; 0 if nothing was wanted.
func (c cpuTime) stolenShare() float64 {
	return float64(c.stolen) / max(float64(c.used+c.stolen), 1)
}
