package test

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// ordinaryUser gives what makes a command run as somebody who is not root: nil if the tests do already.
func ordinaryUser(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("nobody") // fusermount3 wants one with a name
	if err != nil {
		missing(t, err.Error())
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// device has /dev/fuse open to everybody while a test needs that: several may.
var device struct {
	sync.Mutex
	users int
	mode  os.FileMode // as it was
}

// openDevice lets everybody use FUSE, as distributions ship it, until the test ends.
func openDevice(t *testing.T) {
	t.Helper()
	const path = "/dev/fuse"
	device.Lock()
	defer device.Unlock()
	if device.users == 0 {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if device.mode = st.Mode().Perm(); device.mode&0o006 != 0o006 {
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	device.users++
	t.Cleanup(func() {
		device.Lock()
		defer device.Unlock()
		if device.users--; device.users == 0 && device.mode&0o006 != 0o006 {
			_ = os.Chmod(path, device.mode)
		}
	})
}

// ordinaryWorkspace gives the program and a workspace to somebody who is not root, and who may mount. Programs are those that are needed besides.
func ordinaryWorkspace(t *testing.T, programs ...string) (bin, ws string, who *syscall.Credential) {
	t.Helper()
	needMount(t)
	for _, name := range append(programs, "fusermount3") {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, err.Error())
		}
	}
	who = ordinaryUser(t)
	openDevice(t)
	bin, err := checked.path()
	if err != nil {
		t.Fatal(err)
	}
	ws = newWorkspace(t)
	for _, dir := range []string{filepath.Dir(bin), filepath.Dir(ws)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if who != nil {
		if err := os.Chown(ws, int(who.Uid), int(who.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return bin, ws, who
}

// scriptAs runs a script of bash in the root directory as somebody, and fails the test if one of its commands fails.
func scriptAs(t *testing.T, who *syscall.Credential, env []string, text string) {
	t.Helper()
	cmd := exec.Command("bash", "-euc", text)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, text, out)
	}
}

func TestAnOrdinaryUserRollsBackWhatTheyMayNotWriteTo(t *testing.T) {
	t.Parallel()
	bin, ws, who := ordinaryWorkspace(t)
	do := func(text string) {
		t.Helper()
		scriptAs(t, who, []string{"HYPERFS=" + bin, "WS=" + ws}, text)
	}
	do(`cd "$WS"; mkdir -p shut/below/deep kept; echo a >shut/a; echo b >shut/below/b; echo c >shut/below/deep/c
		echo secret >secret; echo d >kept/d; ln kept/d kept/other; ln -s a shut/link
		chmod 000 secret; chmod 555 shut/below/deep shut/below kept; chmod 000 shut`)
	mounted := func(text string) treestate.State { // and gives what is there afterwards, which root can't see through the mount
		t.Helper()
		do(`cd "$WS"; "$HYPERFS" mount .`)
		defer func() { _, _ = checked.run(nil, "unmount", ws) }() // if something fails before
		do(`cd "$WS"; ` + text)
		do(`cd /; "$HYPERFS" unmount "$WS"`)
		return plainState(t, ws)
	}
	before := plainState(t, ws)
	after := mounted(`"$HYPERFS" snapshot; cd .
		chmod 755 shut shut/below shut/below/deep kept
		echo more >>shut/a; rm -r shut/below; mkdir shut/below; echo new >shut/below/n; rm -f secret; echo public >secret
		echo changed >kept/d; rm kept/other; ln -sfn nowhere shut/link; chmod 555 shut/below kept; chmod 111 shut`)
	if len(treestate.Diff(before, after)) == 0 {
		t.Fatal("nothing has changed")
	}
	if diff := treestate.Diff(after, mounted(`"$HYPERFS" rollback; "$HYPERFS" diff; "$HYPERFS" undo; "$HYPERFS" diff | grep shut/below/n; "$HYPERFS" patch >/dev/null`)); len(diff) > 0 {
		t.Errorf("after the undo:\n\t%s", strings.Join(diff, "\n\t"))
	}
	if diff := treestate.Diff(before, mounted(`"$HYPERFS" rollback; "$HYPERFS" fsck --deep`)); len(diff) > 0 {
		t.Errorf("after the rollback:\n\t%s", strings.Join(diff, "\n\t"))
	}
}

func plainState(t *testing.T, ws string) treestate.State {
	t.Helper()
	s, err := lowerState(ws)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
