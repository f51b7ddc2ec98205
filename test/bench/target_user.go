package main

import (
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// How hyperfs is named where it was told to use passthrough, and where who mounts it may not have that.
const (
	withPassthrough = "--passthrough"
	ordinaryUser    = "ordinary user"
)

// user is hyperfs as somebody has it who isn't root. Everything is done as that user: nobody else may enter the mount.
type user struct {
	hyperfs
	uid, gid int
}

// user gives nobody's hyperfs; nil if whoever runs this isn't root either.
func (b *bench) user(dir string) (*user, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	st, err := os.Stat("/dev/fuse")
	if err == nil && st.Mode().Perm()&0o006 != 0o006 {
		err = errors.New("it needs a /dev/fuse that everybody may use: chmod 666 /dev/fuse")
	}
	if err != nil {
		return nil, err
	}
	who, err := osuser.Lookup("nobody") // fusermount3 wants one with a name
	if err != nil {
		return nil, err
	}
	u := &user{hyperfs: hyperfs{program: b.o.hyperfs, dir: dir, label: ordinaryUser}}
	u.uid, err = strconv.Atoi(who.Uid)
	if err != nil {
		return nil, err
	}
	u.gid, err = strconv.Atoi(who.Gid)
	return u, err
}

// as does something as whoever works in a target: itself, and the programs that it starts.
func as(t target, fn func() error) error {
	u, ok := t.(*user)
	if !ok {
		return fn()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine, and takes its user with it
		err := becomeUser(u.uid, u.gid)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// becomeUser changes who this thread works as. The wrappers of these calls would change all threads.
func becomeUser(uid, gid int) error {
	for _, call := range []struct {
		name    string
		trap    uintptr
		a, b, c uintptr
	}{
		{"setgroups", unix.SYS_SETGROUPS, 0, 0, 0},
		{"setresgid", unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)},
		{"setresuid", unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
	} {
		if _, _, errno := unix.RawSyscall(call.trap, call.a, call.b, call.c); errno != 0 {
			return fmt.Errorf("%s: %w", call.name, errno)
		}
	}
	return nil
}
