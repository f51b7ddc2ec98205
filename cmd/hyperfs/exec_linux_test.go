package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

// mountedAt is the host of a workspace that is mounted, or looks as if it were.
type mountedAt struct {
	offline
	mountpoint string
}

func (m mountedAt) Info() control.Daemon {
	d := m.offline.Info()
	d.Mountpoint = m.mountpoint
	return d
}

// workspaceWithBranch gives a workspace with a daemon, and a directory where a branch of it would be.
func workspaceWithBranch(t *testing.T) (ws, branch string) {
	t.Helper()
	ws, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := os.MkdirTemp("", "hyperfs") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	t.Setenv("XDG_RUNTIME_DIR", sockets)
	store := filepath.Join(t.TempDir(), "store")
	w, err := overlay.Open(overlay.Config{Workspace: ws, Store: store})
	if err != nil {
		t.Fatal(err)
	}
	branch = filepath.Join(ws, ".hyperfs/branches/try")
	if err := os.MkdirAll(filepath.Join(branch, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := control.Listen(ws, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	server := control.NewServer(control.Options{Workspace: w, Host: mountedAt{mountpoint: ws}, SpoolDir: store})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(w.Close); err != nil {
			t.Error(err)
		}
		<-served
	})
	return ws, branch
}

// executed runs hyperfs exec, and gives what it prints.
func executed(t *testing.T, code int, dir string, args ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	args = append([]string{"hyperfs", "-C", dir, "exec"}, args...)
	if got := run(args, strings.NewReader(""), &out, &errOut); got != code {
		t.Fatalf("%q: exit code %d, want %d: %s", args, got, code, &errOut)
	}
	return strings.TrimSpace(out.String())
}

func TestExecRunsInABranchAtTheWorkspacesPath(t *testing.T) {
	ws, branch := workspaceWithBranch(t)
	for _, sandbox := range []string{"--sandbox=false", "--sandbox"} {
		if got := executed(t, 0, ws, "--branch", "try", sandbox, "--", "sh", "-c", "pwd -P; ls -d sub; echo $PWD >>new"); got != ws+"\nsub" {
			t.Errorf("%s: it prints %q", sandbox, got)
		}
	}
	if b, err := os.ReadFile(filepath.Join(branch, "new")); err != nil || string(b) != ws+"\n"+ws+"\n" {
		t.Errorf("the branch has %q: %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(ws, "new")); err == nil {
		t.Error("the workspace was written to")
	}
	if err := os.Mkdir(filepath.Join(ws, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := executed(t, 0, filepath.Join(ws, "sub"), "--branch", "try", "--", "pwd", "-P"); got != filepath.Join(ws, "sub") {
		t.Errorf("it starts in %q", got)
	}
	executed(t, 5, ws, "--branch", "other", "--", "true")
	executed(t, 7, ws, "--branch", "try", "--", "sh", "-c", "exit 7")
}

// In a branch in a sandbox neither the workspace, nor its store, nor its daemon can be used to change anything outside of the branch.
func TestExecInABoxedBranchCannotReachTheWorkspace(t *testing.T) {
	ws, _ := workspaceWithBranch(t)
	status, err := dialStatus(ws)
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir() // which can be written to
	executed(t, 0, ws, "--branch", "try", "--sandbox", "--env", "T="+tmp, "--", "sh", "-c", "touch $T/file")
	for _, path := range []string{status.Store, os.Getenv("XDG_RUNTIME_DIR"), filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "hyperfs")} {
		executed(t, 1, ws, "--branch", "try", "--sandbox", "--env", "P="+path, "--", "sh", "-c", "touch $P/file 2>/dev/null")
	}
	socket := control.Sockets(ws)[0]
	if _, err := os.Stat(socket); err != nil {
		t.Fatal(err)
	}
	executed(t, 0, ws, "--branch", "try", "--env", "P="+socket, "--", "sh", "-c", "test -S $P")
	executed(t, 1, ws, "--branch", "try", "--sandbox", "--env", "P="+socket, "--", "sh", "-c", "test -S $P")
}

func dialStatus(ws string) (control.StatusReply, error) {
	client, err := control.Dial(context.Background(), ws)
	if err != nil {
		return control.StatusReply{}, err
	}
	defer client.Close()
	return client.Status(context.Background())
}
