package session_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
)

// inBranch makes a command of a script that finds source at the workspace's path.
func inBranch(workspace, source, text string) session.Command {
	c := shell(workspace, text)
	c.Source = source
	return c
}

// needPrivate ends a test where no namespaces can be made.
func needPrivate(t *testing.T) {
	t.Helper()
	output(t, inBranch(tempDir(t), tempDir(t), "true"))
}

func TestTwoSourcesStandAtOnePath(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		ws := tempDir(t)
		programs := [][]string{{"pwd", "-P"}, {"/proc/self/exe"}}
		if path, err := exec.LookPath("node"); err == nil {
			programs = append(programs, []string{path, "-p", "process.cwd()"})
		} else {
			missing(t, "%v", err)
		}
		var all sync.WaitGroup
		for range 2 {
			source := tempDir(t)
			for _, args := range programs {
				all.Go(func() {
					c := session.Command{Args: args, Workspace: ws, Source: source, Env: []string{actEnv + "=getwd"}}
					expect(t, c, ws)
				})
			}
		}
		all.Wait()
	})
}

func TestWritesLandInTheSourceAlone(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		ws, one, two := tempDir(t), tempDir(t), tempDir(t)
		for _, dir := range []string{ws, one, two} {
			write(t, dir, "sub/file", "from "+filepath.Base(dir))
		}
		must(t, os.Symlink(filepath.Join(ws, "sub/file"), filepath.Join(one, "link")))
		c := inBranch(ws, one, "cat $WS/link && echo changed >$WS/link && echo new >$WS/new && rm -r $WS/sub && mkdir $WS/sub && mv $WS/new $WS/sub")
		c.Env = []string{"WS=" + ws}
		expect(t, c, "from "+filepath.Base(one))
		if got := read(t, one, "sub/new"); got != "new\n" {
			t.Errorf("the source has %q", got)
		}
		for _, dir := range []string{ws, two} {
			if got := read(t, dir, "sub/file"); got != "from "+filepath.Base(dir) {
				t.Errorf("another directory has %q", got)
			}
		}
		if _, err := os.Stat(filepath.Join(ws, "new")); err == nil {
			t.Error("a new file is in the workspace")
		}
	})
}

func TestTheCommandIsTheCaller(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		ws, source := tempDir(t), tempDir(t)
		who := "id -u; id -g; grep -E '^(Uid|Gid|Cap(Inh|Prm|Eff|Amb)|NoNewPrivs):' /proc/self/status; umask"
		plain := output(t, shell(ws, who))
		expect(t, inBranch(ws, source, who), plain)
		output(t, inBranch(ws, source, "touch mine; echo >>mine"))
		st, err := os.Stat(filepath.Join(source, "mine"))
		must(t, err)
		if uid := int(st.Sys().(*syscall.Stat_t).Uid); uid != os.Geteuid() {
			t.Errorf("a file belongs to %d", uid)
		}
		if os.Geteuid() != 0 {
			expect(t, inBranch(ws, source, `umount "$PWD" 2>/dev/null || mount -t tmpfs none "$PWD" 2>/dev/null || chown 0 mine 2>/dev/null || echo no`), "no")
		}
	})
}

func TestProcShowsTheCommandsOwnProcesses(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		expect(t, inBranch(tempDir(t), tempDir(t), `test $$ = "$(cut -d' ' -f1 /proc/$$/stat)" && readlink /proc/self/cwd | wc -l; ls -d /proc/[0-9]* | wc -l >n; test $(cat n) -lt 8 && echo few`), "1\nfew")
	})
}

func TestNobodyElseSeesTheSource(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		ws, source := tempDir(t), tempDir(t)
		p, err := inBranch(ws, source, "touch here; while [ ! -e end ]; do sleep 0.02; done").Start(context.Background())
		must(t, err)
		for read(t, source, "end") == "" {
			if _, err := os.Stat(filepath.Join(source, "here")); err == nil {
				write(t, source, "end", "x")
			}
		}
		if names, err := os.ReadDir(ws); err != nil || len(names) != 0 {
			t.Error(names, err)
		}
		info, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		if strings.Contains(string(info), ws) {
			t.Error("the mount is here too")
		}
		_, err = p.Wait()
		must(t, err)
	})
}

// Most systems have all mounts shared: what is mounted in one namespace appears in the others.
func TestNothingIsMountedForOthersWhereMountsAreShared(t *testing.T) {
	if os.Geteuid() != 0 {
		missing(t, "mounting needs root")
	}
	top := tempDir(t)
	must(t, unix.Mount("tmpfs", top, "tmpfs", 0, ""))
	defer unix.Unmount(top, unix.MNT_DETACH)
	must(t, unix.Mount("", top, "", unix.MS_SHARED, ""))
	ws, source := filepath.Join(top, "ws"), filepath.Join(top, "source")
	must(t, os.Mkdir(ws, 0o755))
	write(t, source, "file", "branch")
	for _, sandbox := range []*session.Sandbox{nil, {}} {
		c := inBranch(ws, source, "cat file; echo >ready; while [ ! -e end ]; do sleep 0.02; done; rm end ready")
		c.Sandbox = sandbox
		p, err := c.Start(context.Background())
		must(t, err)
		for read(t, source, "ready") == "" {
			time.Sleep(10 * time.Millisecond)
		}
		info, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		if strings.Contains(string(info), ws) {
			t.Error("the mount is everybody's")
		}
		write(t, source, "end", "")
		r, err := p.Wait()
		if err != nil || string(r.Stdout) != "branch" {
			t.Errorf("%v, %q", err, r.Stdout)
		}
	}
}

func TestAVirtualEnvironmentThatIsMadeInsideWorks(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		if _, err := os.Stat("/usr/bin/python3"); err != nil {
			missing(t, "%v", err)
		}
		ws, one, two := tempDir(t), tempDir(t), tempDir(t)
		for _, source := range []string{one, two} {
			output(t, inBranch(ws, source, "/usr/bin/python3 -m venv --without-pip v && echo 'print(\"a tool\")' >v/bin/t.py && { echo \"#!$PWD/v/bin/python\"; cat v/bin/t.py; } >v/bin/tool && chmod +x v/bin/tool"))
		}
		write(t, two, "v/bin/tool", "") // must not matter to the other
		expect(t, inBranch(ws, one, `v/bin/tool; v/bin/python -c 'import sys; print(sys.prefix)'`), "a tool\n"+ws+"/v")
	})
}

func TestProgramsAreFoundInTheSource(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		ws, source := tempDir(t), tempDir(t)
		write(t, source, "bin/tool", "#!/bin/sh\necho mine\n")
		must(t, os.Chmod(filepath.Join(source, "bin/tool"), 0o755))
		for _, name := range []string{"tool", "bin/tool", "./bin/tool", ws + "/bin/tool"} {
			c := session.Command{Args: []string{name}, Workspace: ws, Source: source, Env: []string{"PATH=" + ws + "/bin:/usr/bin:/bin"}}
			expect(t, c, "mine")
		}
	})
}

func TestADirectoryOfTheSourceCanBeTheStart(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		ws, source := tempDir(t), tempDir(t)
		must(t, os.MkdirAll(filepath.Join(source, "a/b"), 0o755))
		c := inBranch(ws, source, "pwd -P")
		c.Dir = filepath.Join(ws, "a/b")
		expect(t, c, c.Dir)
		must(t, os.MkdirAll(filepath.Join(ws, "not/there"), 0o755))
		c.Dir = filepath.Join(ws, "not/there")
		_, err := c.Run(context.Background())
		wantCode(t, err, errs.Path)
	})
}

// mountTree mounts a new workspace over itself, as this user.
func mountTree(t *testing.T) string {
	t.Helper()
	if err := fs.Probe(); err != nil {
		missing(t, "%v", err)
	}
	dir := tempDir(t)
	w, err := overlay.Open(overlay.Config{Workspace: dir})
	must(t, err)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error("close the workspace:", err)
		}
	})
	s, err := fs.Mount(w.Tree(), dir, fs.Options{InPlace: true})
	must(t, err)
	t.Cleanup(func() {
		if err := s.Unmount(false); err != nil {
			t.Error("unmount:", err)
		}
	})
	return dir
}

func TestADirectoryOfAMountStandsOverTheMount(t *testing.T) {
	if os.Geteuid() == 0 {
		must(t, os.Chmod("/dev/fuse", 0o666)) // as udev does
	}
	eachUser(t, func(t *testing.T) {
		needPrivate(t)
		ws := mountTree(t)
		write(t, ws, "file", "main")
		write(t, ws, "branch/file", "branch")
		for _, sandbox := range []*session.Sandbox{nil, {}} {
			c := inBranch(ws, filepath.Join(ws, "branch"), "pwd -P; cat file; ls | wc -l; echo more >>file; mkdir -p d; touch d/new; id -u")
			c.Sandbox = sandbox
			out := strings.Fields(output(t, c))
			if len(out) < 3 || out[0] != ws || !strings.HasPrefix(out[1], "branch") {
				t.Errorf("it prints %q", out)
			}
		}
		if got := read(t, ws, "branch/file"); got != "branchmore\nmore\n" {
			t.Errorf("the branch has %q", got)
		}
		if got := read(t, ws, "file"); got != "main" {
			t.Errorf("the workspace has %q", got)
		}
	})
}

// A container that hides a part of /proc lets nobody mount another one. A branch needs none; a sandbox does.
func TestABranchStandsInAContainerThatHidesPartsOfProc(t *testing.T) {
	if os.Geteuid() != 0 {
		missing(t, "mounting needs root")
	}
	needPrivate(t)
	self, err := os.Open("/proc/self/exe")
	must(t, err)
	defer self.Close()
	ws := outside(t)
	must(t, os.Chmod(ws, 0o755))
	must(t, os.Mkdir(filepath.Join(ws, "source"), 0o777))
	must(t, os.Chown(filepath.Join(ws, "source"), nobody, nobody))
	cmd := exec.Command("unshare", "-m", "sh", "-c", "mount -t tmpfs none /proc/fs && exec setpriv --reuid=65534 --regid=65534 --clear-groups /proc/self/fd/3")
	cmd.Env = append(os.Environ(), actEnv+"=branch", "DIR="+ws)
	cmd.ExtraFiles = []*os.File{self}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || string(out) != ws+"\n\nUNSUPPORTED\n" || !strings.Contains(said.String(), "/proc cannot be mounted") {
		t.Errorf("%v, it says %q\n%s", err, out, &said)
	}
	stopped(t, filepath.Join(ws, "source"))
	if read(t, ws, "source/ran") != "\n" {
		t.Error("the command of the sandbox ran")
	}
}

// A workspace that is unmounted while a command runs in a branch of another one would else be in use until that ends.
func TestWhatOthersUnmountIsGoneHereTooWhereMountsAreShared(t *testing.T) {
	if os.Geteuid() != 0 {
		missing(t, "mounting needs root")
	}
	top := tempDir(t)
	must(t, unix.Mount("tmpfs", top, "tmpfs", 0, ""))
	defer unix.Unmount(top, unix.MNT_DETACH)
	must(t, unix.Mount("", top, "", unix.MS_SHARED, ""))
	ws, source, other := filepath.Join(top, "ws"), filepath.Join(top, "source"), filepath.Join(top, "other")
	must(t, errors.Join(os.Mkdir(ws, 0o755), os.Mkdir(source, 0o755), os.Mkdir(other, 0o755)))
	must(t, unix.Mount("tmpfs", other, "tmpfs", 0, ""))
	c := inBranch(ws, source, `grep -c "$OTHER" /proc/self/mountinfo; echo >ready; for _ in $(seq 500); do grep -q "$OTHER" /proc/self/mountinfo || break; sleep 0.02; done; grep -c "$OTHER" /proc/self/mountinfo; pwd`)
	c.Env = []string{"OTHER=" + other}
	p, err := c.Start(context.Background())
	must(t, err)
	for read(t, source, "ready") == "" {
		time.Sleep(10 * time.Millisecond)
	}
	must(t, unix.Unmount(other, 0))
	r, err := p.Wait()
	if want := "1\n0\n" + ws; err != nil || strings.TrimSpace(string(r.Stdout)) != want {
		t.Errorf("%v, %q, want %q", err, r.Stdout, want)
	}
}
