package session

import (
	"os"

	"golang.org/x/sys/unix"
)

// makeMounts makes the command's view of files, in the helper's own mount namespace.
func (h helper) makeMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|h.propagation(), ""); err != nil {
		return unsupported("mounts cannot be made private", err)
	}
	if h.PIDs {
		if err := h.mountProc(); err != nil {
			return err
		}
	}
	if h.Sandbox != nil {
		return h.confine()
	}
	if h.Source == "" {
		return nil
	}
	if err := unix.Mount(h.Source, h.Workspace, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return unsupported("the branch cannot stand at "+h.Workspace, err)
	}
	return nil
}

// propagation says how our mounts and those of others have to do with each other: nothing that we mount is seen by them. What they unmount
// goes here too, or it would be in use until the command ends; but into a sandbox nothing new may come.
func (h helper) propagation() uintptr {
	if h.Sandbox != nil {
		return unix.MS_PRIVATE
	}
	return unix.MS_SLAVE
}

// mountProc mounts the /proc of our PID namespace. The outer one would show other processes, and ours under other numbers.
func (h helper) mountProc() error {
	err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err == nil {
		return nil
	}
	f := failureOf(unsupported("/proc cannot be mounted", err))
	f.NoProc = true
	return f
}

// forbidNamespaces lets no user namespace be made in ours: in one the command would have all rights over mounts of its own.
func forbidNamespaces() error {
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		return unsupported("user namespaces cannot be forbidden", bare(err))
	}
	return nil
}
