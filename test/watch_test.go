package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/inotify"
	"github.com/hyperfs/hyperfs/internal/treestate"
)

// envWatch makes this process one that watches: its arguments, in the directory that is the value. It prints what it hears of.
const envWatch = "HYPERFS_TEST_WATCH"

func watchAndPrint(dir string) error {
	w, err := inotify.Watch(dir, os.Args[1:]...)
	if err != nil {
		return err
	}
	fmt.Println("watching")
	for {
		seen, err := w.Read()
		if err != nil {
			return err
		}
		for _, s := range seen {
			fmt.Println(s)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// watchIn watches files and directories.
func watchIn(t *testing.T, dir string, names ...string) *inotify.Watcher {
	t.Helper()
	w, err := inotify.Watch(dir, names...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// watchedWork changes what a test watches, in all the ways that there are.
const watchedWork = `echo something else >changed; chmod 600 mode; echo r >tmp; mv tmp replaced; rm removed; mv renamed dir/other; ln linked dir/again
	ln -sfn b link; rm -r gone; mkdir -p dir/new/tree; echo n >dir/new/tree/f; mv dir/sub moved; touch -d 2001-02-03 touched; echo more >>dir/shared; mkfifo fifo`

const watchedSetup = `for f in changed mode replaced removed renamed linked touched; do echo $f >$f; done; mkdir -p dir/sub/deep gone/below; echo f >gone/below/f; echo s >dir/shared
	ln dir/shared dir/sub/shared; ln -s a link`

var watchedNames = []string{"", "dir", "dir/sub", "changed", "mode", "replaced", "linked", "touched", "dir/shared"}

// whatWasDone is what who watches hears when the work is taken back.
var whatWasDone = []string{
	": MODIFY changed", "changed: MODIFY", ": ATTRIB mode", "mode: ATTRIB", ": DELETE replaced", ": CREATE replaced", "replaced: DELETE_SELF",
	": CREATE removed", ": CREATE renamed", "dir: DELETE other", "dir: DELETE again", "linked: ATTRIB", ": DELETE link", ": CREATE link", ": CREATE gone/",
	"dir: DELETE new/", ": DELETE moved/", "dir: CREATE sub/", ": ATTRIB touched|: MODIFY touched", "touched: ATTRIB|touched: MODIFY", "dir: MODIFY shared", "dir/shared: MODIFY", ": DELETE fifo",
}

func TestProgramsThatWatchHearOfRollbacksAndUndos(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	script(t, ws, nil, watchedSetup)
	sub := mountForTest(t, ws, mountOptions{})
	hyperfs := func(args ...string) { t.Helper(); hyperfsIn(t, ws, nil, args...) }
	for _, branch := range []string{"main", "b"} {
		dir := ws
		if branch != "main" {
			hyperfs("fork", branch)
			dir = filepath.Join(ws, ".hyperfs/branches", branch)
		}
		hyperfs("snapshot", "--branch", branch)
		before := plainState(t, dir)
		script(t, dir, nil, watchedWork)
		after := plainState(t, dir)
		w := watchIn(t, dir, watchedNames[:2]...)
		for _, name := range append([]string{"dir/new"}, watchedNames[3:]...) {
			if err := w.Add(dir, name); err != nil {
				t.Fatal(err)
			}
		}
		hyperfs("rollback", "--branch", branch)
		w.Sees(t, whatWasDone...)
		w.Lacks(t, ": DELETE removed", ": DELETE changed", ": CREATE changed", ": MODIFY mode", "linked: DELETE_SELF", ": ATTRIB dir/", ": ATTRIB removed", ": ATTRIB link")
		if diff := treestate.Diff(before, plainState(t, dir)); len(diff) > 0 {
			t.Errorf("%s, after the rollback:\n\t%s", branch, strings.Join(diff, "\n\t"))
		}
		w = watchIn(t, dir, watchedNames...)
		hyperfs("undo", "--branch", branch)
		w.Sees(t, ": MODIFY changed", "changed: MODIFY", ": DELETE removed", ": DELETE renamed", "dir: CREATE other", "dir: CREATE new/", ": DELETE gone/", ": CREATE moved/",
			"dir: DELETE sub/", "replaced: DELETE_SELF", ": CREATE fifo")
		if diff := treestate.Diff(after, plainState(t, dir)); len(diff) > 0 {
			t.Errorf("%s, after the undo:\n\t%s", branch, strings.Join(diff, "\n\t"))
		}
	}
	if err := sub.Check(true); err != nil {
		t.Error(err)
	}
}

func TestProgramsThatWatchHearOfMerges(t *testing.T) {
	t.Parallel()
	needMount(t)
	ws := newWorkspace(t)
	script(t, ws, nil, watchedSetup)
	sub := mountForTest(t, ws, mountOptions{})
	hyperfs := func(args ...string) { t.Helper(); hyperfsIn(t, ws, nil, args...) }
	hyperfs("fork", "b")
	hyperfs("fork", "--branch", "b", "c")
	of := func(branch string) string { return filepath.Join(ws, ".hyperfs/branches", branch) }
	script(t, of("c"), nil, `echo something else >changed; chmod 600 mode; rm removed; mkdir -p dir/new/tree; echo n >dir/new/tree/f; echo m >made; mv renamed dir/other`)
	for _, into := range []struct{ dir, branch string }{{of("b"), "c"}, {ws, "b"}} {
		w := watchIn(t, into.dir, "", "dir", "changed", "mode", "removed", "renamed")
		hyperfs("merge", into.branch)
		w.Sees(t, ": MODIFY changed|: CREATE changed", "changed: MODIFY|changed: DELETE_SELF", "mode: ATTRIB", ": DELETE removed", "removed: DELETE_SELF", "dir: CREATE new/", ": CREATE made", ": DELETE renamed", "dir: CREATE other")
		script(t, into.dir, nil, `test "$(cat changed)" = "something else"; test "$(cat dir/new/tree/f)" = n; test ! -e removed`)
	}
	if err := sub.Check(true); err != nil {
		t.Error(err)
	}
}

func TestWhoWatchesInABranchAtTheWorkspacesPathHearsOfItsRollback(t *testing.T) {
	t.Parallel()
	needMount(t)
	bin, err := checked.path()
	if err != nil {
		t.Fatal(err)
	}
	us, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ws, spare := newWorkspace(t), memory(t)
	script(t, ws, nil, `mkdir d; echo old >d/f; echo main >main`)
	sub := mountForTest(t, ws, mountOptions{})
	script(t, spare, []string{"HYPERFS=" + bin, "WS=" + ws, "WATCH=" + us}, hearIn+`
		$HYPERFS -C $WS fork b
		$HYPERFS -C $WS exec --branch b --env HYPERFS_TEST_WATCH=$WS -- $WATCH . d d/f >heard & watch=$!
		trap 'kill $watch || true; wait $watch || true' EXIT
		hear watching
		$HYPERFS -C $WS snapshot --branch b
		$HYPERFS -C $WS exec --branch b -- sh -c 'echo new >d/f; rm main; echo >made'
		hear ".: CREATE made"; : >heard
		$HYPERFS -C $WS rollback --branch b
		hear "d/f: MODIFY"; hear "d: MODIFY f"; hear ".: DELETE made"; hear ".: CREATE main"`)
	if err := sub.Check(true); err != nil {
		t.Error(err)
	}
}

// hearIn waits until a line is in the file heard.
const hearIn = `
	hear() { for i in $(seq 200); do if grep -qxF "$1" heard; then return; fi; sleep 0.05; done; echo "nothing heard of: $1"; cat heard; exit 1; }
`

func TestAnOrdinaryUserWhoWatchesHearsOfARollback(t *testing.T) {
	t.Parallel()
	bin, ws, who := ordinaryWorkspace(t)
	us, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spare := memory(t)
	script(t, "/", nil, fmt.Sprintf("cp %q %[2]q/watch; chmod 755 %[2]q %[2]q/watch", us, spare))
	if who != nil {
		if err := os.Chown(spare, int(who.Uid), int(who.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = detach(ws) }) // if something fails before
	scriptAs(t, who, []string{"HYPERFS=" + bin, "WS=" + ws, "SPARE=" + spare, "HOME=" + spare}, hearIn+`
		cd "$WS"; mkdir shut open; echo a >shut/file; echo b >shut/fixed; echo c >open/file; echo d >open/only; chmod 444 shut/fixed; chmod 555 shut
		"$HYPERFS" mount .; cd .; "$HYPERFS" snapshot
		chmod 755 shut; echo changed >shut/file; rm -f shut/fixed; echo new >shut/new; chmod 555 shut
		echo changed >open/file; chmod 400 open/file; rm open/only
		cd "$SPARE"
		HYPERFS_TEST_WATCH="$WS" ./watch shut open shut/file open/file >heard & watch=$!
		trap 'kill $watch || true; cd /; "$HYPERFS" unmount "$WS"' EXIT
		hear watching
		"$HYPERFS" -C "$WS" rollback
		hear "shut: MODIFY file"; hear "shut/file: MODIFY"; hear "shut: CREATE fixed"; hear "shut: DELETE new"; hear "open/file: MODIFY"; hear "open: CREATE only"
		test "$(cat "$WS/shut/fixed")" = b; test "$(stat -c %a "$WS/shut")" = 555; test "$(stat -c %a "$WS/shut/fixed")" = 444; test ! -e "$WS/shut/new"
		"$HYPERFS" -C "$WS" fsck --deep`)
}
