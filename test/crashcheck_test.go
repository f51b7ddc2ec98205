package test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/test/ops"
)

// wreck is what a kill left of a life.
type wreck struct {
	dir         string
	op          *ops.Op // under way; nil if none was
	rollback    int     // under way; -1 if none was, 0 an undo
	cut         int     // which of the rollbacks that was
	forget      int     // under way; 0 if none was
	checkpoints map[int]string
	undo        int    // the last rollback that is on record as done
	undoID      string // its undo checkpoint
	unborn      bool   // nothing was done yet
	arrived     string // the state that a rollback has brought, until ahead and behind have followed; else empty
}

// readWreck reads the journal and the files of a life.
func readWreck(dir string) (*wreck, error) {
	w := &wreck{dir: dir, rollback: -1, checkpoints: map[int]string{}}
	states, err := filepath.Glob(filepath.Join(dir, "*.state"))
	if err != nil {
		return nil, err
	}
	for _, name := range states {
		n, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(name), ".state"))
		if err != nil {
			continue
		}
		s, err := loadState(name)
		if err != nil {
			return nil, err
		}
		w.checkpoints[n] = s.ID
	}
	f, err := os.Open(filepath.Join(dir, "journal"))
	if errors.Is(err, os.ErrNotExist) {
		w.unborn = true
		return w, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		if err := w.read(word, rest); err != nil {
			return nil, fmt.Errorf("%s %s: %w", word, rest, err)
		}
	}
	return w, lines.Err()
}

// read follows one line of the journal.
func (w *wreck) read(word, rest string) (err error) {
	switch word {
	case lineOp:
		w.op = new(ops.Op)
		return json.Unmarshal([]byte(rest), w.op)
	case lineDone:
		w.op = nil
	case lineCheckpoint:
		n, id, _ := strings.Cut(rest, " ")
		k, err := strconv.Atoi(n)
		if !exists(filepath.Join(w.dir, n+".state")) { // killed in between: it is the workspace as it is
			w.checkpoints[k] = id
		}
		return err
	case lineRollback:
		_, err = fmt.Sscan(rest, &w.rollback, &w.cut)
	case lineRolledBack:
		w.arrived, w.rollback = w.target(), -1
		_, err = fmt.Sscan(rest, &w.undo, &w.undoID)
	case lineReset:
		w.arrived = ""
	case lineForget:
		w.forget, err = strconv.Atoi(rest)
	case lineForgotten:
		delete(w.checkpoints, w.forget)
		w.forget = 0
	case lineFailed:
		return errors.New("the workload failed of itself")
	}
	return err
}

// target gives the state that the rollback under way goes to.
func (w *wreck) target() string {
	if w.rollback > 0 {
		return w.path(strconv.Itoa(w.rollback) + ".state")
	}
	return w.path(undoName(w.undo) + ".state")
}

func (w *wreck) path(name string) string { return filepath.Join(w.dir, name) }

func lowerState(dir string) (treestate.State, error) {
	return treestate.Capture(dir, treestate.Options{})
}

// checkWorkspace proves that the workspace is complete and current, before anything is recovered (invariant I1): it is what
// it was before the operation under way, or what it was to be afterwards.
func (w *wreck) checkWorkspace() error {
	if w.rollback >= 0 || w.unborn {
		return nil // the next start finishes the rollback
	}
	now, err := lowerState(w.path("workspace"))
	if err != nil {
		return err
	}
	if w.arrived != "" {
		s, err := loadState(w.arrived)
		if err != nil {
			return err
		}
		if diff := treestate.Diff(s.State, now); len(diff) > 0 {
			return fmt.Errorf("the workspace is not what it was rolled back to:\n\t%s", strings.Join(diff, "\n\t"))
		}
		return nil
	}
	var sides [2][]string
	for i, name := range []string{"behind", "ahead"} {
		model, err := lowerState(w.path(name))
		if err != nil {
			return err
		}
		diff := treestate.Compare{Mtime: sameKindOfMtime}.Diff(model, now)
		if sides[i] = w.unexpected(diff, model, now); len(sides[i]) == 0 {
			return nil
		}
	}
	return fmt.Errorf("the workspace is neither what it was before nor what it was to be after %v:\n    before:\n\t%s\n    after:\n\t%s",
		w.op, strings.Join(sides[0], "\n\t"), strings.Join(sides[1], "\n\t"))
}

// unexpected leaves out of the differences what an operation of several steps may have half done: content, size and attributes of
// the file that it is about, which is there all the time.
func (w *wreck) unexpected(diff []string, model, now treestate.State) []string {
	if w.op == nil {
		return diff
	}
	var about []string
	for _, s := range []treestate.State{model, now} {
		for _, p := range []string{string(w.op.Path), string(w.op.To)} {
			if _, ok := s[p]; !ok {
				continue
			}
			for q, e := range s {
				if e.First == s[p].First {
					about = append(about, fmt.Sprintf("%q: ", q))
				}
			}
		}
	}
	return slices.DeleteFunc(diff, func(line string) bool {
		return slices.ContainsFunc(about, func(prefix string) bool {
			return strings.HasPrefix(line, prefix) && !strings.Contains(line, "missing") && !strings.Contains(line, "type is") &&
				!strings.Contains(line, "hard-link")
		})
	})
}

// checkRecovered proves that the subject, opened after the kill, has everything: the live state, or that of the rollback
// under way; every checkpoint; the undo.
func (w *wreck) checkRecovered(sub subject, before treestate.State) error {
	now, err := sub.Capture()
	if err != nil {
		return err
	}
	active, err := sub.Active()
	if err != nil {
		return err
	}
	if err := w.checkLive(before, now); err != nil {
		return err
	}
	if err := sub.Check(true); err != nil {
		return err
	}
	if err := w.checkUndo(sub, active, now); err != nil {
		return err
	}
	return w.checkCheckpoints(sub, active, before)
}

// checkLive proves that a start changes nothing, unless it finishes or takes back a rollback.
func (w *wreck) checkLive(before, now treestate.State) error {
	if w.rollback < 0 {
		if diff := treestate.Diff(before, now); len(diff) > 0 {
			return fmt.Errorf("the start changed the workspace:\n\t%s", strings.Join(diff, "\n\t"))
		}
		return nil
	}
	target, err := loadState(w.target())
	if err != nil {
		return err
	}
	origin, err := loadState(w.path(undoName(w.cut) + ".state"))
	if err != nil {
		return err
	}
	done := treestate.Diff(target.State, now)
	undone := treestate.Diff(origin.State, now)
	if len(done) > 0 && len(undone) > 0 {
		return fmt.Errorf("a rollback to %d was cut. The start made neither what it goes to:\n\t%s\n    nor what was there:\n\t%s",
			w.rollback, strings.Join(done, "\n\t"), strings.Join(undone, "\n\t"))
	}
	return nil
}

// checkUndo proves that a rollback which had returned can still be undone, and goes back again.
func (w *wreck) checkUndo(sub subject, active []string, now treestate.State) error {
	if w.undo == 0 || w.rollback >= 0 {
		return nil // a rollback that was cut may have taken it
	}
	if !slices.Contains(active, w.undoID) {
		return fmt.Errorf("the undo checkpoint %s is lost", w.undoID)
	}
	s, err := loadState(w.path(undoName(w.undo) + ".state"))
	if err != nil {
		return err
	}
	for i, want := range []treestate.State{s.State, now} {
		if _, err := sub.Undo(); err != nil {
			return fmt.Errorf("undo after the kill: %w", err)
		}
		if err := captureIs(sub, want); err != nil {
			return fmt.Errorf("undo %d after the kill: %w", i+1, err)
		}
	}
	return nil
}

// checkCheckpoints proves that every checkpoint is there, and rolls back to each.
func (w *wreck) checkCheckpoints(sub subject, active []string, before treestate.State) error {
	for _, n := range sortedKeys(w.checkpoints) {
		id := w.checkpoints[n]
		if !slices.Contains(active, id) {
			if n == w.forget {
				continue
			}
			return fmt.Errorf("checkpoint %d (%s) is lost", n, id)
		}
		want := before
		if name := w.path(strconv.Itoa(n) + ".state"); exists(name) {
			s, err := loadState(name)
			if err != nil {
				return err
			}
			want = s.State
		}
		if _, err := sub.Rollback(id, false); err != nil {
			return fmt.Errorf("rollback to checkpoint %d after the kill: %w", n, err)
		}
		if err := captureIs(sub, want); err != nil {
			return fmt.Errorf("rollback to checkpoint %d after the kill: %w", n, err)
		}
	}
	return nil
}

func captureIs(sub subject, want treestate.State) error {
	now, err := sub.Capture()
	if err != nil {
		return err
	}
	if diff := treestate.Diff(want, now); len(diff) > 0 {
		return fmt.Errorf("the state is not what it was:\n\t%s", strings.Join(diff, "\n\t"))
	}
	return nil
}

func sortedKeys(m map[int]string) []int {
	var keys []int
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// settle makes a recovered life one that the next run can begin with: what was dropped, or is only half on record, goes.
func (w *wreck) settle(sub subject) error {
	active, err := sub.Active()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(w.dir, "*.state"))
	if err != nil {
		return err
	}
	for _, name := range files {
		base := strings.TrimSuffix(filepath.Base(name), ".state")
		n, _ := strconv.Atoi(base)
		if n > 0 && slices.Contains(active, w.checkpoints[n]) {
			continue
		}
		err = errors.Join(err, os.Remove(name), treestate.Remove(w.path(base+".copy")))
	}
	return err
}
