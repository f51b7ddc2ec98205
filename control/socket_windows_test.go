package control

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/windows"
)

func TestPipeAnswersWhoeverAsksForTheWorkspace(t *testing.T) {
	workspace := t.TempDir()
	if _, err := FindSocket(context.Background(), workspace); CodeOf(err) != NotFound {
		t.Fatalf("before anybody listens: %v", err)
	}
	l, err := Listen(workspace, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "here")
			_ = c.Close()
		}
	}()
	path, err := FindSocket(context.Background(), workspace)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dialSocket(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); string(text) != "here" {
		t.Errorf("it says %q, %v", text, err)
	}
	_ = c.Close()
	if _, err := Listen(workspace, "", nil); CodeOf(err) != Busy {
		t.Errorf("a second listener: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := FindSocket(context.Background(), workspace); CodeOf(err) != NotFound {
		t.Errorf("after the end: %v", err)
	}
}

func TestPipeLetsInItsOwnerAdministratorsAndTheSystemAlone(t *testing.T) {
	l, err := Listen(t.TempDir(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_ = c.Close()
		}
	}()
	c, err := dialSocket(context.Background(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	user, err := currentUser()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"S-1-5-18", "S-1-5-32-544", user.String()}
	slices.Sort(want)
	if got := whoMay(t, c); !slices.Equal(got, want) {
		t.Errorf("%q may use it, want %q", got, want)
	}
}

// whoMay lists who an access control list allows something.
func whoMay(t *testing.T, c net.Conn) []string {
	t.Helper()
	h := windows.Handle(c.(interface{ Fd() uintptr }).Fd())
	sd, err := windows.GetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	acl, _, err := sd.DACL()
	if err != nil || acl == nil {
		t.Fatalf("it has no list: %v", err)
	}
	var who []string
	for i := range uint32(acl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(acl, i, &ace); err != nil {
			t.Fatal(err)
		}
		if ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE {
			t.Errorf("an entry of type %d", ace.Header.AceType)
		}
		who = append(who, (*windows.SID)(unsafe.Pointer(&ace.SidStart)).String())
	}
	slices.Sort(who)
	return who
}
