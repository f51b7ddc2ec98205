package fs_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/fs"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"golang.org/x/sys/unix"
)

func TestXattrSizes(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mounted) {
		p := m.write(t, "f", "x")
		value := strings.Repeat("v", 3000)
		_, err := unix.Getxattr(p, "user.x", nil)
		want(t, err, unix.ENODATA)
		must(t, unix.Setxattr(p, "user.x", []byte(value), unix.XATTR_CREATE))
		want(t, unix.Setxattr(p, "user.x", nil, unix.XATTR_CREATE), unix.EEXIST)
		want(t, unix.Setxattr(p, "user.y", nil, unix.XATTR_REPLACE), unix.ENODATA)
		must(t, unix.Setxattr(p, "user.empty", nil, 0))
		if n, err := unix.Getxattr(p, "user.x", nil); n != 3000 || err != nil {
			t.Error("size:", n, err)
		}
		_, err = unix.Getxattr(p, "user.x", make([]byte, 2999))
		want(t, err, unix.ERANGE)
		b := make([]byte, 4000)
		if n, err := unix.Getxattr(p, "user.x", b); string(b[:n]) != value || err != nil {
			t.Error("value:", n, err)
		}
		if n, err := unix.Getxattr(p, "user.empty", b); n != 0 || err != nil {
			t.Error("empty value:", n, err)
		}
		size, err := unix.Listxattr(p, nil)
		must(t, err)
		_, err = unix.Listxattr(p, make([]byte, size-1))
		want(t, err, unix.ERANGE)
		n, err := unix.Listxattr(p, b[:size])
		if err != nil || !strings.Contains(string(b[:n]), "user.x\x00") || !strings.Contains(string(b[:n]), "user.empty\x00") {
			t.Errorf("names: %q, %v", b[:n], err)
		}
		must(t, unix.Removexattr(p, "user.x"))
		want(t, unix.Removexattr(p, "user.x"), unix.ENODATA)
	})
}

func TestTrustedXattrsAreOnlyListedForRoot(t *testing.T) {
	m := sharedMount(t, fs.Options{InPlace: true})
	p := m.write(t, "f", "x")
	must(t, unix.Setxattr(p, "trusted.secret", []byte("s"), 0))
	must(t, unix.Setxattr(p, "user.open", []byte("o"), 0))
	if out, err := runHelper(t, somebody, "listxattr", p); err != nil || out != `"user.open\x00"` {
		t.Errorf("somebody sees %s, %v", out, err)
	}
	if out, err := runHelper(t, 0, "listxattr", p); err != nil || !strings.Contains(out, "trusted.secret") {
		t.Errorf("root sees %s, %v", out, err)
	}
}

// tool runs a program that the machine must have.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func TestACLsAreKeptAndObeyed(t *testing.T) {
	for _, o := range []fs.Options{{InPlace: true}, {}} {
		m := sharedMount(t, o)
		p := m.write(t, "f", "secret")
		must(t, os.Chmod(p, 0o600))
		if _, err := runHelper(t, somebody, "append", p, "!"); err == nil {
			t.Fatal("somebody can write without an ACL")
		}
		tool(t, "setfacl", "-m", "u:12345:rw", p)
		if acl := tool(t, "getfacl", "-cpn", p); !strings.Contains(acl, "user:12345:rw-") || !strings.Contains(acl, "mask::rw-") {
			t.Fatal(acl)
		}
		if out, err := runHelper(t, somebody, "append", p, "!"); err != nil {
			t.Fatal("somebody can't write with an ACL:", out)
		}
		var st unix.Stat_t
		must(t, unix.Stat(p, &st))
		if st.Mode&0o777 != 0o660 {
			t.Errorf("the mask is not in the mode: %o", st.Mode)
		}
		tool(t, "setfacl", "-x", "u:12345", p)
		if _, err := runHelper(t, somebody, "append", p, "!"); err == nil {
			t.Fatal("somebody can write after the ACL is gone")
		}
	}
}

func TestDefaultACLTakesThePlaceOfTheUmask(t *testing.T) {
	m := sharedMount(t, fs.Options{InPlace: true})
	d := m.path("d")
	must(t, os.Mkdir(d, 0o777))
	must(t, os.Chmod(d, 0o777))
	if out, err := runHelper(t, somebody, "create", d+"/plain"); err != nil {
		t.Fatal(out)
	}
	tool(t, "setfacl", "-d", "-m", "u::rwx,g::rwx,o::rx,u:7:rw", d)
	if out, err := runHelper(t, somebody, "create", d+"/inherits"); err != nil {
		t.Fatal(out)
	}
	var st unix.Stat_t
	must(t, unix.Stat(d+"/plain", &st))
	if st.Mode&0o777 != 0o640 {
		t.Errorf("without an ACL the mode is %o", st.Mode)
	}
	must(t, unix.Stat(d+"/inherits", &st))
	if st.Mode&0o777 != 0o664 {
		t.Errorf("with an ACL the mode is %o", st.Mode)
	}
	if acl := tool(t, "getfacl", "-cpn", d+"/inherits"); !strings.Contains(acl, "user:7:rw-") {
		t.Error(acl)
	}
}

// TestCapabilitiesOfAFileThatIsOpen asks for what the kernel asks for before each first write, to which the daemon knows the answer since the open, for as long as
// nobody has set any.
func TestCapabilitiesOfAFileThatIsOpen(t *testing.T) {
	const name = capabilityName
	value := []byte{0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // cap_net_bind_service, permitted
	eachVariant(t, func(t *testing.T, m *mounted) {
		f, err := os.Create(m.path("f"))
		must(t, err)
		defer f.Close()
		has := func(when string, want bool) {
			t.Helper()
			got := make([]byte, 100)
			n, err := unix.Getxattr(m.path("f"), name, got)
			if want && (err != nil || !bytes.Equal(got[:n], value)) || !want && err != unix.ENODATA {
				t.Fatalf("%s: %x, %v", when, got[:max(n, 0)], err)
			}
		}
		has("at first", false)
		must(t, unix.Fsetxattr(int(f.Fd()), name, value, 0))
		has("when they were set", true)
		_, err = f.WriteString("x")
		must(t, err)
		has("after a write", false)
		must(t, unix.Setxattr(m.path("f"), name, value, 0))
		c, err := m.w.Snapshot(t.Context(), overlay.SnapshotOptions{})
		must(t, err)
		must(t, unix.Removexattr(m.path("f"), name))
		has("when they were removed", false)
		_, err = m.w.Rollback(t.Context(), c.ID, overlay.RollbackOptions{})
		must(t, err)
		has("after a rollback", true)
		again, err := os.OpenFile(m.path("f"), os.O_WRONLY, 0)
		must(t, err)
		defer again.Close()
		has("opened again", true)
		_, err = again.WriteString("y")
		must(t, err)
		has("after a write to it", false)
		m.snapshot(t)
		third, err := os.OpenFile(m.path("f"), os.O_WRONLY, 0) // it is recorded that there are no xattrs
		must(t, err)
		must(t, third.Close())
		must(t, unix.Setxattr(m.path("f"), name, value, 0))
		fourth, err := os.OpenFile(m.path("f"), os.O_WRONLY, 0)
		must(t, err)
		defer fourth.Close()
		has("opened once more", true)

		g, err := os.Create(m.path("g"))
		must(t, err)
		defer g.Close()
		if m.workspace != m.dir { // others can reach it
			must(t, unix.Setxattr(m.workspace+"/g", name, value, 0))
			if n, err := unix.Getxattr(m.path("g"), name, make([]byte, 100)); n != len(value) {
				t.Errorf("set past the mount: %d, %v", n, err)
			}
		}
	})
}

// Without extended attributes a program is told so, nobody is asked for any, and what files have is kept and comes back.
func TestWithoutXattrsNobodyIsAskedForAny(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	must(t, os.WriteFile(old, []byte("before"), 0o644))
	must(t, unix.Setxattr(old, "user.x", []byte("kept"), 0))
	m := mountDir(t, dir, fs.Options{InPlace: true, NoXattrs: true})
	id := m.snapshot(t)
	for range 2 { // the first time the kernel asks
		_, err := unix.Getxattr(old, "user.x", nil)
		want(t, err, unix.EOPNOTSUPP)
		_, err = unix.Listxattr(old, nil)
		want(t, err, unix.EOPNOTSUPP)
		want(t, unix.Setxattr(old, "user.y", nil, 0), unix.EOPNOTSUPP)
		want(t, unix.Removexattr(old, "user.x"), unix.EOPNOTSUPP)
	}
	for i := range 20 {
		m.write(t, fmt.Sprint("new", i), "content")
	}
	must(t, os.WriteFile(old, []byte("after"), 0o644))
	for _, name := range []string{"getxattr", "listxattr", "setxattr", "removexattr"} {
		if n := operation(m.server, name).Took.Count; n != 1 {
			t.Errorf("the kernel has asked for %s %d times, not once", name, n)
		}
	}
	m.rollback(t, id)
	if got, err := os.ReadFile(old); err != nil || string(got) != "before" {
		t.Errorf("after the rollback: %q, %v", got, err)
	}
	must(t, m.server.Unmount(false))
	value := make([]byte, 10)
	if n, err := unix.Getxattr(old, "user.x", value); err != nil || string(value[:n]) != "kept" {
		t.Errorf("the extended attribute is %q now, %v", value[:max(n, 0)], err)
	}
}

// A file's capabilities end with a write even where the kernel can't ask for them.
func TestWithoutXattrsAWriteEndsCapabilities(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "program")
	must(t, os.WriteFile(p, []byte("before"), 0o755))
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // VFS_CAP_REVISION_2 with CAP_NET_BIND_SERVICE, see capability.h
	must(t, unix.Setxattr(p, capabilityName, capability, 0))
	lower, err := os.Open(dir)
	must(t, err)
	defer lower.Close()
	below := fmt.Sprintf("/proc/self/fd/%d/program", lower.Fd())
	m := mountDir(t, dir, fs.Options{InPlace: true, NoXattrs: true})
	id := m.snapshot(t)
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("after!")
	must(t, err)
	must(t, f.Close())
	_, err = unix.Getxattr(below, capabilityName, nil)
	want(t, err, unix.ENODATA)
	m.rollback(t, id)
	if n, err := unix.Getxattr(below, capabilityName, nil); err != nil || n != len(capability) {
		t.Errorf("after the rollback: %d bytes, %v", n, err)
	}
}

const capabilityName = "security.capability"

func TestWithoutXattrsOthersAreNotLetIn(t *testing.T) {
	w, err := overlay.Open(overlay.Config{Workspace: t.TempDir()})
	must(t, err)
	defer w.Close()
	if _, err := fs.Mount(w.Tree(), t.TempDir(), fs.Options{NoXattrs: true, AllowOther: true}); errs.CodeOf(err) != errs.Usage {
		t.Errorf("%v", err)
	}
}
