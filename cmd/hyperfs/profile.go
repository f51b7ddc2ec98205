package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// profileCPU is what users call the kind that the API calls profile, as Go does.
const profileCPU = "cpu"

func profileCommand() *cli.Command {
	return &cli.Command{
		Name:      "profile",
		Usage:     "take a profile of the daemon, for whoever finds out why something is slow",
		UsageText: "hyperfs profile [--seconds N] [--text] KIND > FILE",
		Description: example("KIND is cpu, heap, allocs, goroutine, threadcreate, mutex or block, for go tool pprof; or trace, for go tool trace.\n"+
			"docs/performance.md shows what to do with it.",
			"hyperfs profile --seconds 10 cpu > cpu.pprof", "hyperfs profile --text goroutine"),
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "seconds", Value: 5, Usage: "how long cpu, mutex, block and trace watch: `N`, from 1 to 300"},
			&cli.BoolFlag{Name: "text", Usage: "print text for people, where the kind has it: all but cpu and trace"},
		},
		Action: arguments(1, 1, profileAction),
	}
}

func profileAction(c *cli.Context) error {
	kind, text := c.Args().First(), c.Bool("text")
	if kind == profileCPU {
		kind = "profile"
	}
	binary := kind == "profile" || kind == "trace"
	switch {
	case !slices.Contains(control.ProfileKinds(), kind):
		kinds := strings.Join(control.ProfileKinds(), ", ")
		return errs.New(control.Usage, "profile", kind, "there is no such kind").WithHint(strings.Replace(kinds, "profile", profileCPU, 1))
	case text && binary:
		return errs.New(control.Usage, "profile", "--text", "%s has none", c.Args().First()).WithHint("go tool pprof -top FILE")
	case !text && isTerminal(c.App.Writer):
		return errs.New(control.Usage, "profile", "", "a profile is no text").WithHint("hyperfs profile " + c.Args().First() + " > FILE")
	}
	p, err := find(c.Context, c)
	if err != nil {
		return err
	}
	if p.socket == "" {
		return errs.New(control.NotFound, "profile", p.dir, "no daemon answers for it").WithHint("hyperfs mount " + p.dir)
	}
	w := control.NewClient(p.socket)
	defer w.Close()
	return w.Profile(c.Context, kind, c.Int("seconds"), text, c.App.Writer)
}
