package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

// mountSubject is a workspace as users have it: the real program, a daemon, a mount in place, the client.
type mountSubject struct {
	dir    string
	o      mountOptions
	client *control.Client
	pid    atomic.Int64 // of the daemon; 0 while there is none
	*hands
}

// mountOptions of a mountSubject.
type mountOptions struct {
	flags []string // of hyperfs mount
	env   []string // added to the daemon's environment
	plain bool     // the program that users run
	big   bool     // the workspace is too big to be compared at the end
}

func (o mountOptions) program() *program {
	if o.plain {
		return plain
	}
	return checked
}

func newMountSubject(dir string, o mountOptions) (*mountSubject, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	s := &mountSubject{dir: dir, o: o}
	return s, s.open()
}

func (s *mountSubject) open() error {
	args := append(append([]string{"mount"}, s.o.flags...), s.dir)
	if _, err := s.o.program().run(s.o.env, args...); err != nil {
		return err
	}
	ctx := context.Background()
	var err error
	if s.client, err = control.Dial(ctx, s.dir); err != nil {
		return errors.Join(err, s.unmount())
	}
	st, err := s.client.Status(ctx)
	if err != nil {
		return errors.Join(err, s.unmount())
	}
	s.pid.Store(int64(st.Daemon.PID))
	s.hands, err = newHands(s.dir)
	return err
}

// unmount makes the workspace an ordinary directory again. Nothing of ours is open in it.
func (s *mountSubject) unmount() error {
	_, err := s.o.program().run(nil, "unmount", s.dir)
	return err
}

// kill ends the daemon as the out-of-memory killer would, and takes the dead mount away.
func (s *mountSubject) kill() error {
	s.strike()
	return s.afterDeath()
}

// strike kills the daemon if there is one. It may be called by any goroutine.
func (s *mountSubject) strike() {
	if pid := int(s.pid.Load()); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// alive reports whether the daemon is at work.
func (s *mountSubject) alive() bool {
	pid := int(s.pid.Load())
	return pid != 0 && syscall.Kill(pid, 0) == nil && !zombie(pid)
}

// gone waits until the daemon has ended.
func (s *mountSubject) gone() error {
	return within(hangAfter, func() error {
		for s.alive() {
			time.Sleep(time.Millisecond)
		}
		s.pid.Store(0)
		return nil
	})
}

// afterDeath waits until the daemon is gone and detaches what it served.
func (s *mountSubject) afterDeath() error {
	err := s.gone()
	s.client.Close()
	_ = s.hands.Close() // what it was doing may have failed
	return errors.Join(err, detach(s.dir))
}

// detach takes a mount away, dead or alive, if there is one. An ordinary user may do that only with fusermount3.
func detach(dir string) error {
	if os.Getuid() == 0 {
		if err := unix.Unmount(dir, unix.MNT_DETACH); !errors.Is(err, unix.EINVAL) { // EINVAL: nothing is mounted there
			return err
		}
		return nil
	}
	out, err := exec.Command("fusermount3", "-uz", dir).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "not found in") {
		return fmt.Errorf("fusermount3: %w: %s", err, out)
	}
	return nil
}

// zombie reports whether the process has ended and nobody has waited for it.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	i := strings.LastIndexByte(string(stat), ')')
	return i >= 0 && strings.HasPrefix(string(stat[i:]), ") Z")
}

func (s *mountSubject) Capture() (treestate.State, error) {
	return treestate.Capture(s.dir, treestate.Options{Holes: true})
}

func (s *mountSubject) Snapshot() (string, error) {
	c, err := s.client.Snapshot(context.Background(), overlay.SnapshotOptions{})
	return c.ID, err
}

func (s *mountSubject) Rollback(id string, discard bool) (string, error) {
	r, err := s.client.Rollback(context.Background(), id, overlay.RollbackOptions{Discard: discard})
	return r.Undo, err
}

func (s *mountSubject) Undo() (string, error) {
	r, err := s.client.Undo(context.Background(), "")
	return r.Undo, err
}

func (s *mountSubject) Drop(id string) error { return s.client.Drop(context.Background(), id) }

func (s *mountSubject) Promote(id string) error {
	_, err := s.client.Promote(context.Background(), id, control.PromoteOptions{})
	return err
}

func (s *mountSubject) Explain(id string) ([]overlay.Change, error) {
	d, err := s.client.Diff(context.Background(), control.Between{From: id}, true)
	return d.Changes, errors.Join(err, s.client.Patch(context.Background(), control.Between{From: id}, io.Discard))
}

func (s *mountSubject) GC() error {
	_, err := s.client.GC(context.Background())
	return err
}

func (s *mountSubject) Active() ([]string, error) {
	list, err := s.client.List(context.Background(), overlay.ListOptions{})
	return idsOf(list), err
}

func (s *mountSubject) Check(deep bool) error {
	problems, err := s.client.Fsck(context.Background(), deep)
	return errors.Join(err, asError(problems))
}

func (s *mountSubject) Restart() error {
	if err := s.stop(); err != nil {
		return err
	}
	return s.open()
}

// stop unmounts, and proves that the ordinary directory is what the mount has shown (invariant I1).
func (s *mountSubject) stop() error {
	through, err := treestate.Capture(s.dir, treestate.Options{})
	if err != nil {
		return errors.Join(err, s.give())
	}
	if err := s.give(); err != nil {
		return err
	}
	under, err := treestate.Capture(s.dir, treestate.Options{})
	if err != nil {
		return err
	}
	if diff := treestate.Diff(through, under); len(diff) > 0 {
		return fmt.Errorf("the mount has shown something else than the workspace holds:\n\t%s", strings.Join(diff, "\n\t"))
	}
	return nil
}

// give ends everything.
func (s *mountSubject) give() error {
	err := s.hands.Close()
	s.client.Close()
	if e := s.unmount(); e != nil {
		err = errors.Join(err, e, detach(s.dir))
	}
	return errors.Join(err, s.gone())
}

func (s *mountSubject) Close() error {
	if s.o.big {
		return s.give()
	}
	return s.stop()
}
