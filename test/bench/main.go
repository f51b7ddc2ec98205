// Command bench measures hyperfs against the plain filesystem below it, and against other ways to the same end that are
// installed, all in one run. docs/benchmarks.md says what each line means.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// options are the flags.
type options struct {
	hyperfs string
	quick   bool
	only    *regexp.Regexp
	lower   string
	repeat  int
	calm    int   // how often a sample is repeated at most
	sizeMiB int64 // of the large file
	peers   bool
	jsonTo  string
	textTo  string
	disk    string
	shm     string

	markdownTo string
	requests   bool
	targets    bool
	curves     bool
	curvesTo   string

	flags string // those that were given, as make takes them, but for those that only say where something is
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == workerCommand {
		work(os.Args[2], os.Args[3])
		return
	}
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	var only string
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	f.StringVar(&o.hyperfs, "hyperfs", "bin/hyperfs", "the hyperfs `program`")
	f.BoolVar(&o.quick, "quick", false, "a tenth of the size, one repetition: a check that everything runs, not a measurement")
	f.StringVar(&only, "only", "", "run only what matches `REGEXP`: group/name")
	f.StringVar(&o.lower, "lower", "", "tmpfs or disk; both if empty, or tmpfs in a quick run")
	f.IntVar(&o.repeat, "repeat", 0, "repetitions, of which the median counts; 3 if 0, or 1 in a quick run")
	f.IntVar(&o.calm, "calm", 0, "repeat a sample up to `N` times while a hypervisor gives more than 3 % of the wanted CPU time to others; the calmest counts")
	f.Int64Var(&o.sizeMiB, "size", 256, "MiB of the large file")
	f.BoolVar(&o.peers, "peers", true, "also measure other filesystems and tools that are installed")
	f.StringVar(&o.jsonTo, "json", "bench/results.json", "write the results there")
	f.StringVar(&o.textTo, "text", "bench/results.txt", "write the table there")
	f.StringVar(&o.markdownTo, "markdown", "", "write the figures as Markdown to `FILE`: between its comments <!-- figures --> and <!-- end of figures -->, if it has them")
	f.BoolVar(&o.requests, "requests", false, "count what each workload asks of the mount, instead of measuring time")
	f.BoolVar(&o.targets, "targets", false, "measure only the lines that have a target")
	f.BoolVar(&o.curves, "curves", false, "measure how times grow with processes, files, checkpoints and changes, on the first lower filesystem")
	f.StringVar(&o.curvesTo, "curves-to", "bench/curves", "write the curves as SVG, and curves.json, into `directory`")
	f.StringVar(&o.disk, "disk", "", "`directory` on a disk; the system's for temporary files if empty")
	f.StringVar(&o.shm, "shm", "/dev/shm", "`directory` on a tmpfs")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.flags = givenFlags(f)
	if o.quick {
		o.sizeMiB = 16
		o.lower = cmp.Or(o.lower, "tmpfs")
	}
	if o.repeat <= 0 {
		o.repeat = defaultRepeat(o.quick)
	}
	if o.lower != "" && o.lower != "tmpfs" && o.lower != "disk" {
		return o, fmt.Errorf("-lower is tmpfs or disk, not %q", o.lower)
	}
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		return o, err
	}
	o.hyperfs, err = filepath.Abs(o.hyperfs)
	return o, err
}

// givenFlags gives BENCH='…' with the flags that figures depend on; "" if there are none.
func givenFlags(f *flag.FlagSet) string {
	var all []string
	f.Visit(func(g *flag.Flag) {
		switch b, _ := g.Value.(interface{ IsBoolFlag() bool }); {
		case slices.Contains([]string{"hyperfs", "json", "text", "markdown", "curves-to", "disk", "shm"}, g.Name):
		case b != nil && b.IsBoolFlag() && g.Value.String() == "true":
			all = append(all, "-"+g.Name)
		default:
			value := g.Value.String()
			if strings.ContainsAny(value, " |()*?^&;<>[]") {
				value = `"` + value + `"`
			}
			all = append(all, "-"+g.Name+"="+value)
		}
	})
	if len(all) == 0 {
		return ""
	}
	return " BENCH='" + strings.Join(all, " ") + "'"
}

func defaultRepeat(quick bool) int {
	if quick {
		return 1
	}
	return 3
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := os.Stat(o.hyperfs); err != nil {
		return fmt.Errorf("%w: make build makes it", err)
	}
	b := &bench{ctx: ctx, o: o, report: newReport(o)}
	switch {
	case o.requests:
		return b.requests()
	case o.curves:
		return b.curves()
	}
	var failed error
	for _, l := range lowers(o) {
		if failed == nil {
			failed = b.inTemp(l, b.onLower)
		}
	}
	b.report.Interrupted = ctx.Err() != nil
	return errors.Join(failed, b.report.write(o)) // what was measured before an interruption counts
}

// bench is one run.
type bench struct {
	ctx    context.Context
	o      options
	report *report
}

// scale gives n, or a tenth of it for a quick run.
func (b *bench) scale(n int) int {
	if b.o.quick {
		return max(1, n/10)
	}
	return n
}

// onLower measures everything on one lower filesystem.
func (b *bench) onLower(l lower) error {
	for _, g := range b.groups() {
		if err := b.runGroup(l, g); err != nil {
			return err
		}
	}
	for _, part := range []func(lower) error{b.firstWrites, b.latencies, b.attempts, b.branches} {
		if err := part(l); err != nil {
			return err
		}
	}
	return nil
}

// inTemp calls fn with a directory on a lower filesystem that is removed afterwards.
func (b *bench) inTemp(l lower, fn func(lower) error) (err error) {
	if l.dir, err = os.MkdirTemp(l.dir, "hyperfs-bench"); err != nil {
		return err
	}
	defer removeTree(l.dir)
	if err := os.Chmod(l.dir, 0o755); err != nil { // an ordinary user takes part
		return err
	}
	return fn(l)
}

// wants reports whether one of the lines is to be measured.
func (b *bench) wants(lines ...string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		return b.o.only.MatchString(line) && (!b.o.targets || hasGoal(line))
	})
}
