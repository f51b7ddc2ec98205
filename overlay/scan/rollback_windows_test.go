package scan

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/windows"
)

// variety makes something of every kind.
func variety(f *fixture) {
	f.Helper()
	f.write("a", "one")
	f.write("empty", "")
	f.write("dir/b", "two")
	f.write("dir/deep/c", strings.Repeat("three", 5000))
	f.write("odd \u00e9 name", "bytes")
	f.must(os.Link(f.path("a"), f.path("dir/link-of-a")))
	f.must(os.Mkdir(f.path("hollow"), 0o700))
	f.write("locked", "read-only")
	f.attributes("locked", windows.FILE_ATTRIBUTE_READONLY|windows.FILE_ATTRIBUTE_ARCHIVE)
	f.must(os.Truncate(f.path("dir/deep/c"), 3<<20))
	old := time.Date(2001, 2, 3, 4, 5, 6, 700, time.UTC)
	f.must(os.Chtimes(f.path("dir/b"), old, old))
	f.must(os.Chtimes(f.path("dir"), old, old))
}

// havoc changes it in every way.
func havoc(f *fixture) {
	f.Helper()
	f.write("a", "ONE") // in place, so that its other name sees it
	f.must(os.RemoveAll(f.path("dir/deep")))
	f.write("dir/deep", "a file now")
	f.must(os.Remove(f.path("hollow")))
	f.write("hollow", "a file now")
	f.write("new/tree/x", "x")
	f.write("new/kept", "read-only and new")
	f.attributes("new/kept", windows.FILE_ATTRIBUTE_READONLY)
	f.must(os.Rename(f.path("empty"), f.path("new/moved")))
	f.must(os.Link(f.path("dir/b"), f.path("b-too")))
	f.must(os.Remove(f.path("odd \u00e9 name")))
	f.must(os.Rename(f.path("dir"), f.path("passing")))
	f.must(os.Rename(f.path("passing"), f.path("DIR")))
	f.attributes("locked", windows.FILE_ATTRIBUTE_NORMAL)
	f.write("locked", "not any more")
	f.attributes("locked", windows.FILE_ATTRIBUTE_READONLY)
}

// attributes sets the file attributes of a path.
func (f *fixture) attributes(name string, to uint32) {
	f.Helper()
	path, err := windows.UTF16PtrFromString(f.path(name))
	f.must(err)
	f.must(windows.SetFileAttributes(path, to))
}

func TestARenameThatOnlyChangesCaseIsRolledBack(t *testing.T) {
	f := newFixture(t)
	f.write("Readme", "one")
	f.write("Src/Main.go", "two")
	want := f.capture()
	id := f.snapshot()
	for from, to := range map[string]string{"Readme": "README", "Src": "src"} {
		f.must(os.Rename(f.path(from), f.path("passing"))) // Wine does nothing where only the case is to change
		f.must(os.Rename(f.path("passing"), f.path(to)))
	}
	changed := f.capture()
	if _, ok := changed["README"]; !ok {
		t.Fatal("nothing was renamed")
	}
	f.rollback(id)
	f.is(want)
	f.sound()
	_, err := f.w.Undo(context.Background())
	f.must(err)
	f.is(changed)
}

func TestNamesThatDifferInCaseAloneAreRefusedWhereTheyAreOne(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	f.write("b", "two")
	id := f.snapshot()
	m, err := f.w.manifest(id)
	f.must(err)
	for i := range m.entries {
		if m.entries[i].name == "a" {
			m.entries[i].name = "B"
		}
	}
	f.must(f.w.writeManifest(id, m))
	before := f.capture()
	_, err = f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	f.wantCode(err, errs.Rollback)
	if !strings.Contains(err.Error(), "case alone") {
		t.Errorf("the error is %v", err)
	}
	f.is(before)
}

func TestWhatAnotherProgramHoldsStopsARollbackBeforeItTouchesAnything(t *testing.T) {
	for name, hold := range map[string]struct {
		path   string
		access uint32
		share  uint32
	}{
		"a file that is to be replaced":  {"dir/held", windows.GENERIC_READ, windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE},
		"a file that is to be removed":   {"new/inside", windows.GENERIC_READ, windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE},
		"a file that somebody writes to": {"dir/held", windows.GENERIC_WRITE, windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.write("a", "one")
			f.write("dir/held", "two")
			want := f.capture()
			id := f.snapshot()
			f.write("a", "changed")
			f.write("dir/held", "changed")
			f.write("new/inside", "new")
			changed := f.capture()
			path, err := windows.UTF16PtrFromString(f.path(hold.path))
			f.must(err)
			h, err := windows.CreateFile(path, hold.access, hold.share, nil, windows.OPEN_EXISTING, 0, 0)
			f.must(err)
			_, err = f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
			windows.CloseHandle(h)
			f.wantCode(err, errs.Rollback)
			if !strings.Contains(err.Error(), hold.path) || !strings.Contains(err.Error(), "another program has it open") {
				t.Errorf("the error is %v", err)
			}
			f.is(changed)
			f.sound()
			f.rollback(id)
			f.is(want)
			f.sound()
		})
	}
}

func TestAFileThatNobodyMayReadStopsASnapshot(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	path, err := windows.UTF16PtrFromString(f.path("a"))
	f.must(err)
	h, err := windows.CreateFile(path, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING, 0, 0)
	f.must(err)
	_, err = f.w.Snapshot(context.Background(), overlay.SnapshotOptions{})
	windows.CloseHandle(h)
	f.wantCode(err, errs.Busy)
	if !strings.Contains(err.Error(), "another program has it open") {
		t.Errorf("the error is %v", err)
	}
	f.snapshot()
}

// NTFS gives a file its new times when the last who writes to it closes it.
func TestAFileThatIsHeldOpenForWritingIsComparedByContent(t *testing.T) {
	f := newFixture(t)
	f.write("a", "before")
	time.Sleep(2 * raceSlop)
	f.snapshot()
	st, err := os.Stat(f.path("a"))
	f.must(err)
	held, err := os.OpenFile(f.path("a"), os.O_RDWR, 0)
	f.must(err)
	_, err = held.WriteAt([]byte("after!"), 0)
	f.must(err)
	f.must(os.Chtimes(f.path("a"), st.ModTime(), st.ModTime()))
	id := f.snapshot()
	f.must(held.Close())
	f.write("a", "something else")
	f.rollback(id)
	if got := f.read("a"); got != "after!" {
		t.Errorf("it holds %q", got)
	}
	f.sound()
}

func TestNamesThatAreNoUnicodeAreRolledBack(t *testing.T) {
	f := newFixture(t)
	odd := "lone\xed\xa0\x80surrogate" // WTF-8 of U+D800
	if err := os.WriteFile(f.path(odd), []byte("one"), 0o644); err != nil {
		t.Skipf("the filesystem, or Wine, has no such names: %v", err)
	}
	names, err := f.w.top.names(make([]byte, 4096))
	f.must(err)
	if !strings.Contains(strings.Join(names, "\n"), odd) {
		t.Skipf("this filesystem made %q of it", names)
	}
	id := f.snapshot()
	f.must(os.Remove(f.path(odd)))
	f.rollback(id)
	if got := f.read(odd); got != "one" {
		t.Errorf("it holds %q", got)
	}
}

func TestPathsMayBeLongerThanMaxPath(t *testing.T) {
	f := newFixture(t)
	long := filepath.Join(strings.Repeat("n", 100), strings.Repeat("o", 100), strings.Repeat("p", 100), strings.Repeat("q", 100))
	f.write(filepath.Join(long, "deepest"), "one")
	want := f.capture()
	id := f.snapshot()
	f.write(filepath.Join(long, "deepest"), "changed")
	f.must(os.Remove(f.path(filepath.Join(long, "deepest"))))
	f.rollback(id)
	f.is(want)
	f.must(os.RemoveAll(f.path(strings.Repeat("n", 100))))
	f.rollback(id)
	f.is(want)
	f.sound()
}

func TestANameOfAReadOnlyFileCanBeRemovedAndTheOthersStayReadOnly(t *testing.T) {
	f := newFixture(t)
	f.write("one", "same")
	f.attributes("one", windows.FILE_ATTRIBUTE_READONLY)
	want := f.capture()
	id := f.snapshot()
	f.must(os.Link(f.path("one"), f.path("two")))
	f.rollback(id)
	f.is(want)
	f.sound()
}

func TestAttributesAndTimesAreRolledBack(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	f.write("d/b", "two")
	f.attributes("a", windows.FILE_ATTRIBUTE_HIDDEN|windows.FILE_ATTRIBUTE_READONLY)
	at := time.Date(2020, 1, 2, 3, 4, 5, 123456700, time.UTC)
	f.must(os.Chtimes(f.path("d/b"), at, at))
	want := f.capture()
	id := f.snapshot()
	f.attributes("a", windows.FILE_ATTRIBUTE_NORMAL)
	f.must(os.Chtimes(f.path("d/b"), at.Add(100), at.Add(100)))
	changed := f.capture()
	if want["a"].Mode == changed["a"].Mode || want["d/b"].Mtime == changed["d/b"].Mtime {
		t.Fatal("this filesystem keeps no attributes, or no times of 100 ns")
	}
	f.rollback(id)
	f.is(want)
	f.sound()
}

func TestNothingIsReachedThroughNamesThatAreNone(t *testing.T) {
	f := newFixture(t)
	f.write("d/a", "one")
	for _, name := range []string{`d\a`, "d/a", "..", ".", `..\outside`, "d:stream", "\x00"} {
		if _, err := f.w.top.stat(name); err == nil || !errors.Is(err, windows.ERROR_INVALID_NAME) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Wine makes no symlinks, nor may everybody on Windows.
func TestASymlinkIsMadeOrRefusedBeforeAnythingIsTouched(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	f.write("link", "")
	id := f.snapshot()
	m, err := f.w.manifest(id)
	f.must(err)
	for i := range m.entries {
		if e := &m.entries[i]; e.name == "link" {
			e.mode, e.target = modeSymlink|0o777, `d\target`
		}
	}
	f.must(f.w.writeManifest(id, m))
	f.write("a", "changed")
	before := f.capture()
	_, err = f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	if err == nil {
		if got, err := os.Readlink(f.path("link")); got != `d\target` || err != nil || f.read("a") != "one" {
			t.Errorf("the symlink leads to %q, %v", got, err)
		}
		return
	}
	f.wantCode(err, errs.Rollback)
	if !strings.Contains(err.Error(), "can't make symlinks") {
		t.Errorf("the error is %v", err)
	}
	f.is(before)
}

// That a program runs from a file is only found out by trying to remove it.
func TestARollbackThatIsStoppedByARunningProgramIsFinishedWhenItHasEnded(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	f.write("z", "two")
	want := f.capture()
	id := f.snapshot()
	f.write("a", "changed")
	f.write("z", "changed")
	program, err := os.ReadFile(os.Args[0])
	f.must(err)
	f.write("m.exe", string(program))
	cmd := exec.Command(f.path("m.exe"))
	cmd.Env = append(os.Environ(), envIdle+"=1")
	stdin, err := cmd.StdinPipe()
	f.must(err)
	f.must(cmd.Start())
	_, err = f.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	if err != nil && (errs.CodeOf(err) != errs.Rollback || !strings.Contains(err.Error(), "m.exe")) {
		t.Errorf("the error is %v", err)
	}
	t.Logf("while the program runs: %v", err)
	f.must(stdin.Close())
	f.must(cmd.Wait())
	f.reopen()
	f.is(want)
	f.sound()
}

func TestTheTimesOfAFileThatSomebodyMayWriteToAreNotTrusted(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one")
	for _, c := range []struct {
		flag    int
		trusted bool
	}{{os.O_RDONLY, true}, {os.O_WRONLY, false}, {os.O_RDWR, false}} {
		held, err := os.OpenFile(f.path("a"), c.flag, 0)
		f.must(err)
		st, err := f.w.top.stat("a")
		f.must(err)
		writer := hasWriter(held)
		f.must(held.Close())
		if trusted := st.ctime != unknownTime; trusted != c.trusted || writer == c.trusted {
			t.Errorf("opened with %#x: trusted %v, writer %v", c.flag, trusted, writer)
		}
	}
	st, err := f.w.top.stat("a")
	f.must(err)
	if st.ctime == unknownTime {
		t.Error("its times are not trusted when nobody has it open")
	}
}
