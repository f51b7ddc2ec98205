package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
	"github.com/hyperfs/hyperfs/strategy"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:        "status",
		Usage:       "show one screen of state",
		UsageText:   "hyperfs status",
		Description: example("", "hyperfs status --json"),
		Flags:       []cli.Flag{jsonFlag()},
		Action: arguments(0, 0, func(c *cli.Context) error {
			return withWorkspace(c, func(w *control.Client) error {
				s, err := w.Status(c.Context)
				if err != nil {
					return err
				}
				return output(c, s, func(out io.Writer) error {
					return table(out, func(row func(...any)) { statusRows(row, s) })
				})
			})
		}),
	}
}

func diagnosticsCommand() *cli.Command {
	return &cli.Command{
		Name:        "diagnostics",
		Usage:       "show everything the workspace knows about itself",
		UsageText:   "hyperfs diagnostics",
		Description: example("It costs little: nothing is scanned.", "hyperfs diagnostics --json"),
		Flags:       []cli.Flag{jsonFlag()},
		Action: arguments(0, 0, func(c *cli.Context) error {
			return withWorkspace(c, func(w *control.Client) error {
				d, err := w.Diagnostics(c.Context)
				if err != nil {
					return err
				}
				return output(c, d, func(out io.Writer) error {
					return table(out, func(row func(...any)) { diagnosticsRows(row, d) })
				})
			})
		}),
	}
}

func statusRows(row func(...any), s control.StatusReply) {
	row("workspace", quote(s.Workspace))
	row("mount", mountText(s.Daemon))
	for _, b := range s.Daemon.Branches {
		row("branch "+quote(b.Branch), "at "+quote(b.Mountpoint))
	}
	row("backend", backendText(s.Status))
	row("store", quote(s.Store))
	row("tier", s.Tier)
	if s.Hot != nil {
		row("hot buffer", hotText(*s.Hot))
	}
	if s.Ignore != nil {
		row("ignored", ignoreText(*s.Ignore))
	}
	newest := "none"
	if s.Newest != "" {
		newest = fmt.Sprintf("%s (%s)", s.Newest, ago(s.NewestAt))
	}
	row("checkpoints", fmt.Sprintf("%d active, newest %s", s.Checkpoints, newest))
	if s.Newest != "" && s.Scan == nil {
		row("since then", fmt.Sprintf("%s and %s recorded", plural(s.Slots, "name"), plural(s.Inodes, "inode")))
	}
	if s.Halfway != "" {
		row("read-only", s.Halfway)
	}
	if s.Undo != "" {
		row("undo", s.Undo)
	}
	for _, a := range s.Attempts {
		row("attempt", attemptText(a))
	}
	for _, t := range s.Turns {
		row("turn", turnText(t))
	}
}

// turnText says which turn is under way, and who is going to end it.
func turnText(t turn.Turn) string {
	text := fmt.Sprintf("%s of %s in %s, begun %s", t.ID, quote(t.Conversation), quote(t.WorksIn), ago(t.CreatedAt))
	if t.Status != checkpoint.TurnPending {
		text += fmt.Sprintf(", %s: its files are not back yet", t.Status)
	}
	return text + "; " + cmp.Or(ownerOf(t), nobodyEndsIt)
}

// attemptText says what is under way, and who is going to end it.
func attemptText(a attempt.Attempt) string {
	text := fmt.Sprintf("%s in %s, begun %s", a.ID, quote(a.WorksIn), ago(a.CreatedAt))
	if a.PID != 0 {
		text += fmt.Sprintf(", by process %d", a.PID)
	}
	return text
}

// backendText names the backend, and what a checkpoint costs with it.
func backendText(s overlay.Status) string {
	if s.Scan == nil {
		return s.Backend
	}
	text := fmt.Sprintf("%s: a checkpoint walks the whole tree; the last one %s in %s", s.Backend, plural(s.Scan.Entries, "name"), s.Scan.Duration.Round(100*time.Microsecond))
	for _, dir := range s.Scan.Unprotected {
		text += "; not protected, as something else is mounted there: " + quote(dir)
	}
	return text
}

// ignoreText names what is ignored.
func ignoreText(i overlay.IgnoreStatus) string {
	var list []string
	for _, p := range i.Patterns {
		list = append(list, quote(p))
	}
	text := strings.Join(list, " ")
	if i.Strict {
		text += "; strict: writes there fail"
	}
	return text
}

// hotText says what the hot buffer holds, and whether the disk has it too.
func hotText(h strategy.HotStats) string {
	text := fmt.Sprintf("%s, %s", plural(h.Files, "preimage"), bytesText(h.Bytes))
	if h.PendingFiles > 0 {
		text += fmt.Sprintf(", of these %d not mirrored yet", h.PendingFiles)
	}
	text += fmt.Sprintf("; %s, %s", plural(int(h.Hits), "hit"), plural(int(h.Spills), "spill"))
	if !h.On {
		text += "; off: " + oneLine(h.Reason)
	}
	return text
}

// mountText says what is mounted by whom.
func mountText(d control.Daemon) string {
	if d.Mountpoint == "" && !d.StartedAt.IsZero() {
		return fmt.Sprintf("none; process %d answers since %s", d.PID, clock(d.StartedAt))
	}
	if d.Mountpoint == "" {
		return "none"
	}
	where := "at " + quote(d.Mountpoint)
	if d.InPlace {
		where = "in place"
	}
	if d.Detached {
		where = "detached, while files of it are open"
	}
	return fmt.Sprintf("%s, by process %d since %s", where, d.PID, clock(d.StartedAt))
}

func diagnosticsRows(row func(...any), d control.DiagnosticsReply) {
	s := control.StatusReply{Status: d.Status, Daemon: d.Daemon, Attempts: d.Attempts}
	if d.Turns != nil {
		s.Turns = d.Turns.UnderWay
	}
	statusRows(row, s)
	if t := d.Turns; t != nil && t.Turns > 0 {
		row("turns", fmt.Sprintf("%s of %s; their newest states have %s", plural(t.Turns, "turn"), plural(t.Conversations, "conversation"), bytesText(t.Bytes)))
		for _, id := range t.Damaged {
			row("damaged turn", id)
		}
	}
	row("version", versionText(d.Daemon.Version))
	for _, f := range d.Daemon.Version.Features {
		row("feature", featureText(f))
	}
	if v := d.WindowsVolume; v != nil {
		row("volume", fmt.Sprintf("%s; hard links: %s; clones files: %s; Dev Drive: %s; trusted: %s",
			cmp.Or(v.FileSystem, string(overlay.Unknown)), v.HardLinks, v.BlockClone, v.DevDrive, v.Trusted))
	}
	for _, p := range d.Probes {
		row("probe", fmt.Sprintf("%s %s: %s", p.Kind, yesNo(p.OK), oneLine(p.Reason)))
	}
	for _, g := range d.Degraded {
		row("degraded", fmt.Sprintf("%s: from %s to %s: %s", clock(g.At), g.From, g.To, oneLine(g.Reason)))
	}
	for _, k := range slices.Backward(d.Active) {
		row("active", k.ID, clock(k.CreatedAt), about(k))
	}
	if h := d.Hot; h != nil {
		row("hot limits", fmt.Sprintf("%s in a file, %s and %s not mirrored", bytesText(h.Limits.FileBytes), bytesText(h.Limits.TotalBytes), plural(h.Limits.Files, "file")))
		row("hot mirrored", fmt.Sprintf("%s; %s kept in %s", plural(int(h.Mirrored), "preimage"), bytesText(h.Bytes), plural(h.Segments, "segment")))
	}
	for _, w := range d.Ignored {
		row("ignored write", clock(w.At), w.Action, w.Kind, quote(w.Path), plural(w.Count, "time"))
	}
	row("epoch", d.Epoch)
	row("store size", bytesText(d.StoreBytes))
	row("trash", plural(d.TrashFiles, "file"))
	row("preimages", fmt.Sprintf("%d, of these %d in RAM", d.Backups, d.InRAM))
	row("in memory", fmt.Sprintf("%s, %s", plural(d.Nodes, "inode"), plural(d.Handles, "handle")))
	row("descriptors", fmt.Sprintf("%d of %d, %d for directories at most", d.Descriptors, d.Limits.Descriptors, d.Limits.DirCache))
	row("API calls", d.Daemon.Requests)
	for _, name := range slices.Sorted(maps.Keys(d.Counters)) {
		row("counter", name, d.Counters[name])
	}
}

func featureText(f control.Feature) string {
	s := f.Name + " " + yesNo(f.On)
	if f.Note != "" {
		s += ": " + oneLine(f.Note)
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:      "version",
		Usage:     "show version, Go, kernel and the FUSE features found",
		UsageText: "hyperfs version",
		Description: example("In a mounted workspace the features are those in use, of the daemon that may be older than the program.",
			"hyperfs version --json"),
		Flags:  []cli.Flag{jsonFlag()},
		Action: arguments(0, 0, showVersion),
	}
}

// versionReply is the JSON form: the daemon is there if one answers.
type versionReply struct {
	control.Version
	Daemon *control.Version `json:"daemon,omitempty"`
}

func showVersion(c *cli.Context) error {
	r := versionReply{Version: buildVersion()}
	if p, err := find(c.Context, c); err == nil && p.socket != "" {
		client := control.NewClient(p.socket)
		defer client.Close()
		v, err := client.Version(c.Context)
		if err != nil {
			return err
		}
		r.Daemon = &v
	}
	return output(c, r, func(out io.Writer) error {
		return table(out, func(row func(...any)) {
			row("hyperfs", versionText(r.Version))
			row("go", r.Go)
			row("platform", r.OS+"/"+r.Arch)
			row("kernel", r.Kernel)
			for _, f := range r.Features {
				row("feature", featureText(f))
			}
			if r.Daemon != nil {
				row("daemon", versionText(*r.Daemon))
				for _, f := range r.Daemon.Features {
					row("in use", featureText(f))
				}
			}
		})
	})
}

func versionText(v control.Version) string {
	return strings.TrimSpace(v.Version + " " + v.Revision)
}
