package session

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// setUpCaps are what a helper needs, in the user namespace that gives them, to make mounts (SYS_ADMIN), to bring up the loopback device
// (NET_ADMIN), to forbid further user namespaces (SYS_RESOURCE), and to give up rights (SETPCAP).
var setUpCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_SETPCAP}

// namespaces says in which namespaces the helper starts.
func namespaces(l *launch) *syscall.SysProcAttr {
	if !l.Private {
		return nil
	}
	a := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if l.PIDs {
		a.Cloneflags |= unix.CLONE_NEWPID
	}
	if l.Offline {
		a.Cloneflags |= unix.CLONE_NEWNET
	}
	if l.Sandbox != nil {
		a.Cloneflags |= unix.CLONE_NEWIPC
	}
	if !l.User {
		return a
	}
	a.Cloneflags |= unix.CLONE_NEWUSER
	a.UidMappings = identity("uid", os.Geteuid())
	a.GidMappings = identity("gid", os.Getegid())
	a.GidMappingsEnableSetgroups = may(unix.CAP_SETGID)
	if os.Geteuid() != 0 {
		a.AmbientCaps = setUpCaps // the start of a program takes all others from an ordinary user
	}
	return a
}

// identity maps IDs to themselves, so that files keep their owners: all that we know if we may, else only our own one.
func identity(kind string, own int) []syscall.SysProcIDMap {
	single := []syscall.SysProcIDMap{{ContainerID: own, HostID: own, Size: 1}}
	if !may(unix.CAP_SETUID) || !may(unix.CAP_SETGID) {
		return single
	}
	f, err := os.Open("/proc/self/" + kind + "_map")
	if err != nil {
		return single
	}
	defer f.Close()
	var all []syscall.SysProcIDMap
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var inside, outside, size int
		if _, err := fmt.Sscan(lines.Text(), &inside, &outside, &size); err != nil {
			return single
		}
		all = append(all, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: size})
	}
	return all
}

// may reports whether this thread has a capability.
func may(capability int) bool {
	data, err := capabilities()
	return err == nil && data[capability/32].Effective&(1<<(capability%32)) != 0
}

func capabilities() (data [2]unix.CapUserData, err error) {
	err = unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return data, err
}

// unsupported is the error where the system allows no namespaces, or not what has to be done in them.
func unsupported(what string, err error) error {
	return errs.New(errs.Unsupported, op, "", "%s: %w", what, err).WithHint(howToAllow(err))
}

// howToAllow says which of the usual settings is in the way; "" if none of them seems to be.
func howToAllow(err error) string {
	setting := func(name, value string) bool {
		b, err := os.ReadFile("/proc/sys/kernel/" + name)
		return err == nil && strings.TrimSpace(string(b)) == value
	}
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		return "the kernel is too old, or was built without namespaces"
	case errors.Is(err, unix.ENOSPC):
		return "there are too many namespaces, or none are allowed: sysctl user.max_user_namespaces=10000"
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES):
		return ""
	case setting("apparmor_restrict_unprivileged_userns", "1"):
		return "AppArmor restricts user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, an AppArmor profile with userns for hyperfs, or run it as root"
	case setting("unprivileged_userns_clone", "0"):
		return "sysctl kernel.unprivileged_userns_clone=1, or run it as root"
	}
	return "a container needs --cap-add SYS_ADMIN, or a seccomp profile that allows unshare and mount"
}
