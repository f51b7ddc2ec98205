//go:build linux

package overlay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/treestate"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/strategy"
	"golang.org/x/sys/unix"
)

// envKilled makes this test binary work on a workspace, as a daemon does, and die of it. Its value is the configuration.
const envKilled = "HYPERFS_TEST_KILLED"

// workAndDie makes a checkpoint with tags, changes a file in each of the ways in which a preimage is kept, says the checkpoint's ID, and dies.
func workAndDie(config string) {
	var cfg overlay.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		panic(err)
	}
	w, err := overlay.Open(cfg)
	if err != nil {
		panic(err)
	}
	c, err := w.Snapshot(context.Background(), overlay.SnapshotOptions{Agent: "planner", Subagent: "tests", Message: "before the work"})
	if err != nil {
		panic(err)
	}
	tr := w.Tree()
	n, _, err := tr.Lookup(tr.Root(), "b.txt")
	if err != nil {
		panic(err)
	}
	h, err := tr.Open(n, unix.O_WRONLY, false, nil)
	if err != nil {
		panic(err)
	}
	if _, err := h.WriteAt([]byte("CHANGED"), 0); err != nil {
		panic(err)
	}
	if err := tr.Unlink(tr.Root(), "a.txt"); err != nil {
		panic(err)
	}
	fmt.Println(c.ID)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// killedAtWork has another process do workAndDie, and gives the state and the ID of its checkpoint. The workspace is closed.
func (s *space) killedAtWork() (id string, at treestate.State) {
	s.Helper()
	at = s.state()
	s.ok(s.w.Close())
	config, err := json.Marshal(s.cfg)
	s.ok(err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envKilled+"="+string(config))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, _ := cmd.Output()
	if !cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		s.Fatalf("it was not killed: %s", &stderr)
	}
	return strings.TrimSpace(string(out)), at
}

func (s *space) recover() map[string]overlay.Recoverable {
	s.Helper()
	list, err := s.w.Recover(context.Background())
	s.ok(err)
	all := map[string]overlay.Recoverable{}
	for _, r := range list {
		all[r.ID] = r
	}
	return all
}

func (s *space) rehydrate(id string) checkpoint.Checkpoint {
	s.Helper()
	c, err := s.w.Rehydrate(context.Background(), id)
	s.ok(err)
	return c
}

func TestWhatAKilledDaemonLeftIsRecoveredAndRehydrated(t *testing.T) {
	for _, tier := range []string{"pure-manifest", "posix-link", "tmpfs", "hot"} {
		t.Run(tier, func(t *testing.T) {
			s := spaceWith(t, tierConfig(t, tier))
			head := strings.Repeat("0123456789", 4)
			s.ok(os.Mkdir(filepath.Join(s.dir, ".git"), 0o755))
			s.ok(os.WriteFile(filepath.Join(s.dir, ".git", "HEAD"), []byte(head+"\n"), 0o644))
			id, before := s.killedAtWork()
			s.open()
			r, ok := s.recover()[id]
			if !ok || !r.CanRehydrate || r.Reason != "" || r.Session == s.w.Session() || !strings.HasPrefix(r.Session, "session_") {
				t.Fatalf("it is recovered as %+v", r)
			}
			if r.Agent != "planner" || r.Subagent != "tests" || r.Message != "before the work" || r.Status != checkpoint.Active || r.Dirty == 0 || r.Tier == "" || r.CreatedAt.IsZero() || r.GitHead != head || r.CreatedBy != "snapshot" {
				t.Errorf("its record is %+v", r)
			}
			changed := s.state()
			c := s.rehydrate(id)
			if c.Session != s.w.Session() || !c.UpdatedAt.After(r.UpdatedAt) || !c.CreatedAt.Equal(r.CreatedAt) || c.CreatedBy != r.CreatedBy {
				t.Errorf("rehydrated it is %+v", c)
			}
			s.sameTree(changed)
			if _, ok := s.recover()[id]; ok {
				t.Error("it is this session's own, and is listed")
			}
			s.rehydrate(id) // once more
			s.rollback(id)
			s.same(before)
		})
	}
}

// tierConfig is that of a filled workspace whose preimages are kept in one way.
func tierConfig(t *testing.T, tier string) overlay.Config {
	cfg := overlay.Config{Workspace: filled(t, t.TempDir())(), Tier: tier, Hot: withoutHot, TmpfsDir: ramDir(t)}
	if tier == "hot" {
		cfg.Tier, cfg.Hot = string(strategy.PureManifest), overlay.HotConfig{}
	}
	return cfg
}

func TestEveryOpenedWorkspaceIsASessionOfItsOwn(t *testing.T) {
	s := newSpace(t, fillSmall)
	first := s.w.Session()
	id := s.snapshot()
	if c, err := s.w.Get(id); err != nil || c.Session != first || s.w.Status().Session != first {
		t.Errorf("the checkpoint is %+v, %v; the session %s", c, err, first)
	}
	s.write("new", "x")
	s.rollback(id)
	for _, c := range s.list() {
		if c.Session != first {
			t.Errorf("%s is of %q", c.ID, c.Session)
		}
	}
	s.reopen()
	if s.w.Session() == first {
		t.Error("two sessions have one name")
	}
}

func (s *space) list() []checkpoint.Checkpoint {
	s.Helper()
	list, err := s.w.List(overlay.ListOptions{IncludeInactive: true})
	s.ok(err)
	return list
}

// damages are what may become of a preimage.
var damages = map[string]func(s *space, file string){
	"flipped": func(s *space, file string) { flip(s.T, file) },
	"cut":     func(s *space, file string) { s.ok(os.Truncate(file, 3)) },
	"removed": func(s *space, file string) { s.ok(os.Remove(file)) },
}

func TestRehydrateRefusesADamagedPreimageAndTouchesNothing(t *testing.T) {
	for _, tier := range []string{"pure-manifest", "tmpfs", "hot", "posix-link", "blocks"} {
		for name, damage := range damages {
			t.Run(tier+" "+name, func(t *testing.T) {
				s, path := damageable(t, tier)
				id := s.snapshot()
				s.damageable(tier)
				later := s.snapshot()
				s.write("later", "l")
				if tier == "tmpfs" {
					s.killAndKeepRAM()
				} else {
					s.ok(s.w.Close())
				}
				for _, file := range s.filesOf(tier) {
					damage(s, file)
				}
				s.open()
				s.wantNotRehydratable(id, errs.Integrity, path)
				if r := s.recover()[later]; !r.CanRehydrate && tier != "posix-link" { // an old inode that was changed may be anybody's
					t.Errorf("the one after it can't be rehydrated: %s", r.Reason)
				}
			})
		}
	}
}

// damageable gives a workspace and the path whose preimage is going to be damaged.
func damageable(t *testing.T, tier string) (*space, string) {
	switch tier {
	case "blocks":
		return largeSpace(t, "pure-manifest"), "large"
	case "posix-link":
		return spaceWith(t, tierConfig(t, tier)), "b.txt"
	}
	return spaceWith(t, tierConfig(t, tier)), "dir/c.txt"
}

func (s *space) damageable(tier string) {
	s.Helper()
	switch tier {
	case "blocks":
		s.overwrite("large", "changed", 5000)
	case "posix-link":
		s.unlink("b.txt")
	default:
		s.overwrite("dir/c.txt", "changed", 0)
	}
}

// filesOf gives the files that have the preimages.
func (s *space) filesOf(tier string) []string {
	s.Helper()
	if tier == "posix-link" {
		return s.glob(filepath.Join(s.dir, overlay.StoreName, "trash", "*"))
	}
	return s.preimages()
}

// killAndKeepRAM ends the workspace as a kill does, as far as preimages in RAM go: they are back there when it returns.
func (s *space) killAndKeepRAM() {
	s.Helper()
	saved := s.T.TempDir()
	s.ok(os.CopyFS(saved, os.DirFS(s.cfg.TmpfsDir)))
	s.ok(s.w.Close())
	for _, file := range s.storeFiles("backup") {
		s.ok(os.Remove(file))
	}
	s.ok(os.RemoveAll(s.cfg.TmpfsDir))
	s.ok(os.CopyFS(s.cfg.TmpfsDir, os.DirFS(saved)))
}

// wantNotRehydratable fails the test unless a checkpoint can neither be rehydrated nor rolled back to, for a reason that says what, and all stays as it is.
func (s *space) wantNotRehydratable(id string, code errs.Code, say ...string) {
	s.Helper()
	tree, records := s.state(), s.list()
	r, ok := s.recover()[id]
	if !ok || r.CanRehydrate {
		s.Errorf("it is recovered as %+v", r)
	}
	c, err := s.w.Rehydrate(context.Background(), id)
	wantCode(s.T, err, code)
	for _, part := range say {
		if !strings.Contains(r.Reason, part) || !strings.Contains(err.Error(), part) {
			s.Errorf("the reasons are %q and %v, want ones with %q", r.Reason, err, part)
		}
	}
	if c.Session == s.w.Session() {
		s.Error("it was taken over")
	}
	_, err = s.w.Rollback(context.Background(), id, overlay.RollbackOptions{})
	wantCode(s.T, err, code)
	s.sameTree(tree)
	if now := s.list(); fmt.Sprint(now) != fmt.Sprint(records) {
		s.Errorf("the records were\n%v\nand are\n%v", records, now)
	}
}

func TestAfterARebootWhatWasInRAMIsGone(t *testing.T) {
	s := spaceWith(t, tierConfig(t, "tmpfs"))
	id, _ := s.killedAtWork()
	s.ok(os.RemoveAll(s.cfg.TmpfsDir))
	s.ok(os.Mkdir(s.cfg.TmpfsDir, 0o700))
	s.open()
	if r := s.recover()[id]; r.Recoverable != checkpoint.RecoverableNot {
		t.Errorf("it is recoverable: %q", r.Recoverable)
	}
	s.wantNotRehydratable(id, errs.Integrity, "b.txt", "RAM")
}

func TestRehydrateRefusesWhatHasEnded(t *testing.T) {
	s := newSpace(t, fillSmall)
	dropped, promoted := s.snapshot(), s.snapshot()
	s.ok(s.w.Drop(context.Background(), dropped))
	_, err := s.w.Promote(context.Background(), promoted, nil)
	s.ok(err)
	s.reopen()
	s.wantNotRehydratable(dropped, errs.Rollback, "disposed")
	s.wantNotRehydratable(promoted, errs.Rollback, "promoted")
	_, err = s.w.Rehydrate(context.Background(), "ckpt_none")
	wantCode(t, err, errs.NotFound)
}

func TestADamagedRecordIsNamedAndHidesNoOther(t *testing.T) {
	s := newSpace(t, fillSmall)
	before := s.state()
	id, broken := s.snapshot(), s.snapshot()
	s.write("b.txt", "changed")
	s.ok(s.w.Store().Update(func(tx *checkpoint.Tx) error { return tx.Set([]byte("k"+broken), []byte(`{"id": 5`)) }))
	s.reopen()
	all := s.recover()
	if len(all) != 2 || !all[id].CanRehydrate || all[broken].CanRehydrate || !strings.Contains(all[broken].Reason, "damaged") {
		t.Errorf("there are %+v", all)
	}
	_, err := s.w.Rehydrate(context.Background(), broken)
	wantCode(t, err, errs.Integrity)
	_, err = s.w.Rollback(context.Background(), broken, overlay.RollbackOptions{})
	wantCode(t, err, errs.Integrity)
	problems, err := s.w.Fsck(context.Background(), false)
	s.ok(err)
	if !slices.ContainsFunc(problems, func(p overlay.Problem) bool {
		return p.Where == broken && strings.Contains(p.What, "its record is damaged")
	}) {
		t.Errorf("fsck finds %+v", problems)
	}
	s.ok(s.w.Drop(context.Background(), broken))
	s.reopen()
	if all := s.recover(); len(all) != 1 {
		t.Errorf("there are %+v", all)
	}
	s.rehydrate(id)
	s.rollback(id)
	s.same(before)
}

func TestRehydrateRefusesWhatWasChangedWhileNobodyWatched(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	s.ok(s.w.Close())
	s.ok(os.WriteFile(filepath.Join(s.dir, "dir/c.txt"), []byte("outside"), 0o644))
	s.open()
	s.wantNotRehydratable(id, errs.Integrity, "dir/c.txt", "while hyperfs was not running")
}

func TestAWorkspaceThatWasRenamedJustWorks(t *testing.T) {
	s := newSpace(t, fillSmall)
	before := s.state()
	id := s.snapshot()
	s.overwrite("dir/c.txt", "changed", 0)
	s.unlink("b.txt")
	s.ok(s.w.Close())
	s.ok(os.Rename(s.dir, s.dir+"-moved"))
	s.dir += "-moved"
	s.cfg.Workspace = s.dir
	s.open()
	s.rehydrate(id)
	s.rollback(id)
	s.same(before)
}

func TestACopiedWorkspaceIsRefusedAndCanBeInspected(t *testing.T) {
	s := newSpace(t, fillSmall)
	id := s.snapshot()
	s.overwrite("dir/c.txt", "changed", 0)
	s.ok(s.w.Close())
	copied := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", s.dir, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, err := overlay.Open(overlay.Config{Workspace: copied, TmpfsDir: s.cfg.TmpfsDir})
	wantCode(t, err, errs.Integrity)
	store := filepath.Join(copied, overlay.StoreName)
	i, err := checkpoint.Inspect(store, overlay.MetaOwner)
	if err != nil || i.Err != nil || len(i.Checkpoints) != 1 || i.Checkpoints[0].ID != id {
		t.Fatalf("inspection gave %+v, %v", i, err)
	}
	wantCode(t, overlay.CheckOwner(copied, store, i.Owner), errs.Integrity)
	s.ok(overlay.CheckOwner(s.dir, filepath.Join(s.dir, overlay.StoreName), i.Owner))
	s.open()
	s.rollback(id)
}

func TestWithoutDurableJournalsNothingOutlivesTheDaemon(t *testing.T) {
	for _, how := range []string{"closed", "killed"} {
		t.Run(how, func(t *testing.T) {
			cfg := tierConfig(t, "pure-manifest")
			s := spaceWith(t, cfg)
			before := s.state()
			durable := s.snapshot()
			s.ok(s.w.Close())
			s.cfg.NoJournals = true
			var gone string
			if how == "closed" {
				s.open()
				gone = s.snapshot()
				s.overwrite("b.txt", "CHANGED", 0)
				s.unlink("a.txt")
				if list := s.recover(); len(list) != 0 {
					t.Errorf("there are %+v", list)
				}
				_, err := s.w.Rehydrate(context.Background(), durable)
				wantCode(t, err, errs.Unsupported)
				s.ok(s.w.Close())
			} else {
				s.w, _ = overlay.Open(cfg) // killedAtWork closes it
				gone, _ = s.killedAtWork()
			}
			changed := s.state()
			s.cfg.NoJournals = false
			s.open()
			s.sameTree(changed)
			if r := s.recover()[gone]; r.Status != checkpoint.Disposed || r.CanRehydrate {
				t.Errorf("it is recovered as %+v", r)
			}
			s.rehydrate(durable) // which an earlier daemon was to keep
			s.rollback(durable)
			s.same(before)
		})
	}
}

func TestWithoutDurableJournalsTheStoreIsFreed(t *testing.T) {
	cfg := tierConfig(t, "pure-manifest")
	cfg.NoJournals = true
	s := spaceWith(t, cfg)
	s.snapshot()
	s.overwrite("b.txt", "CHANGED", 0)
	s.unlink("a.txt")
	if len(s.preimages()) == 0 {
		t.Fatal("nothing was saved")
	}
	s.ok(s.w.Close())
	if left := append(s.preimages(), s.filesOf("posix-link")...); len(left) > 0 {
		t.Errorf("there are still %v", left)
	}
	s.open()
	if list, err := s.w.List(overlay.ListOptions{}); err != nil || len(list) != 0 {
		t.Errorf("there are %v, %v", list, err)
	}
}
