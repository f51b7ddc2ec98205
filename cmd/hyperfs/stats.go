package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

func statsCommand() *cli.Command {
	return &cli.Command{
		Name:      "stats",
		Usage:     "show what programs have asked of the mount, how long each kind of request took, and what the daemon uses",
		UsageText: "hyperfs stats [--watch [--interval D]] [--json] [-- CMD ARG…]",
		Description: example("It counts from the mount on; with CMD it runs that, and shows what was asked meanwhile, by whomever: how many round trips a program costs.\n"+
			"Times are those of the daemon. Reads and writes that the kernel does by itself (passthrough) can't be seen.\n"+
			"With --json the document comes on stdout, and CMD's own output on stderr.",
			"hyperfs stats --watch", "hyperfs stats -- git status"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show it again and again, each time what there was since the last"},
			&cli.DurationFlag{Name: "interval", Value: time.Second, Usage: "with --watch: how long between, `D`, as 500ms or 10s"},
			jsonFlag(),
		},
		Action: statsAction,
	}
}

// statsMinInterval is the shortest --interval: what is shorter keeps the daemon from its work.
const statsMinInterval = 50 * time.Millisecond

func statsAction(c *cli.Context) error {
	watch, asJSON := c.Bool("watch"), flagAnywhere(c, "json")
	switch {
	case watch && (asJSON || c.Args().Present()):
		return errs.New(control.Usage, "stats", "--watch", "it goes neither with --json nor with a command")
	case c.IsSet("interval") && (!watch || c.Duration("interval") < statsMinInterval):
		return errs.New(control.Usage, "stats", "--interval", "it belongs to --watch, and is %s at least", statsMinInterval)
	}
	p, err := find(c.Context, c)
	if err != nil {
		return err
	}
	if p.socket == "" {
		return errs.New(control.NotFound, "stats", p.dir, "no daemon answers for it").WithHint("hyperfs mount " + p.dir)
	}
	w := control.NewClient(p.socket)
	defer w.Close()
	switch {
	case c.Args().Present():
		return statsOf(c, p, w)
	case watch:
		return watchStats(c, w)
	}
	r, err := w.Stats(c.Context)
	if err != nil {
		return err
	}
	return output(c, r, func(out io.Writer) error { return printStats(out, r) })
}

// watchStats shows what there was in each interval, until it is interrupted.
func watchStats(c *cli.Context, w *control.Client) error {
	before, err := w.Stats(c.Context)
	tick := time.NewTicker(c.Duration("interval"))
	defer tick.Stop()
	for err == nil {
		select {
		case <-tick.C:
		case <-c.Context.Done():
			return nil
		}
		var now control.StatsReply
		if now, err = w.Stats(c.Context); err != nil {
			break
		}
		var text strings.Builder
		fmt.Fprintf(&text, "%s, since %s before\n", clock(now.At), short(now.At.Sub(before.At)))
		if err = printStats(&text, now.Sub(before)); err == nil {
			err = show(c.App.Writer, text.String())
		}
		before = now
	}
	if c.Context.Err() != nil {
		return nil // an interrupt ended the call
	}
	return err
}

// show prints text over what was there before, on a terminal, and else below it.
func show(out io.Writer, text string) error {
	if isTerminal(out) {
		text = "\x1b[H\x1b[2J" + text
	} else {
		text += "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// statsRun is what --json says of a command.
type statsRun struct {
	execReply
	control.StatsReply
}

// statsOf runs a command and shows what was asked for meanwhile.
func statsOf(c *cli.Context, p place, w *control.Client) error {
	x, err := askExec(c, p)
	if err != nil {
		return err
	}
	cmd, err := x.command(c, "")
	if err != nil {
		return err
	}
	before, err := w.Stats(c.Context)
	if err != nil {
		return err
	}
	r, err := execute(c, cmd)
	if err != nil {
		return err
	}
	after, err := settled(context.WithoutCancel(c.Context), w)
	if err != nil {
		return err
	}
	d := after.Sub(before)
	out := c.App.ErrWriter // the command's output is on stdout
	if flagAnywhere(c, "json") {
		err = printJSON(c.App.Writer, statsRun{execReply{r.ShellCode(), r.Duration}, d})
	} else if err = printStats(out, d); err == nil {
		_, err = fmt.Fprintf(out, "%s took %s\n", quote(c.Args().First()), short(r.Duration))
	}
	if err == nil && r.ShellCode() != 0 {
		return exited(r.ShellCode())
	}
	return err
}

const (
	settleStep  = 10 * time.Millisecond
	settleSteps = 50
)

// settled gives the counters once the requests that come after a program has ended, such as those for the last close of its files, have been answered;
// but does not wait for others who go on.
func settled(ctx context.Context, w *control.Client) (control.StatsReply, error) {
	last, err := w.Stats(ctx)
	for range settleSteps {
		if err != nil || last.Mount == nil {
			break
		}
		time.Sleep(settleStep)
		before, _, _ := last.Mount.Requests()
		last, err = w.Stats(ctx)
		if err == nil {
			if after, _, _ := last.Mount.Requests(); after == before {
				break
			}
		}
	}
	return last, err
}

// printStats prints a table of the operations, those first that took the most time, and what else is counted.
func printStats(out io.Writer, r control.StatsReply) error {
	if r.Mount != nil && len(r.Mount.Operations) > 0 {
		err := table(out, func(row func(...any)) { operationRows(row, r) })
		if err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	return table(out, func(row func(...any)) { statsRows(row, r) })
}

func operationRows(row func(...any), r control.StatsReply) {
	row("operation", "count", "per s", "errors", "mean", "p50", "p90", "p99", "max", "in all")
	seconds := r.At.Sub(r.Since).Seconds()
	byTime := slices.SortedFunc(slices.Values(r.Mount.Operations), func(a, b control.Operation) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range byTime {
		row(o.Name, o.Count, rate(float64(o.Count)/seconds), o.Errors, short(o.Mean), short(o.P50), short(o.P90), short(o.P99), short(o.Max), short(o.Total))
	}
}

func statsRows(row func(...any), r control.StatsReply) {
	var requests uint64
	if m := r.Mount; m != nil {
		all, waited, took := m.Requests()
		requests = all
		row("requests", fmt.Sprintf("%d, for %d of which a program waited; %s of work", all, waited, short(took)))
		row("bytes", fmt.Sprintf("%s read, %s written by requests; %s past the daemon, which sees no reads and writes of these",
			bytesText(int64(m.ReadBytes)), bytesText(int64(m.WrittenBytes)), plural(int(m.Events["passthrough_open"]), "open")))
		for _, name := range slices.Sorted(maps.Keys(m.Events)) {
			if name != "passthrough_open" {
				row("event", fmt.Sprintf("%s %d", name, m.Events[name]))
			}
		}
	}
	if t := r.Tree; t != nil {
		row("checkpoints", fmt.Sprintf("%d made, %s", t.Snapshots, plural(int(t.Rollbacks), "rollback")))
		for _, p := range t.Preimages {
			row("preimages", fmt.Sprintf("%s: %d, %s", p.Kind, p.Count, bytesText(int64(p.Bytes))))
		}
		if h := t.Hot; h != nil && h.Hits+h.Spills > 0 {
			row("hot buffer", fmt.Sprintf("%s, %s, %d mirrored", plural(int(h.Hits), "hit"), plural(int(h.Spills), "spill"), h.Mirrored))
		}
	}
	p := r.Process
	text := fmt.Sprintf("user %s, system %s", short(p.User), short(p.System))
	if requests > 0 {
		text += fmt.Sprintf("; %s a request, and %.1f allocations", short((p.User+p.System)/time.Duration(requests)), float64(p.Allocs)/float64(requests))
	}
	row("CPU", text)
	memory := fmt.Sprintf("%s resident, %s at most, %s in Go's heap", bytesText(p.RSS), bytesText(p.MaxRSS), bytesText(int64(p.Heap)))
	if r.Mount != nil {
		memory += "; " + plural(r.Mount.KernelNodes, "inode") + " known to the kernel"
	}
	row("memory", memory)
	if t := r.Tree; t != nil {
		row("open", fmt.Sprintf("%s, %s, of these %d for directories; %s", plural(t.Handles, "handle"), plural(t.Descriptors, "descriptor"), t.Directories, plural(int(p.Goroutines), "goroutine")))
	}
}

// rate gives a count per second, for people.
func rate(f float64) string {
	if f < 10 {
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

// short gives a duration with three digits.
func short(d time.Duration) string {
	unit := time.Nanosecond
	for d >= 1000*unit && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit).String()
}
