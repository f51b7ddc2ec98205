//go:build linux

package overlay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

func TestStateIsExactWhileTheTreeChanges(t *testing.T) {
	const size = 64 << 10
	s := spaceWith(t, overlay.Config{Workspace: t.TempDir(), LargeMin: 16 << 10})
	s.mkdir("d")
	for _, name := range []string{"d/moved", "d/written", "d/large", "d/linked"} {
		s.write(name, name)
	}
	s.overwrite("d/large", string(make([]byte, size)), 0)
	p := s.pinNow()
	stop := make(chan struct{})
	var readers sync.WaitGroup
	var rounds atomic.Int64
	for range 3 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for {
				select {
				case <-stop:
					return
				default:
					p.same()
					rounds.Add(1)
				}
			}
		}()
	}
	r := rand.New(rand.NewPCG(1, 2))
	ids := []string{s.snapshot()}
	for i := 0; i < 300 || rounds.Load() < 50; i++ {
		s.rename("d/moved", "m", 0)
		s.rename("d", "e", 0)
		s.overwrite("e/large", fmt.Sprint(i), r.Int64N(size))
		s.write("e/written", fmt.Sprint(i))
		s.link("e/linked", "e/again")
		s.unlink("e/linked")
		s.rename("e/again", "e/linked", 0)
		s.rename("e", "d", 0)
		s.rename("m", "d/moved", 0)
		switch i % 20 {
		case 5, 12:
			ids = append(ids, s.snapshot())
		case 10:
			s.rollback(ids[r.IntN(len(ids))])
		case 18:
			k := r.IntN(len(ids))
			s.ok(s.w.Drop(context.Background(), ids[k]))
			ids = append(ids[:k], ids[k+1:]...)
			ids = append(ids, s.snapshot())
		}
	}
	close(stop)
	readers.Wait()
	s.sound()
}

func TestRollbackLeavesAPinnedStateItsPreimages(t *testing.T) {
	cfg := overlay.Config{Workspace: t.TempDir(), Tier: string(strategy.PureManifest), Hot: overlay.HotConfig{Off: true}}
	fillSmall(cfg.Workspace)
	s := spaceWith(t, cfg)
	id := s.snapshot()
	p := s.pinNow()
	for round := range 3 {
		s.overwrite("b.txt", fmt.Sprint(round), 0)
		_, err := s.w.Rollback(context.Background(), id, overlay.RollbackOptions{Discard: true})
		s.ok(err)
		s.overwrite("b.txt", "later", 0)
		p.same()
	}
	s.ok(s.w.Drop(context.Background(), id))
	_, err := s.w.GC(context.Background())
	s.ok(err)
	p.same()
	s.sound()
}

func TestStatesOfOneEpochAreOne(t *testing.T) {
	s := newSpace(t, fillSmall)
	p := s.pinNow()
	q := &pinned{space: s, pin: p.pin, want: p.want}
	q.open()
	s.write("b.txt", "later")
	p.state.Close()
	p.state.Close() // once too often
	q.same()
	s.snapshot()
	s.unlink("b.txt")
	q.same()
}

func TestStateIsKeptForAsLongAsItIsOpen(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	p := &pinned{space: s, want: s.seen()}
	var err error
	p.state, err = s.w.OpenCheckpoint(id)
	s.ok(err)
	s.unlink("b.txt")
	s.write("dir/c.txt", "later")
	s.ok(s.w.Drop(context.Background(), id)) // the last one: nothing else is to be protected
	s.write("dir/sub/d.txt", "later")
	_, err = s.w.GC(context.Background())
	s.ok(err)
	p.same()
	p.state.Close()
	s.reopen() // which waits for what the last one has left to be freed
	if d := s.w.Diagnostics(); d.TrashFiles+d.Backups != 0 {
		t.Errorf("%d old inodes and %d preimages are left when nothing needs them", d.TrashFiles, d.Backups)
	}
}

func TestOnlyAnActiveCheckpointCanBePinned(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	failed := errors.New("no")
	pin := func(id string, err error) error {
		return s.w.Pin(id, "me", func(*checkpoint.Tx, checkpoint.Checkpoint) error { return err })
	}
	if err := pin(id, failed); !errors.Is(err, failed) || len(s.w.Pins()) != 0 {
		t.Errorf("it was pinned, and %v", err)
	}
	s.ok(s.w.Drop(context.Background(), id))
	if err := pin(id, nil); err == nil {
		t.Error("a dropped checkpoint was pinned")
	}
	if err := pin(s.w.Reserve(), nil); err == nil {
		t.Error("a checkpoint that was never made was pinned")
	}
}

func TestStateDoesNotGuessWhatWasChangedOutside(t *testing.T) {
	s := newSpace(t, fillSmall)
	p := s.pinNow()
	c, sub := p.id("dir/c.txt"), p.id("dir/sub")
	s.overwrite("b.txt", "later", 0)
	p.state.Close()
	s.ok(s.w.Close())
	s.ok(os.WriteFile(filepath.Join(s.dir, "dir/c.txt"), []byte("outside"), 0o644))
	s.ok(os.WriteFile(filepath.Join(s.dir, "b.txt"), []byte("outside"), 0o644)) // its preimage is there
	s.ok(os.WriteFile(filepath.Join(s.dir, "dir/sub/new"), nil, 0o644))
	s.open()
	p.open()
	if _, err := p.state.Open(c); err != unix.EIO {
		t.Errorf("opening what was changed outside gives %v, want EIO", err)
	}
	if _, err := p.state.Attr(c); err != unix.EIO {
		t.Errorf("its attributes are %v, want EIO", err)
	}
	if _, err := p.state.List(sub); err != unix.EIO {
		t.Errorf("listing what was changed outside gives %v, want EIO", err)
	}
	if _, err := p.state.Lookup(sub, "d.txt"); err != unix.EIO {
		t.Errorf("looking up in it gives %v, want EIO", err)
	}
	f, err := p.state.Open(p.id("b.txt"))
	s.ok(err)
	defer f.Close()
	b := make([]byte, 20)
	if n, err := f.ReadAt(b, 0); err != nil || string(b[:n]) != "second" {
		t.Errorf("b.txt held %q, %v", b[:n], err)
	}
}

func TestStateRefusesDamagedPreimages(t *testing.T) {
	cfg := overlay.Config{Workspace: t.TempDir(), Tier: string(strategy.PureManifest), Hot: overlay.HotConfig{Off: true}}
	fillSmall(cfg.Workspace)
	s := spaceWith(t, cfg)
	p := s.pinNow()
	s.overwrite("b.txt", "later", 0)
	backups, err := filepath.Glob(filepath.Join(s.dir, overlay.StoreName, "backup", "*-*"))
	s.ok(err)
	if len(backups) != 1 {
		t.Fatalf("the preimages are %q", backups)
	}
	s.ok(os.WriteFile(backups[0], []byte("SECOND"), 0o600))
	if _, err := p.state.Open(p.id("b.txt")); err != unix.EIO {
		t.Errorf("a damaged preimage gives %v, want EIO", err)
	}
}

func TestStateHidesOtherFilesystemsAndTheStore(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	s := newSpace(t, fillSmall)
	s.mkdir("other")
	p := s.pinNow()
	at := filepath.Join(s.dir, "other")
	s.ok(unix.Mount("tmpfs", at, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	for _, name := range []string{"other", overlay.StoreName, "..", ".", "", "dir/c.txt"} {
		if _, err := p.state.Lookup(p.state.Root(), name); err != unix.ENOENT {
			t.Errorf("looking up %q gives %v, want ENOENT", name, err)
		}
	}
	list, err := p.state.List(p.state.Root())
	s.ok(err)
	for _, e := range list {
		if e.Name == "other" || e.Name == overlay.StoreName {
			t.Errorf("%s is listed", e.Name)
		}
	}
}

func TestStateOfALargeDirectory(t *testing.T) {
	const files = 20_000
	s := newSpace(t, func(dir string) {
		_ = os.Mkdir(dir+"/d", 0o755)
		for i := range files {
			_ = unix.Mknod(fmt.Sprintf("%s/d/%d\xff", dir, i), unix.S_IFREG|0o644, 0)
		}
	})
	p := s.pinNow()
	s.unlink("d/7\xff")
	s.write("d/new", "")
	s.rename("d/8\xff", "d/nine", 0)
	list, err := p.state.List(p.id("d"))
	s.ok(err)
	have := map[string]bool{}
	for _, e := range list {
		have[e.Name] = e.Type == unix.S_IFREG && e.Ino != 0
	}
	if len(list) != files || len(have) != files || !have["7\xff"] || !have["8\xff"] {
		t.Errorf("%d names are listed, want %d", len(list), files)
	}
}

func TestHolesOfAStateStayHoles(t *testing.T) {
	const size, step = 1 << 20, 64 << 10
	s := spaceWith(t, overlay.Config{Workspace: t.TempDir(), LargeMin: 1})
	s.write("f", "")
	for _, at := range []int64{0, 4 * step, 10 * step} {
		s.overwrite("f", string(make([]byte, 100)), at)
	}
	_, err := s.tr.SetAttr(s.at("f"), nil, &overlay.SetAttr{Valid: overlay.SetSize, Size: size})
	s.ok(err)
	p := s.pinNow()
	f, err := p.state.Open(p.id("f"))
	s.ok(err)
	defer f.Close()
	check := func(data ...int64) {
		t.Helper()
		var got []int64
		for off := int64(0); ; {
			from, err := f.Lseek(off, unix.SEEK_DATA)
			if err == unix.ENXIO {
				break
			}
			s.ok(err)
			got = append(got, from)
			off, err = f.Lseek(from, unix.SEEK_HOLE)
			s.ok(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(data) {
			t.Errorf("there is data at %v, want %v", got, data)
		}
		if at, err := f.Lseek(size-1, unix.SEEK_HOLE); err != nil || at != size-1 {
			t.Errorf("the hole at the end is at %d, %v", at, err)
		}
		if _, err := f.Lseek(size, unix.SEEK_DATA); err != unix.ENXIO {
			t.Errorf("behind the end there is data: %v", err)
		}
	}
	check(0, 4*step, 10*step)
	s.overwrite("f", "X", 4*step)
	_, err = s.tr.SetAttr(s.at("f"), nil, &overlay.SetAttr{Valid: overlay.SetSize, Size: 5 * step})
	s.ok(err)
	check(0, 4*step, 10*step)
	copied, err := os.Create(filepath.Join(t.TempDir(), "copy"))
	s.ok(err)
	defer copied.Close()
	s.ok(f.CloneTo(int(copied.Fd())))
	var st unix.Stat_t
	s.ok(unix.Fstat(int(copied.Fd()), &st))
	if st.Size != size || st.Blocks*512 > 8*step {
		t.Errorf("the copy has %d bytes, and takes %d", st.Size, st.Blocks*512)
	}
}

// asOrdinaryUser runs the test again in a process of a user without rights, and reports whether this is that process.
func asOrdinaryUser(t *testing.T) bool {
	if os.Geteuid() != 0 {
		return true
	}
	dir := ramDir(t)
	bin := filepath.Join(dir, "test")
	if out, err := exec.Command("cp", os.Args[0], bin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	home := filepath.Join(dir, "home")
	for _, err := range []error{os.Mkdir(home, 0o700), os.Chown(home, 65534, 65534), os.Chmod(dir, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(bin, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = home, append(os.Environ(), "TMPDIR="+home, "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
	return false
}

func TestStateShowsWhatItsOwnerHasShut(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	s := newSpace(t, fillSmall)
	p := s.pinNow()
	chmod := func(path string, mode uint32) {
		_, err := s.tr.SetAttr(s.at(path), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: mode})
		s.ok(err)
	}
	chmod("dir/c.txt", 0)
	chmod("dir/sub", 0)
	chmod("dir", 0)
	p.same()
	p.state.Close()
	s.reopen()
	p.open()
	p.same()
	for path, want := range map[string]uint32{"dir": 0, "b.txt": 0o644} {
		if st, err := os.Lstat(filepath.Join(s.dir, path)); err != nil || uint32(st.Mode().Perm()) != want {
			t.Errorf("%s has the mode %v now, %v", path, st.Mode(), err)
		}
	}
	s.ok(os.Chmod(filepath.Join(s.dir, "dir"), 0o700))
	s.ok(os.Chmod(filepath.Join(s.dir, "dir/sub"), 0o700))
}

func TestPinnedStatesSurviveACutRollback(t *testing.T) {
	for _, tier := range []string{"pure-manifest", "posix-link", "pure-manifest hot"} {
		for _, at := range cutPoints {
			for _, more := range []int{0, 100} {
				if more > 0 && tier != "pure-manifest" {
					continue
				}
				t.Run(fmt.Sprintf("%s %s, %d more changes", tier, at, more), func(t *testing.T) {
					s, id, before := cutSpace(t, tier, more)
					p := &pinned{space: s, want: before}
					p.pin.Owner = "first"
					s.ok(s.w.Pin(id, "first", func(_ *checkpoint.Tx, c checkpoint.Checkpoint) error { p.pin.Epoch = c.Epoch; return nil }))
					q := s.pinNow()
					s.unlink("dir/sub/d.txt")
					s.overwrite("large", "CHANGED AGAIN", 5000)
					q.same()
					q.state.Close()
					s.killedAt(id, at)
					s.open()
					s.sound()
					for _, x := range []*pinned{p, q} {
						x.open()
						x.same()
					}
					s.undo()
					p.same()
					q.same()
				})
			}
		}
	}
}

// TestTheFirstChangeIsNotSeen by readers of a state who look while it is made: before that the log has nothing, and after it the live tree has something else.
func TestTheFirstChangeIsNotSeen(t *testing.T) {
	const files = 60
	name := func(i int) string { return fmt.Sprint("d/", i) }
	s := newSpace(t, func(dir string) {
		_ = os.Mkdir(dir+"/d", 0o755)
		for i := range files {
			_ = os.WriteFile(filepath.Join(dir, name(i)), []byte("old"), 0o644)
		}
	})
	for round := 0; round < 15 && !t.Failed(); round++ {
		id := s.snapshot()
		p := &pinned{space: s}
		var err error
		p.state, err = s.w.OpenCheckpoint(id)
		s.ok(err)
		ids := make([]checkpoint.ID, files)
		for i := range ids {
			ids[i] = p.id(name(i))
		}
		var next atomic.Int64
		var readers sync.WaitGroup
		for range 3 {
			readers.Add(1)
			go func() {
				defer readers.Done()
				for {
					i := next.Load()
					if i >= files {
						return
					}
					if err := isOld(p.state, p.id("d"), fmt.Sprint(i), ids[i]); err != nil {
						t.Errorf("round %d, %d: %v", round, i, err)
						return
					}
				}
			}()
		}
		for i := range files {
			_, err := s.tr.SetAttr(s.at(name(i)), nil, &overlay.SetAttr{Valid: overlay.SetMode, Mode: 0o600})
			s.ok(err)
			s.overwrite(name(i), "NEW", 0)
			s.link(name(i), "linked")
			s.unlink("linked")
			s.unlink(name(i))
			next.Add(1)
		}
		readers.Wait()
		s.rollback(id)
		p.state.Close()
		s.ok(s.w.Drop(context.Background(), id))
	}
}

// isOld proves that a file is in a directory and what it was.
func isOld(st overlay.State, dir checkpoint.ID, name string, id checkpoint.ID) error {
	f, err := st.Open(id)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 4)
	if n, err := f.ReadAt(b, 0); err != nil || string(b[:n]) != "old" {
		return fmt.Errorf("it holds %q, %v", b[:n], err)
	}
	if a, err := st.Attr(id); err != nil || a.Mode != unix.S_IFREG|0o644 || a.Nlink != 1 {
		return fmt.Errorf("its mode is %o, it has %d names, %v", a.Mode, a.Nlink, err)
	}
	if e, err := st.Lookup(dir, name); err != nil || e.ID != id {
		return fmt.Errorf("looking it up gives %v, %v", e, err)
	}
	return nil
}
