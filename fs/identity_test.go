package fs_test

import (
	"os"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"golang.org/x/sys/unix"
)

// somebody is a user without an account.
const somebody = 12345

// sharedMount is a mount that other users can enter.
func sharedMount(t *testing.T, o fs.Options) *mounted {
	t.Helper()
	o.AllowOther = true
	dir := t.TempDir()
	openUp(t, dir)
	m := mountDir(t, dir, o)
	if !o.InPlace {
		openUp(t, m.dir)
	}
	return m
}

func modeOfFile(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Mode & 0o7777
}

func TestWhatSomebodyMakesIsTheirs(t *testing.T) {
	m := sharedMount(t, fs.Options{InPlace: true})
	must(t, os.Mkdir(m.path("d"), 0))
	must(t, os.Chmod(m.path("d"), 0o777))
	must(t, os.Mkdir(m.path("group"), 0))
	must(t, os.Chown(m.path("group"), 0, 777))
	must(t, os.Chmod(m.path("group"), 0o777|os.ModeSetgid))
	for dir, gid := range map[string]uint32{"d": somebody, "group": 777} {
		p := m.path(dir, "f")
		if out, err := runHelper(t, somebody, "create", p); err != nil {
			t.Fatal(out)
		}
		var st unix.Stat_t
		must(t, unix.Stat(p, &st))
		if st.Uid != somebody || st.Gid != gid || st.Mode&0o7777 != 0o640 {
			t.Errorf("%s: %d:%d, mode %o", dir, st.Uid, st.Gid, st.Mode)
		}
	}
}

func TestPermissionsAreChecked(t *testing.T) {
	m := sharedMount(t, fs.Options{InPlace: true})
	p := m.write(t, "f", "x")
	for name, args := range map[string][]string{
		"append":   {p, "y"},
		"create":   {m.path("new")},
		"truncate": {p},
	} {
		if out, err := runHelper(t, somebody, name, args...); err == nil {
			t.Errorf("%s is allowed: %s", name, out)
		}
	}
}

func TestOthersAreKeptOutUnlessAllowed(t *testing.T) {
	dir := t.TempDir()
	openUp(t, dir)
	m := mountDir(t, dir, fs.Options{InPlace: true})
	p := m.write(t, "f", "x")
	must(t, os.Chmod(p, 0o666))
	if _, err := runHelper(t, somebody, "append", p, "y"); err == nil {
		t.Error("somebody is let in")
	}
}

// TestWritesClearSetUserID, whoever serves them. The daemon is root, so the lower clears nothing by itself.
func TestWritesClearSetUserID(t *testing.T) {
	for _, v := range []variant{inPlace, cached, elsewhere} {
		for _, writer := range [][]string{{"append", "", "x"}, {"truncate", ""}} {
			t.Run(v.name+" "+writer[0], func(t *testing.T) {
				m := sharedMount(t, v.opts)
				p := m.write(t, "f", "x")
				writer[1] = p
				must(t, os.Chown(p, somebody, somebody))
				for before, after := range map[os.FileMode]uint32{
					os.ModeSetuid | os.ModeSetgid | 0o777: 0o777,
					os.ModeSetgid | 0o767:                 0o2767, // not executable by the group: it means something else
				} {
					must(t, os.Chmod(p, before))
					if out, err := runHelper(t, somebody, writer[0], writer[1:]...); err != nil {
						t.Fatal(out)
					}
					if got := modeOfFile(t, p); got != after {
						t.Errorf("%o is left of %v", got, before)
					}
				}
				must(t, os.Chmod(p, os.ModeSetuid|0o777))
				if out, err := runHelper(t, 0, writer[0], writer[1:]...); err != nil {
					t.Fatal(out)
				}
				if got := modeOfFile(t, p); got != 0o4777 {
					t.Errorf("root's write leaves %o", got)
				}
			})
		}
	}
}

func TestWritesClearSetUserIDOfAFileThatIsOpen(t *testing.T) {
	for _, v := range []variant{inPlace, cached} {
		t.Run(v.name, func(t *testing.T) {
			m := sharedMount(t, v.opts)
			p := m.write(t, "f", "x")
			must(t, os.Chown(p, somebody, somebody))
			must(t, os.Chmod(p, os.ModeSetuid|0o755))
			f, err := os.Open(p) // so that it is served past the daemon, where it can be
			must(t, err)
			defer f.Close()
			if out, err := runHelper(t, somebody, "append", p, "y"); err != nil {
				t.Fatal(out)
			}
			if got := modeOfFile(t, p); got != 0o755 {
				t.Errorf("%o is left", got)
			}
		})
	}
}

func TestSetUserIDIsNotGivenToWhatAStrangerCanWriteUnseen(t *testing.T) {
	m := sharedMount(t, fs.Options{InPlace: true, Passthrough: true})
	needPassthrough(t, m)
	p := m.write(t, "f", "x")
	must(t, os.Chmod(p, 0o666))
	stranger := startHelper(t, somebody, "holdwrite", p)
	want(t, os.Chmod(p, os.ModeSetuid|0o755), unix.EBUSY)
	must(t, stranger.stop())
	eventually(t, "the stranger's file is closed", func() bool { return os.Chmod(p, os.ModeSetuid|0o755) == nil })
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	must(t, f.Chmod(os.ModeSetuid|0o755)) // one's own file: as install(1) and tar(1) do
}

func TestLocksHoldBetweenProcesses(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		f, err := os.OpenFile(m.write(t, "f", "0123456789"), os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		locked := func(kind string) bool {
			out, err := runHelper(t, 0, kind, f.Name())
			if err != nil && out != "error: "+unix.EAGAIN.Error() {
				t.Fatal(kind, out, err)
			}
			return err != nil
		}
		must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
		if !locked("flock") {
			t.Error("flock does not keep others out")
		}
		must(t, unix.Flock(int(f.Fd()), unix.LOCK_UN))
		must(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 2, Len: 1}))
		if !locked("recordlock") {
			t.Error("a record lock does not keep others out")
		}
		must(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}))
		if locked("flock") || locked("recordlock") {
			t.Error("a lock stays when it is given up")
		}
	})
}
