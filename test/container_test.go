package test

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// container is an image with a shell and hyperfs in it, and nothing else.
type container struct {
	*testing.T
	image string
	ws    string // on the host; /work within
}

// newContainer makes the image. It needs what an ordinary machine does not have: podman with runc, and busybox linked statically.
func newContainer(t *testing.T) *container {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root's podman works without more set-up")
	}
	for _, name := range []string{"podman", "runc", "busybox"} {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, err.Error())
		}
	}
	c := &container{T: t, image: fmt.Sprintf("localhost/hyperfs-test-%d-%s", os.Getpid(), strings.ToLower(t.Name())), ws: newWorkspace(t)}
	files := memory(t) + "/root.tar"
	if err := writeImage(files); err != nil {
		t.Fatal(err)
	}
	c.podman("import", "--quiet", files, c.image)
	t.Cleanup(func() { c.podman("rmi", "--force", c.image) })
	return c
}

// writeImage writes the archive of a root directory.
func writeImage(path string) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	hyperfs, err := plain.path()
	if err != nil {
		return err
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	for _, dir := range []string{"bin", "dev", "proc", "run", "tmp", "work"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return err
		}
	}
	for _, name := range strings.Fields("sh rm mv cp ln cat mkdir chmod test grep sed") {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}); err != nil {
			return err
		}
	}
	for name, from := range map[string]string{"bin/hyperfs": hyperfs, "bin/busybox": busybox} {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	return w.Close()
}

func (c *container) podman(args ...string) string {
	c.Helper()
	out, err := podman(args...)
	if err != nil {
		c.Fatal(err)
	}
	return out
}

func podman(args ...string) (string, error) {
	out, err := exec.Command("podman", append([]string{"--runtime", "runc"}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("podman %q: %w\n%s", args, err, out)
	}
	return string(out), err
}

// do runs a shell script in a new container, in the workspace, and gives what it prints. The limits keep an engine that may not raise them
// from trying.
func (c *container) do(script string, options ...string) string {
	c.Helper()
	out, err := c.at("/work", c.ws, script, options...)
	if err != nil {
		c.Fatal(err)
	}
	return out
}

// at does it in a directory of the host, which stands at a path of the container's own.
func (c *container) at(path, dir, script string, options ...string) (string, error) {
	args := append([]string{"run", "--rm", "--network", "none", "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=100:100"}, options...)
	return podman(append(args, "-v", dir+":"+path, "-w", path, c.image, "sh", "-euc", script)...)
}

func TestAContainerWithoutFUSERollsBackByScanning(t *testing.T) {
	t.Parallel()
	c := newContainer(t)
	c.do(`mkdir -p src/deep kept; echo one >src/a; echo two >src/deep/b; ln src/a kept/also; ln -s ../src kept/link; chmod 700 src/deep; echo x >kept/x`)
	before := plainState(t, c.ws)
	out := c.do(`hyperfs run -- sh -c 'test ! -e /dev/fuse; echo more >>src/a; rm -r src/deep; mkdir new; mv kept/x new/y; chmod 600 src/a; echo b >b'; hyperfs status`)
	if !strings.Contains(out, "no FUSE here") || !strings.Contains(out, "scan") {
		t.Errorf("it does not say that it scans, and why:\n%s", out)
	}
	after := plainState(t, c.ws)
	if len(treestate.Diff(before, after)) == 0 {
		t.Fatal("nothing has changed")
	}
	c.do(`hyperfs diff | grep -q b; hyperfs rollback; hyperfs fsck --deep`)
	if diff := treestate.Diff(before, plainState(t, c.ws)); len(diff) > 0 {
		t.Errorf("after the rollback:\n\t%s", strings.Join(diff, "\n\t"))
	}
	c.do(`hyperfs undo`)
	if diff := treestate.Diff(after, plainState(t, c.ws)); len(diff) > 0 {
		t.Errorf("after the undo:\n\t%s", strings.Join(diff, "\n\t"))
	}
	out = c.do(`hyperfs run -- sh -c 'rm -rf src kept; exit 7' && exit 1; test $? = 7`) // what fails is taken back
	if diff := treestate.Diff(after, plainState(t, c.ws)); len(diff) > 0 {
		t.Errorf("after a command that failed:\n\t%s\n%s", strings.Join(diff, "\n\t"), out)
	}
}

func TestAContainerWithFUSEMounts(t *testing.T) {
	t.Parallel()
	needMount(t)
	c := newContainer(t)
	c.do(`mkdir -p src; echo one >src/a; ln src/a b`)
	before := plainState(t, c.ws)
	out := c.do(`hyperfs run -- sh -c 'echo more >>src/a; rm b; echo c >c'; hyperfs mount .; cd .; echo d >d; hyperfs status
		hyperfs diff | grep -q c; hyperfs rollback; test ! -e c
		hyperfs fork a; hyperfs exec --branch a -- sh -euc 'test "$(pwd)" = /work; echo e >e; rm b'; test -e b; hyperfs merge a; test -e e; test ! -e b
		hyperfs undo; test ! -e e; cd /; hyperfs unmount /work`,
		"--device", "/dev/fuse", "--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined")
	if strings.Contains(out, "no FUSE here") || !strings.Contains(out, "in place") {
		t.Errorf("it scans:\n%s", out)
	}
	if diff := treestate.Diff(before, plainState(t, c.ws)); len(diff) > 0 {
		t.Errorf("after the rollback:\n\t%s\n%s", strings.Join(diff, "\n\t"), out)
	}
}
