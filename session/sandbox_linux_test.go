package session_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session"
)

// outside gives a directory of this user outside of /tmp, as that can be written to from any sandbox.
func outside(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "hyperfs-test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// boxed makes a command of a script in a sandbox around a workspace, which is not in /tmp.
func boxed(workspace, text string) session.Command {
	c := shell(workspace, text)
	c.Sandbox = &session.Sandbox{}
	return c
}

// refuses fails unless every line of a script fails, and for the right reason: it must work without the sandbox.
func refuses(t *testing.T, c session.Command, lines ...string) {
	t.Helper()
	for _, l := range lines {
		c.Args = []string{"sh", "-c", l}
		c.Capture, c.AcceptFailure = true, true
		r, err := c.Run(context.Background())
		must(t, err)
		if r.ExitCode == 0 {
			t.Errorf("it can do %s\n%s%s", l, r.Stdout, r.Stderr)
		}
	}
}

func TestASandboxLetsNothingElseBeChanged(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		ws, home := outside(t), outside(t)
		write(t, home, "file", "mine")
		write(t, home, "sub/file", "mine")
		must(t, os.Symlink(filepath.Join(home, "file"), filepath.Join(ws, "link")))
		c := boxed(ws, "true")
		output(t, c)
		c.Env = []string{"HOME=" + home}
		changes := []string{
			"echo x >$HOME/new", "echo x >$HOME/file", "echo x >>$HOME/file", "echo x >link", ": >$HOME/file", "rm $HOME/file", "mkdir $HOME/dir",
			"rmdir $HOME/sub", "mv $HOME/file $HOME/other", "mv $HOME/file .", "ln $HOME/file $HOME/other", "ln -s x $HOME/sym", "mkfifo $HOME/fifo",
			"chmod 777 $HOME/file", "touch -d yesterday $HOME/file", "truncate -s 1 $HOME/file", "chmod 777 $HOME",
			"setfattr -n user.a -v b $HOME/file", "ln $HOME/file .", "ln $HOME/file /tmp/hyperfs-linked",
		}
		refuses(t, c, changes...)
		refuses(t, c, "echo x >/etc/hyperfs-test", "touch /usr/hyperfs-test", "touch /var/tmp/hyperfs-test", "echo x >/hyperfs-test",
			"echo x >/dev/hyperfs-test", "touch /run/hyperfs-test", "chmod 777 /dev/null", "echo x >>/etc/passwd")
		if read(t, home, "file") != "mine" || len(names(t, home)) != 2 {
			t.Errorf("there is now %q, and %q", names(t, home), read(t, home, "file"))
		}
		// Each of these does work for the same user outside.
		for _, l := range changes[:3] {
			p := shell(ws, l)
			p.Env = c.Env
			output(t, p)
		}
	})
}

func TestNothingIsTypedIntoATerminal(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		calls := []string{`ioctl(F, 0x5412, $b)`, fmt.Sprintf(`syscall(%d, fileno(F), 0x5412, $b)`, unix.SYS_IOCTL)}
		if strconv.IntSize == 64 {
			// The kernel looks at the lower half alone.
			calls = append(calls, fmt.Sprintf(`syscall(%d, fileno(F), 0x7700005412, $b)`, unix.SYS_IOCTL))
		}
		for _, call := range calls {
			c := shell(outside(t), `perl -e 'my $b = "x"; open(F, "<", "/dev/null"); `+call+`; print $!+0'`)
			expect(t, c, strconv.Itoa(int(unix.ENOTTY)))
			c.Sandbox = &session.Sandbox{}
			expect(t, c, strconv.Itoa(int(unix.EPERM)))
		}
	})
}

func TestADeviceOrAnotherMountCanBeNamed(t *testing.T) {
	if os.Geteuid() == 0 {
		must(t, os.Chmod("/dev/fuse", 0o666)) // as udev does
		mounted := filepath.Join(tempDir(t), "mounted")
		must(t, os.Mkdir(mounted, 0o755))
		must(t, unix.Mount("tmpfs", mounted, "tmpfs", 0, ""))
		defer unix.Unmount(mounted, unix.MNT_DETACH)
		c := boxed(outside(t), "")
		c.Env = []string{"M=" + mounted}
		output(t, boxed(c.Workspace, "true"))
		refuses(t, c, "touch $M/file") // although it is in /tmp
		c.Args[2] = "touch $M/file"
		c.Sandbox.Write = []string{mounted}
		output(t, c)
	}
	eachWall(t, func(t *testing.T) {
		c := boxed(outside(t), "exec 3<>/dev/fuse")
		output(t, boxed(c.Workspace, "true"))
		refuses(t, c, c.Args[2])
		c.Args[2] = "exec 3<>/dev/fuse"
		c.Sandbox.Write = []string{"/dev/fuse"}
		output(t, c)
	})
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestASandboxLetsBeChangedWhatItShould(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		ws, allowed := outside(t), outside(t)
		write(t, allowed, "one/file", "")
		write(t, allowed, "two", "")
		write(t, allowed, "three", "")
		c := boxed(ws, `set -e
			mkdir -p a/b; echo x >a/f; mv a/f a/b/g; ln a/b/g h; chmod 600 h; touch -d yesterday h; ln -s h s; mkfifo p; rm p
			t=$(mktemp -d); echo x >$t/f; mv $t/f .; rm -r $t
			echo x >"$S"; cat "$S" >/dev/null
			head -c 8 /dev/urandom | wc -c; head -c 8 /dev/zero >/dev/null; echo hi >/dev/stdout; echo err >/dev/stderr
			cat /etc/passwd >/dev/null; ls / >/dev/null; ls /usr/bin >/dev/null
			echo y >>"$A/one/file"; mkdir "$A/one/d"; mv "$A/one/d" "$A/one/e"; echo z >"$A/two"; cat h`)
		c.Sandbox.Write = []string{filepath.Join(allowed, "one"), filepath.Join(allowed, "two")}
		shared := "/dev/shm/" + filepath.Base(allowed)
		c.Env = []string{"A=" + allowed, "S=" + shared}
		expect(t, c, "8\nhi\nx")
		refuses(t, c, `echo x >"$A/three"`, `touch "$A/four"`, `rm "$A/two"`)
		if read(t, allowed, "one/file") != "y\n" || read(t, allowed, "two") != "z\n" || read(t, allowed, "three") != "" {
			t.Error("what was written is not there")
		}
		if _, err := os.Stat(shared); err == nil {
			os.Remove(shared)
			t.Error("/dev/shm is everybody's")
		}
	})
}

func TestASandboxCannotBeLeft(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		ws, home := outside(t), outside(t)
		write(t, home, "file", "mine")
		sleeper := exec.Command("sleep", "100") // of the same user, in home
		sleeper.Dir = home
		must(t, sleeper.Start())
		defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
		c := boxed(ws, "true")
		output(t, c)
		c.Env = []string{"HOME=" + home, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		tries := []string{
			"mount -o remount,rw /", "mount -o remount,bind,rw /", "mount -t tmpfs none /mnt", "mount --bind / /tmp", "umount $PWD", "umount -l /dev/shm",
			"unshare -m true", "unshare -Ur true", "unshare -Urm mount -o remount,bind,rw /", "unshare -p true", "nsenter -t 1 -m true",
			"echo x >/proc/1/root$HOME/file", "echo x >/proc/$PPID/root$HOME/file", "for f in /proc/1/fd/* /proc/1/cwd /proc/1/root /proc/1/exe; do readlink $f && exit 0; done; exit 1", "ls /proc/1/root/", "cat /proc/1/environ",
			"chroot / true", "mknod dev b 254 0", "mknod dev c 1 3",
			"for p in /proc/[0-9]*; do [ \"$(cat $p/comm)\" = sleep ] && exit 0; done; exit 1",
			"echo 1 >/proc/sys/kernel/sysrq", "echo 1 >/proc/sys/vm/drop_caches", "echo h >/proc/sysrq-trigger", "echo 1000 >/proc/sys/user/max_user_namespaces",
			"strace -p 1 -o /dev/null", "kill -9 1 && sleep 1 && false", "dd if=/dev/mem of=/dev/null count=1", "head -c 1 /dev/fuse", "head -c 1 /dev/kvm", "echo x >/dev/kmsg",
		}
		for _, d := range []string{"/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/loop0"} {
			tries = append(tries, "head -c 1 "+d)
		}
		refuses(t, c, tries...)
		if read(t, home, "file") != "mine" {
			t.Error("a file outside was changed")
		}
		expect(t, boxed(ws, "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | tr -d '[:space:]'"), "NoNewPrivs:1Seccomp:2")
		if os.Geteuid() != 0 {
			expect(t, boxed(ws, "grep -c '^Cap.*0000000000000000$' /proc/self/status"), "5")
		} else {
			expect(t, boxed(ws, "touch f; chown 1234:1234 f; stat -c %u:%g f; chown 0 f; chmod 000 f; cat f; echo x >f; cat f"), "1234:1234\nx")
		}
	})
}

func TestAFileGivenToReadCannotBeWrittenTo(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		ws, home := outside(t), outside(t)
		write(t, home, "file", "mine")
		output(t, boxed(ws, "true"))
		f, err := os.Open(filepath.Join(home, "file"))
		must(t, err)
		defer f.Close()
		before, err := os.Stat(f.Name())
		must(t, err)
		c := boxed(ws, "cat; echo x >/proc/self/fd/0; chmod 777 /proc/self/fd/0; touch -d yesterday /proc/self/fd/0; true")
		c.Stdin = f
		expect(t, c, "mine")
		after, err := os.Stat(f.Name())
		must(t, err)
		if read(t, home, "file") != "mine" || before.Mode() != after.Mode() || !before.ModTime().Equal(after.ModTime()) {
			t.Error("it was")
		}
		c = boxed(ws, "")
		c.Stdout = f // opened for reading only
		c.Capture = false
		c.Args[2] = "echo x >/proc/self/fd/1"
		if _, err := c.Run(context.Background()); err == nil {
			t.Error("it can write to what is its standard output")
		}
		if read(t, home, "file") != "mine" {
			t.Error("it was, as the standard output")
		}
		d, err := os.Open(home)
		must(t, err)
		defer d.Close()
		c.Stdout = d
		_, err = c.Run(context.Background())
		wantCode(t, err, errs.ExecOptions)
	})
}

func TestABranchInASandboxHasNoWayToTheWorkspace(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		ws, source, store := tempDir(t), tempDir(t), tempDir(t) // all in /tmp, which can be written to
		write(t, ws, "file", "main")
		write(t, source, "file", "branch")
		write(t, store, "file", "store")
		output(t, boxed(ws, "true"))
		c := inBranch(ws, source, "cat file; echo x >>file; cat file")
		c.Sandbox = &session.Sandbox{Protect: []string{store}}
		c.Env = []string{"STORE=" + store}
		expect(t, c, "branch"+"branchx")
		refuses(t, c, "echo x >>$STORE/file", "rm $STORE/file", "touch $STORE/new")
		if read(t, ws, "file") != "main" || read(t, store, "file") != "store" {
			t.Error("the workspace was changed")
		}
		c.Sandbox.Write = []string{store}
		_, err := c.Run(context.Background())
		wantCode(t, err, errs.Path)
		// A path in the workspace is one of the branch.
		c.Sandbox = &session.Sandbox{Write: []string{filepath.Join(ws, "file")}}
		output(t, c)
		if read(t, ws, "file") != "main" {
			t.Error("what could be written to was the workspace's file")
		}
		c.Sandbox.Write = []string{"/"}
		_, err = c.Run(context.Background())
		wantCode(t, err, errs.ExecOptions)
	})
}

// Another mount shows the workspace, or a directory of it, where the command can write.
func TestTheWorkspaceIsProtectedUnderItsOtherPaths(t *testing.T) {
	if os.Geteuid() != 0 {
		missing(t, "mounting needs root")
	}
	top, source, other, sub := tempDir(t), tempDir(t), outside(t), tempDir(t)
	ws := filepath.Join(top, "a b", "ws") // with a blank
	write(t, ws, "file", "main")
	write(t, ws, "sub/file", "main")
	write(t, top, "beside", "")
	for _, m := range [][2]string{{top, other}, {filepath.Join(ws, "sub"), sub}} {
		must(t, unix.Mount(m[0], m[1], "", unix.MS_BIND, ""))
		defer unix.Unmount(m[1], unix.MNT_DETACH)
	}
	c := inBranch(ws, source, "")
	c.Sandbox = &session.Sandbox{Write: []string{other, sub}}
	_, err := c.Run(context.Background())
	wantCode(t, err, errs.Path)
	c.Sandbox.Write = []string{other}
	c.Env = []string{"OTHER=" + other, "SUB=" + sub}
	c.Args[2] = "echo x >$OTHER/beside"
	output(t, c)
	refuses(t, c, `echo x >"$OTHER/a b/ws/file"`, `rm "$OTHER/a b/ws/sub/file"`, `mv "$OTHER/a b/ws" "$OTHER/moved"`, "echo x >$SUB/file")
	if read(t, ws, "file") != "main" || read(t, ws, "sub/file") != "main" {
		t.Error("the workspace was changed")
	}
}

// The directory underneath a mount of ours is as bad a way as any: what is changed there has no preimage.
func TestWhatIsUnderneathAMountIsProtected(t *testing.T) {
	if os.Geteuid() != 0 {
		missing(t, "mounting needs root")
	}
	ws := mountTree(t)
	write(t, ws, "file", "main")
	write(t, ws, "branch/file", "branch")
	other, again, source := outside(t), tempDir(t), filepath.Join(ws, "branch")
	for _, m := range [][2]string{{filepath.Dir(ws), other}, {ws, again}} {
		must(t, unix.Mount(m[0], m[1], "", unix.MS_BIND, ""))
		defer unix.Unmount(m[1], unix.MNT_DETACH)
	}
	c := inBranch(ws, source, "echo x >>file; echo x >$OTHER/beside")
	c.Sandbox = &session.Sandbox{Write: []string{other}}
	under := filepath.Join(other, filepath.Base(ws))
	c.Env = []string{"OTHER=" + other, "UNDER=" + under, "AGAIN=" + again}
	output(t, c)
	refuses(t, c, "echo x >$UNDER/file", "rm -r $UNDER/branch", "touch $UNDER/new", "echo x >$AGAIN/file", "echo x >$AGAIN/branch/file")
	if read(t, ws, "file") != "main" || read(t, ws, "branch/file") != "branchx\n" {
		t.Errorf("the workspace has %q, the branch %q", read(t, ws, "file"), read(t, ws, "branch/file"))
	}
	c.Source = "" // in the workspace itself
	c.Sandbox.Protect = []string{ws}
	c.Args[2] = "echo x >>file"
	output(t, c)
	refuses(t, c, "echo x >$UNDER/file", "touch $UNDER/new", "touch $AGAIN/new")
	if read(t, ws, "file") != "mainx\n" {
		t.Errorf("the workspace has %q", read(t, ws, "file"))
	}
}

func TestSocketsInHiddenDirectoriesAreOutOfReach(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		ws, run, tmp := outside(t), outside(t), tempDir(t)
		var paths []string
		for _, dir := range []string{run, tmp} {
			p := filepath.Join(dir, "s")
			l, err := net.Listen("unix", p)
			must(t, err)
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					c.Close()
				}
			}()
			paths = append(paths, p)
		}
		connect := `perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); exit !connect(S, sockaddr_un($ENV{P}))'`
		t.Setenv("XDG_RUNTIME_DIR", run)
		for _, p := range paths {
			c := shell(ws, connect)
			c.Env = []string{"P=" + p}
			output(t, c)
			c.Sandbox = &session.Sandbox{Hide: []string{tmp, "/no/such/directory"}}
			output(t, session.Command{Args: []string{"true"}, Workspace: ws, Sandbox: c.Sandbox})
			refuses(t, c, connect, "touch $(dirname $P)/new")
		}
	})
}

func TestSocketsAreOutOfReachUnlessTheyAreNamed(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		ws, dir := outside(t), tempDir(t)
		path := filepath.Join(dir, "a socket")
		l, err := net.Listen("unix", path)
		must(t, err)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		c := boxed(ws, `perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); exit !connect(S, sockaddr_un($ENV{P}))'`)
		c.Env = []string{"P=" + path}
		output(t, boxed(ws, "true"))
		refuses(t, c, c.Args[2])
		c.Sandbox.Write = []string{path}
		output(t, c)
		c.Network = session.NetworkNone
		output(t, c)
		c.Sandbox.Write = nil
		refuses(t, c, c.Args[2])
		expect(t, boxed(ws, `perl -MSocket -e 'socket(L, PF_UNIX, SOCK_STREAM, 0); bind(L, sockaddr_un("/tmp/hyperfs-own-$$")) or die; listen(L, 1); socket(S, PF_UNIX, SOCK_STREAM, 0);
			connect(S, getsockname(L)) or die; unlink("/tmp/hyperfs-own-$$"); print "connected"'`), "connected")
	})
}

func TestTerminalsInASandboxAreItsOwn(t *testing.T) {
	eachWall(t, func(t *testing.T) {
		expect(t, boxed(outside(t), `ls /dev/pts; perl -MPOSIX -e 'open(M, "+<", "/dev/ptmx") or die $!; my $l = pack("i", 0); ioctl(M, 0x40045431, $l) or die; my $n = pack("I", 0); ioctl(M, 0x80045430, $n) or die;
			open(S, "+<", "/dev/pts/" . unpack("I", $n)) or die $!; syswrite(S, "through\n"); sysread(M, my $b, 99); print $b; print -t S ? "tty" : "no tty"'`), "ptmx\nthrough\r\ntty")
	})
}

func TestWithoutANetworkThereIsOnlyTheLoopback(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		for _, sandbox := range []*session.Sandbox{nil, {}} {
			c := shell(outside(t), `tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; tail -n +2 /proc/net/route | wc -l
				perl -MSocket -e 'socket(L, PF_INET, SOCK_STREAM, 0); bind(L, sockaddr_in(0, INADDR_LOOPBACK)) or die; listen(L, 1) or die; socket(S, PF_INET, SOCK_STREAM, 0); connect(S, getsockname(L)) or die; print "connected"'`)
			c.Network, c.Sandbox = session.NetworkNone, sandbox
			expect(t, c, "lo\n0\nconnected")
		}
	})
}

func TestAServerOutsideIsReachedOnlyByTheHostsNetwork(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer l.Close()
		_, port, _ := strings.Cut(l.Addr().String(), ":")
		connect := `perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0); exit !connect(S, sockaddr_in($ENV{PORT}, INADDR_LOOPBACK))'`
		c := boxed(outside(t), connect)
		c.Env = []string{"PORT=" + port}
		output(t, c)
		c.Network = session.NetworkNone
		refuses(t, c, connect)
	})
}

func TestASandboxIsRefusedWhereItCannotBeMade(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		ws := tempDir(t)
		must(t, os.Mkdir(filepath.Join(ws, "source"), 0o755))
		c := boxed(ws, "")
		c.Args = []string{"/proc/self/exe"} // in a sandbox there are no user namespaces
		c.Env = []string{actEnv + "=branch", "DIR=" + ws}
		c.Capture = true
		r, err := c.Run(context.Background())
		must(t, err)
		if string(r.Stdout) != "UNSUPPORTED\nUNSUPPORTED\n" || !strings.Contains(string(r.Stderr), "sysctl user.max_user_namespaces") {
			t.Errorf("it says %s\n%s", r.Stdout, r.Stderr)
		}
		if read(t, ws, "source/ran") != "" {
			t.Error("the command ran")
		}
	})
}
