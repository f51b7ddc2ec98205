package fs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/hyperfs/hyperfs/internal/errs"
	"golang.org/x/sys/unix"
)

const (
	deviceFile = "/dev/fuse"
	fsName     = "hyperfs"
	mountType  = "fuse." + fsName
)

// mount makes the kernel's side of a mount and gives its descriptor. Root does it itself; then set-user-ID programs and
// device nodes in the workspace go on working, as they would without us. For an ordinary user fusermount3 does it, which forbids them.
func mount(mountpoint, source string, allowOther bool) (fd int, err error) {
	if err := checkDevice(mountpoint); err != nil {
		return -1, err
	}
	if unix.Geteuid() != 0 {
		return mountWithHelper(mountpoint, source, allowOther)
	}
	return mountDirect(mountpoint, source, allowOther)
}

// checkDevice fails where /dev/fuse cannot be used.
func checkDevice(mountpoint string) error {
	fd, err := unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		return unix.Close(fd)
	}
	e := errs.New(errs.Unsupported, "mount", mountpoint, "%s: %w", deviceFile, err)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return e.WithHint("let this user open it: chmod 0666 " + deviceFile)
	}
	return e.WithHint("load it with `modprobe fuse`, or give the container `--device " + deviceFile + "`")
}

// mountOptions are what both ways of mounting take. default_permissions has the kernel check permissions, as the lower would.
// There is no noatime: FUSE invalidates access times on every read whatever the flag says, and the lower's own flag decides
// what it records.
func mountOptions(allowOther bool) []string {
	o := []string{"default_permissions", fmt.Sprintf("max_read=%d", maxWrite)}
	if allowOther {
		o = append(o, "allow_other")
	}
	return o
}

func mountDirect(mountpoint, source string, allowOther bool) (int, error) {
	fd, err := unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, mountError(mountpoint, err)
	}
	o := append([]string{
		fmt.Sprintf("fd=%d", fd),
		fmt.Sprintf("rootmode=%o", unix.S_IFDIR),
		fmt.Sprintf("user_id=%d", unix.Geteuid()),
		fmt.Sprintf("group_id=%d", unix.Getegid()),
	}, mountOptions(allowOther)...)
	if err := unix.Mount(source, mountpoint, mountType, 0, strings.Join(o, ",")); err != nil {
		_ = unix.Close(fd)
		e := errs.New(errs.Unsupported, "mount", mountpoint, "%w", err)
		if err == unix.EPERM {
			return -1, e.WithHint("root has no CAP_SYS_ADMIN here: give the container `--cap-add SYS_ADMIN`")
		}
		return -1, e
	}
	return fd, nil
}

// helper finds fusermount3.
func helper() (string, error) {
	for _, name := range []string{"fusermount3", "/bin/fusermount3", "/usr/bin/fusermount3"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("fusermount3 is not installed")
}

// mountWithHelper has fusermount3 mount, and receives the descriptor on a socket (see libfuse's doc/kernel.txt, and
// _FUSE_COMMFD in util/fusermount.c).
func mountWithHelper(mountpoint, source string, allowOther bool) (int, error) {
	path, err := helper()
	if err != nil {
		return -1, errs.New(errs.Unsupported, "mount", mountpoint, "%w", err).WithHint("install it: apt-get install fuse3")
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return -1, mountError(mountpoint, err)
	}
	defer ours.Close()
	o := append(mountOptions(allowOther), "fsname="+escapeOption(source), "subtype="+fsName)
	cmd := exec.Command(path, "-o", strings.Join(o, ","), "--", mountpoint)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	err = run(cmd)
	_ = theirs.Close()
	if err != nil {
		return -1, helperError(mountpoint, err)
	}
	fd, err := receiveFd(int(ours.Fd()))
	if err != nil {
		return -1, mountError(mountpoint, err)
	}
	return fd, nil
}

// escapeOption protects what would end a mount option.
func escapeOption(s string) string { return strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(s) }

func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "mount helper"), os.NewFile(uintptr(fds[1]), "mount helper"), nil
}

// receiveFd takes the one descriptor that a message brings.
func receiveFd(socket int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 4), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return -1, errors.New("fusermount3 has sent no descriptor")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.New("fusermount3 has sent no descriptor")
	}
	return fds[0], nil
}

// run runs a command; its error is the first line of what it has to say.
func run(cmd *exec.Cmd) error {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
	if line == "" {
		return err
	}
	return errors.New(line)
}

// helperError says what to do about what fusermount3 says.
func helperError(mountpoint string, err error) error {
	e := errs.New(errs.Unsupported, "mount", mountpoint, "%w", err)
	switch {
	case strings.Contains(err.Error(), "user_allow_other"):
		return e.WithHint("put the line user_allow_other into /etc/fuse.conf, or do not let others in")
	case strings.Contains(err.Error(), "no write access"):
		return errs.New(errs.Path, "mount", mountpoint, "%w", err)
	case strings.Contains(err.Error(), "Operation not permitted"):
		return e.WithHint("fusermount3 must be set-user-ID root, and in a container needs CAP_SYS_ADMIN")
	}
	return e
}

// unmountTries is how often an unmount is tried: whoever has just closed a file may not be through with it in the kernel.
const unmountTries = 5

func unmount(mountpoint string, lazy bool) error {
	var err error
	for try := range unmountTries {
		if err = unmountOnce(mountpoint, lazy); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(time.Duration(1<<try) * 5 * time.Millisecond)
	}
	if errors.Is(err, unix.EBUSY) {
		return errs.New(errs.Busy, "unmount", mountpoint, "something in it is in use").
			WithHint("leave it with every shell, end what runs in it (`fuser -vm " + mountpoint + "` lists it), or unmount with --lazy")
	}
	return errs.Wrap(errs.Internal, "unmount", mountpoint, err)
}

func unmountOnce(mountpoint string, lazy bool) error {
	if unix.Geteuid() == 0 {
		flags := unix.UMOUNT_NOFOLLOW
		if lazy {
			flags |= unix.MNT_DETACH
		}
		return unix.Unmount(mountpoint, flags)
	}
	path, err := helper()
	if err != nil {
		return err
	}
	flag := "-u"
	if lazy {
		flag = "-uz"
	}
	err = run(exec.Command(path, flag, "--", mountpoint))
	if err != nil && strings.Contains(err.Error(), unix.EBUSY.Error()) {
		return unix.EBUSY
	}
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "device or resource busy") {
		return unix.EBUSY
	}
	return err
}

func mountError(mountpoint string, err error) error {
	return errs.Wrap(errs.Internal, "mount", mountpoint, err)
}
