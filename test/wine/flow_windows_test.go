package wine

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/hyperfs/hyperfs/internal/treestate"
)

// storm is what another program does to the workspace.
func storm(w *workspace) {
	w.Helper()
	w.shell(`echo more>>a.txt`)
	w.shell(`ren src\main.go start.go`)
	w.shell(`del src\old.go`)
	// Wine does nothing where only the case is to change.
	w.shell(`ren docs\Readme.md passing`)
	w.shell(`ren docs\passing README.md`)
	w.shell(`mkdir build\deep`)
	w.shell(`copy a.txt build\deep\copy.txt`)
	w.shell(`attrib +r build\deep\copy.txt`)
}

func TestWhatAnotherProgramChangedIsRolledBack(t *testing.T) {
	w := newWorkspace(t)
	before := w.capture()
	id := w.fine("snapshot", "-m", "before the storm")
	storm(w)
	after := w.capture()
	if len(treestate.Diff(before, after)) == 0 {
		t.Fatal("the other program has changed nothing")
	}
	want := "M\ta.txt\nA\tbuild/\nR\tdocs/Readme.md\tdocs/README.md\nD\tsrc/old.go\nR\tsrc/main.go\tsrc/start.go"
	if got := strings.ReplaceAll(w.fine("diff"), "\r", ""); got != want {
		t.Errorf("diff says\n%s\nwant\n%s", got, want)
	}
	if text := w.fine("rollback"); !strings.Contains(text, "rolled back to "+id) {
		t.Errorf("rollback says %q", text)
	}
	w.is(before)
	if got := w.fine("diff"); got != "" {
		t.Errorf("after the rollback diff says\n%s", got)
	}
	w.fine("undo")
	w.is(after)
	w.fine("rollback", id)
	w.is(before)
	if got := w.fine("fsck", "--deep"); got != "" {
		t.Errorf("fsck says %s", got)
	}
}

func TestADaemonAnswersOnItsPipe(t *testing.T) {
	w := newWorkspace(t)
	w.fine("serve")
	if text := w.fine("status"); !strings.Contains(text, "answers since") {
		t.Errorf("status says\n%s", text)
	}
	w.fails(6, "answers for it already", "serve")
	before := w.capture()
	id := w.fine("snapshot")
	storm(w)
	w.fine("rollback", id)
	w.is(before)
	w.fine("unmount")
	w.fails(5, "not mounted", "unmount", w.dir)
	if text := w.fine("list"); !strings.Contains(text, id) {
		t.Errorf("without the daemon list says\n%s", text)
	}
	if text, err := os.ReadFile(w.path(`.hyperfs\log`)); err != nil || !strings.Contains(string(text), "serving") {
		t.Errorf("the log has %q, %v", text, err)
	}
}

func TestADaemonThatWasKilledLeavesNothingInTheWay(t *testing.T) {
	w := newWorkspace(t)
	w.fine("serve")
	id := w.fine("snapshot")
	before := w.capture()
	w.killDaemon()
	storm(w)
	w.fine("rollback", id)
	w.is(before)
	w.fine("serve")
	w.fine("unmount")
}

func TestRunPassesOnExitCodes(t *testing.T) {
	w := newWorkspace(t)
	before := w.capture()
	for _, code := range []string{"1", "7", "3000"} {
		r := w.hyperfs("run", "--", "cmd.exe", "/d", "/c", "echo broken>a.txt& del src\\old.go& exit "+code)
		if got := itoa(r.code); got != code || !strings.Contains(r.stderr, "rolled back") {
			t.Errorf("it ends with %s, want %s: %s", got, code, r.stderr)
		}
		w.is(before)
	}
	if r := w.hyperfs("run", "--", "cmd.exe", "/d", "/c", "echo fine>new.txt"); r.code != 0 || !strings.Contains(r.stderr, "kept") {
		t.Errorf("it ends with %d: %s", r.code, r.stderr)
	}
	if _, err := os.Stat(w.path("new.txt")); err != nil {
		t.Error(err)
	}
	w.fine("rollback")
	w.is(before)
	if r := w.hyperfs("run", "--", "no-such-program"); r.code != 127 {
		t.Errorf("a program that is not there gives %d: %s", r.code, r.stderr)
	}
}

func TestAnAttemptStaysOrGoesBack(t *testing.T) {
	w := newWorkspace(t)
	before := w.capture()
	w.fails(5, "it is not in one", "attempt", "--", "cmd.exe", "/d", "/c", "echo more>>a.txt")
	w.fine("serve")
	w.fails(1, "Linux", "attempt", "--timeout", "1m", "--", "cmd.exe", "/d", "/c", "echo more>>a.txt")
	if r := w.hyperfs("attempt", "--", "cmd.exe", "/d", "/c", "echo more>>a.txt& del src\\old.go& exit 7"); r.code != 7 || !strings.Contains(r.stderr, "rolled back") {
		t.Errorf("a failure ends with %d: %s", r.code, r.stderr)
	}
	w.is(before)
	if r := w.hyperfs("attempt", "--", "no such program"); r.code != 127 || !strings.Contains(r.stderr, "command not found") {
		t.Errorf("what is not there ends with %d: %s", r.code, r.stderr)
	}
	text := w.fine("attempt", "--json", "--env", "WORD=more", "--", "cmd.exe", "/d", "/c", "echo %WORD%>>a.txt")
	var reply struct {
		ExitCode  int `json:"exit_code"`
		Reconcile struct{ Modified []string }
	}
	if err := json.Unmarshal([]byte(text), &reply); err != nil || reply.ExitCode != 0 || strings.Join(reply.Reconcile.Modified, " ") != "a.txt" {
		t.Errorf("a success says %s, %v", text, err)
	}
	if b, err := os.ReadFile(w.path("a.txt")); string(b) != "one\r\nmore\r\n" {
		t.Errorf("a.txt holds %q, %v", b, err)
	}
	w.fine("unmount")
}

func TestDiagnosticsTellTheVolume(t *testing.T) {
	w := newWorkspace(t)
	w.fine("snapshot")
	var d struct {
		Volume map[string]string `json:"windows_volume"`
	}
	w.must(json.Unmarshal([]byte(w.fine("diagnostics", "--json")), &d))
	if d.Volume["file_system"] == "" {
		t.Errorf("the volume is %q", d.Volume)
	}
	for _, name := range []string{"hard_links", "block_clone", "dev_drive", "trusted"} {
		if answer := d.Volume[name]; answer != "yes" && answer != "no" && answer != "unknown" {
			t.Errorf("%s: %q", name, answer)
		}
	}
}

func TestErrorsHaveTheirExitCodes(t *testing.T) {
	w := newWorkspace(t)
	w.fails(5, "not in one (hyperfs snapshot makes one)", "diff")
	w.fails(1, "on Linux alone", "mount")
	w.fails(1, "on Linux alone", "snapshot", "--backend", "fuse")
	w.fails(1, "on Linux alone", "run", "--backend", "fuse", "--", "cmd.exe")
	w.fails(2, "is none", "snapshot", "--backend", "pigeon")
	w.fine("snapshot")
	w.fails(5, "no such checkpoint", "rollback", "ckpt_00000000000000000000000000")
	w.fails(1, "keeps copies on disk", "run", "--tier", "ntfs-link", "--", "cmd.exe", "/c", "exit")
}
