// Command treesearch repairs a workspace by trying several ways at once. It forks a branch for each attempt, runs the attempt and then the
// tests in it, all in parallel and each at the workspace's own path, merges the one whose tests pass with the fewest changes, and
// drops the others.
//
//	treesearch [-n ATTEMPTS] [-C WORKSPACE] [-hyperfs PROGRAM] ATTEMPT TEST
//
// ATTEMPT and TEST are programs, as seen from the top of the workspace. Both run in the branch and have the attempt's number, from 0 on, in
// ATTEMPT_NUMBER. In place of the script there would be an agent. The workspace must be mounted, and hyperfs be in PATH, or named by -hyperfs.
//
// README.md has the commands to try it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

func main() {
	s := search{}
	flag.IntVar(&s.attempts, "n", 4, "how many attempts")
	flag.StringVar(&s.workspace, "C", ".", "the workspace")
	flag.StringVar(&s.hyperfs, "hyperfs", "hyperfs", "the program")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: treesearch [flags] ATTEMPT TEST")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 || s.attempts < 1 {
		flag.Usage()
		os.Exit(2)
	}
	s.attempt, s.test = flag.Arg(0), flag.Arg(1)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := s.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "treesearch:", err)
		os.Exit(1)
	}
}

// search is one search for a repair.
type search struct {
	workspace, hyperfs string
	attempts           int
	attempt, test      string
	client             *control.Client
}

// outcome is what became of one attempt.
type outcome struct {
	branch  string
	passed  bool
	changes int // paths that it has changed
	took    time.Duration
	log     string // what attempt and test have said
}

func (s *search) run(ctx context.Context) (err error) {
	if s.workspace, err = resolved(s.workspace); err != nil {
		return err
	}
	if s.client, err = control.Dial(ctx, s.workspace); err != nil {
		return err
	}
	defer s.client.Close()
	start, err := s.client.Snapshot(ctx, overlay.SnapshotOptions{Message: "before the search"})
	if err != nil {
		return err
	}
	outcomes, err := s.tryAll(ctx, start.ID)
	if err != nil {
		return errors.Join(err, s.dropAll(outcomes))
	}
	for _, o := range outcomes {
		fmt.Printf("%s\t%s\tpaths changed: %d\t%s\n", o.branch, verdict(o.passed), o.changes, o.took.Round(time.Millisecond))
	}
	best, ok := choose(outcomes)
	if !ok {
		return errors.Join(fmt.Errorf("no attempt passed; the last one said:\n%s", outcomes[len(outcomes)-1].log), s.dropAll(outcomes))
	}
	others := slices.DeleteFunc(outcomes, func(o outcome) bool { return o.branch == best.branch })
	if err := s.dropAll(others); err != nil {
		return err
	}
	merged, err := s.client.Merge(ctx, best.branch, overlay.MergeOptions{OnConflict: overlay.ConflictMerge})
	if err != nil { // as a conflict with what was changed in the workspace meanwhile
		return fmt.Errorf("%w\nthe branch %s is kept: see hyperfs merge", err, best.branch)
	}
	fmt.Printf("merged %s, paths changed: %d\n", merged.Branch, len(merged.Steps))
	return nil
}

// resolved gives a directory as its daemon knows it: absolute, without symlinks.
func resolved(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// tryAll makes all attempts at once. It gives the outcomes of those whose branch was made, also with an error.
func (s *search) tryAll(ctx context.Context, from string) ([]outcome, error) {
	var mu sync.Mutex
	var outcomes []outcome
	var failed error
	var all sync.WaitGroup
	for i := range s.attempts {
		all.Add(1)
		go func() {
			defer all.Done()
			o, err := s.try(ctx, from, i)
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			if o.branch != "" {
				outcomes = append(outcomes, o)
			}
		}()
	}
	all.Wait()
	slices.SortFunc(outcomes, func(a, b outcome) int { return cmp.Compare(a.branch, b.branch) })
	return outcomes, failed
}

// try makes one attempt in a branch of its own.
func (s *search) try(ctx context.Context, from string, i int) (o outcome, err error) {
	began := time.Now()
	b, err := s.client.Fork(ctx, overlay.ForkOptions{Name: fmt.Sprintf("search-%d-%d", os.Getpid(), i), From: from, Agent: "attempt " + strconv.Itoa(i)})
	if err != nil {
		return o, err
	}
	o.branch = b.Name
	log, err := s.exec(ctx, b.Name, s.attempt, i)
	if err != nil {
		return o, err
	}
	o.passed = log.passed
	if log.passed {
		test, err := s.exec(ctx, b.Name, s.test, i)
		if err != nil {
			return o, err
		}
		o.passed, log.text = test.passed, log.text+test.text
	}
	d, err := s.client.Diff(ctx, control.Between{Branch: b.Name}, true)
	o.changes, o.log, o.took = len(d.Changes), log.text, time.Since(began)
	return o, err
}

// said is how a command ended, and its output.
type said struct {
	passed bool
	text   string
}

// exec runs a command in a branch. That it fails is no error.
func (s *search) exec(ctx context.Context, branch, program string, i int) (said, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, s.hyperfs, "-C", s.workspace, "exec", "--branch", branch, "--env", "ATTEMPT_NUMBER="+strconv.Itoa(i), "--", program)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		err = nil
	}
	return said{cmd.ProcessState != nil && cmd.ProcessState.Success(), out.String()}, err
}

// choose gives the outcome that passed with the fewest changes.
func choose(outcomes []outcome) (outcome, bool) {
	passed := slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return !o.passed })
	if len(passed) == 0 {
		return outcome{}, false
	}
	return slices.MinFunc(passed, func(a, b outcome) int { return cmp.Compare(a.changes, b.changes) }), true
}

// dropAll discards the branches of attempts, also when the search was interrupted.
func (s *search) dropAll(outcomes []outcome) (err error) {
	for _, o := range outcomes {
		err = errors.Join(err, s.client.DropBranch(context.Background(), o.branch))
	}
	return err
}

func verdict(passed bool) string {
	if passed {
		return "passed"
	}
	return "failed"
}
