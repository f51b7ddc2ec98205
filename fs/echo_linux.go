package fs

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// echoName is argument 0 of an echo.
const echoName = "hyperfs-echo"

// init makes this process an echo if it was started as one. That it happens here makes sure that no program runs again in its place; and that it
// runs on the thread whose ID is that of the process, as requests name threads.
func init() {
	if len(os.Args) != 1 || os.Args[0] != echoName {
		return
	}
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(unsafe.StringData(echoName+"\x00"))), 0, 0, 0) // else it would be "exe"
	var mask unix.Sigset_t
	mask.Val[0] = 1 << (orphaned - 1)
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &mask, nil) // the kernel would give it to this thread, which may be waiting for an answer, and to no other one
	go outlive(os.Getppid())
	serveEcho(os.Stdin, os.Stdout)
	os.Exit(0)
}

// orphaned is what tells an echo that the thread which has started it has ended.
const orphaned = syscall.SIGUSR1

// outlive ends the echo after its daemon. If that was killed while it had the kernel forget a name in a directory that the echo was changing, the thread that does so waits for the
// echo, which waits for an answer, and none of them can be killed; and as the thread has /dev/fuse open, the kernel does not end the connection. So the echo does.
func outlive(daemon int) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, orphaned)
	<-died
	for wait := time.Millisecond; wait < time.Second; wait *= 2 {
		if hasDied(daemon) {
			entered.Load().abort()
			break
		}
		time.Sleep(wait) // its other threads may be about to
	}
	os.Exit(0)
}

// hasDied reports whether a process has ended but for threads that can't.
func hasDied(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, ok := bytes.Cut(b, []byte(") "))
	return err != nil || os.Getppid() != pid || ok && (rest[0] == 'Z' || rest[0] == 'X')
}

// entered is the mount that the echo is in now; nil is none.
var entered atomic.Pointer[place]

// place is a mount, by its mountpoint and its device, which no other one has as long as somebody is in it.
type place struct {
	mountpoint string
	device     uint64
}

// abort has the kernel end the connection: each request fails, and nobody waits any more. An ordinary user needs /sys/fs/fuse/connections for that.
func (p *place) abort() {
	if p == nil {
		return
	}
	if device, err := deviceNumber(p.mountpoint); err != nil || device != p.device {
		return // it is detached, and another one may be there
	}
	if unix.Unmount(p.mountpoint, unix.MNT_FORCE) == unix.EPERM { // as it is in use, that does nothing else
		_ = os.WriteFile(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", unix.Minor(p.device)), []byte("1"), 0)
	}
}

// serveEcho does errands until there are no more. It holds nothing in the mount between two of them.
func serveEcho(in io.Reader, out io.Writer) {
	orders, results := gob.NewDecoder(in), gob.NewEncoder(out)
	for {
		var o order
		if orders.Decode(&o) != nil {
			return // the daemon has ended, or wants no more
		}
		if results.Encode(o.carryOut()) != nil {
			return
		}
	}
}

// carryOut makes the calls, in the mount alone: if that has gone, what is underneath are the user's files.
func (o *order) carryOut() (r result) {
	root, err := unix.Open(o.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return result{Fault: "the mount can't be entered: " + err.Error()}
	}
	defer unix.Close(root)
	var is unix.Statx_t
	if unix.Statx(root, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &is) == nil { // which is no request
		entered.Store(&place{o.Root, unix.Mkdev(is.Dev_major, is.Dev_minor)})
		defer entered.Store(nil)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(root, o.Proof, &st, unix.AT_SYMLINK_NOFOLLOW); err != errProof {
		return result{Fault: "the mount does not know its echo"}
	}
	dir, err := beneath(root, o.Path)
	if err != nil {
		return result{} // it was moved or removed meanwhile
	}
	defer unix.Close(dir)
	failed := ""
	for _, a := range o.Acts {
		switch {
		case a.Name == failed:
		case a.do(dir) != nil:
			failed = a.Name // what would come next belongs to it
		default:
			r.Raised++
		}
	}
	return r
}

// pathChunk is how much of a path one call takes, less than PATH_MAX.
const pathChunk = 2048

// beneath opens a directory, which is in the same mount as root: nothing leads out of it.
func beneath(root int, path string) (fd int, err error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	if path == "" {
		path = "."
	}
	at := root
	for path != "" {
		part := path
		if len(path) > pathChunk {
			end := strings.LastIndexByte(path[:pathChunk], '/') // no name is longer than NAME_MAX
			part = path[:end]
		}
		path = strings.TrimPrefix(path[len(part):], "/")
		fd, err = unix.Openat2(at, part, how)
		if at != root {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = fd
	}
	return at, nil
}

// do makes the call that raises the event.
func (a act) do(dir int) error {
	switch {
	case a.Verb == actRemove && a.Dir:
		return unix.Unlinkat(dir, a.Name, unix.AT_REMOVEDIR)
	case a.Verb == actRemove:
		return unix.Unlinkat(dir, a.Name, 0)
	case a.Verb == actAdd && a.Dir:
		if err := unix.Mkdirat(dir, a.Name, 0o700); err != nil {
			return err
		}
		// Who has it as the current directory already would not learn where that is until somebody looks it up.
		var st unix.Stat_t
		_ = unix.Fstatat(dir, a.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
		return nil
	case a.Verb == actAdd:
		return unix.Mknodat(dir, a.Name, unix.S_IFREG|0o600, 0)
	}
	return a.touch(dir)
}

// touch sets times: of mtime alone IN_MODIFY tells, of both IN_ATTRIB.
func (a act) touch(dir int) error {
	fd, err := unix.Openat2(dir, a.Name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	times := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	if a.Verb == actModify {
		times[0].Nsec = unix.UTIME_OMIT
	}
	return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
}

// echoProcess is an echo that runs.
type echoProcess struct {
	cmd   *exec.Cmd
	in    io.Closer
	out   io.Closer
	send  *gob.Encoder
	hear  *gob.Decoder
	ended chan struct{}
	once  sync.Once
}

// startEcho starts an echo. pid is its process ID until it has ended.
func startEcho(pid *atomic.Uint32) (*echoProcess, error) {
	p, err := spawnEcho(pid, unix.Geteuid() != 0)
	if err != nil && unix.Geteuid() != 0 {
		p, err = spawnEcho(pid, false)
	}
	return p, err
}

// spawnEcho starts an echo. An ordinary user's can be given a user namespace, in which it may pretend to change directories of theirs
// that they may not write to.
func spawnEcho(pid *atomic.Uint32, namespace bool) (*echoProcess, error) {
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", // not by a path that may lead into the mount
		Args: []string{echoName},
		Dir:  "/",
		Env:  []string{"GOMAXPROCS=1"},
		// The end of its input ends it too. See outlive.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: orphaned},
	}
	if namespace {
		uid, gid := os.Geteuid(), os.Getegid()
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &echoProcess{cmd: cmd, in: in, out: out, send: gob.NewEncoder(in), hear: gob.NewDecoder(out), ended: make(chan struct{})}
	started := make(chan error)
	go p.run(pid, started)
	return p, <-started
}

// run starts the process and waits for its end, on a thread that does nothing else: it is of the end of this thread that the process hears, and one that does other things too may not come to an end when
// the daemon is killed, because it waits in the kernel for the echo.
func (p *echoProcess) run(pid *atomic.Uint32, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	if err == nil {
		pid.Store(uint32(p.cmd.Process.Pid)) // it enters the mount when it has its first order
	}
	started <- err
	if err == nil {
		p.bury(pid, uint32(p.cmd.Process.Pid))
	}
}

// bury waits for the end. The number is given up before the process is, which is when another one can get it.
func (p *echoProcess) bury(pid *atomic.Uint32, number uint32) {
	for unix.Waitid(unix.P_PID, int(number), nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	pid.CompareAndSwap(number, 0)
	_ = p.cmd.Wait() // it was killed, as a rule
	close(p.ended)
}

// do has an order carried out.
func (p *echoProcess) do(o order) (r result, err error) {
	if err := p.send.Encode(o); err != nil {
		return result{}, err
	}
	err = p.hear.Decode(&r)
	return r, err
}

// end kills the process. It may be called again.
func (p *echoProcess) end() {
	p.once.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.in.Close()
	})
}

// wait waits for its end, which is near after end.
func (p *echoProcess) wait(patience time.Duration) {
	select {
	case <-p.ended:
	case <-time.After(patience):
	}
}
