package scan

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// lifts remembers the modes of what is being read although its owner has shut it, so that they come back after a crash
// too: a line for each, written before its mode changes, in a file that is removed when all are back.
type lifts struct {
	path string
	mu   sync.Mutex // guards file
	file *os.File   // nil while nothing is lifted
}

// liftsName is the file's name in the store.
const liftsName = "lifted"

// note writes down that the mode of a path is going to be changed for a moment.
func (l *lifts) note(path string, mode uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		l.file = f
	}
	_, err := fmt.Fprintf(l.file, "%o %s\n", mode, strconv.Quote(path))
	return err
}

// done forgets all: the modes are back.
func (l *lifts) done() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	_ = l.file.Close()
	l.file = nil
	return os.Remove(l.path)
}

// withLifted calls fn while this user, who owns what name leads to, may read it.
func (w *Workspace) withLifted(d dir, name, path string, st *stat, fn func() error) (err error) {
	if err := w.lifts.note(path, st.mode); err != nil {
		return err
	}
	if err := d.chmod(name, lifted(st.mode)); err != nil {
		return err
	}
	defer func() {
		if e := d.chmod(name, st.mode); err == nil && e != nil && !isMissing(e) {
			err = e
		}
	}()
	return fn()
}

// lifted is the mode of something that its owner may read, and of a directory that they may change.
func lifted(mode uint32) uint32 {
	if mode&modeType == modeDir {
		return mode | 0o700
	}
	return mode | 0o400
}

// putBackLifted gives back the modes that a process had lifted when it died, what is deepest first.
func (w *Workspace) putBackLifted() error {
	text, err := os.ReadFile(w.lifts.path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		octal, quoted, _ := strings.Cut(lines[i], " ")
		mode, err := strconv.ParseUint(octal, 8, 32)
		path, qerr := strconv.Unquote(quoted)
		if err != nil || qerr != nil {
			continue // the line was cut off, so nothing was lifted after it
		}
		if err := w.putBackMode(path, uint32(mode)); err != nil && !isMissing(err) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return os.Remove(w.lifts.path)
}

// putBackMode gives one path its mode back, if it is as it was when that was lifted.
func (w *Workspace) putBackMode(path string, mode uint32) error {
	d, err := w.openDir(parentOf(path))
	if err != nil {
		return err
	}
	defer d.close()
	st, err := d.stat(baseOf(path))
	if err != nil || st.mode != lifted(mode) {
		return err
	}
	return d.chmod(baseOf(path), mode)
}

// openLive opens a regular file by its path. What this user, its owner, has shut on the way is lifted until it is open.
func (w *Workspace) openLive(path string) (*os.File, error) {
	d, err := w.top.again()
	if err != nil {
		return nil, err
	}
	f, err := w.openBelow(d, "", path)
	if e := w.lifts.done(); err == nil && e != nil {
		_ = f.Close()
		return nil, e
	}
	return f, err
}

// openBelow opens the file that rest leads to from d, the directory at a path, which it closes.
func (w *Workspace) openBelow(d dir, at, rest string) (f *os.File, err error) {
	defer d.close()
	name, rest, more := strings.Cut(rest, "/")
	path := name
	if at != "" {
		path = at + "/" + name
	}
	open := func() (err error) {
		if !more {
			f, err = d.open(name)
			return err
		}
		sub, err := d.sub(name)
		if err != nil {
			return err
		}
		f, err = w.openBelow(sub, path, rest)
		return err
	}
	if err = open(); !isDenied(err) { // also of a name in it, where a directory can be read but not searched
		return f, err
	}
	st, failed := d.stat(name)
	if failed != nil || !w.mayLift(&st) || st.mode == lifted(st.mode) {
		return nil, err
	}
	if err = w.withLifted(d, name, path, &st, open); err != nil && f != nil {
		_ = f.Close()
		f = nil
	}
	return f, err
}

// openDir opens a directory by its path, name by name.
func (w *Workspace) openDir(path string) (dir, error) {
	d, err := w.top.again()
	if err != nil || path == "." {
		return d, err
	}
	for name := range strings.SplitSeq(path, "/") {
		next, err := d.sub(name)
		d.close()
		if err != nil {
			return d, err
		}
		d = next
	}
	return d, nil
}
