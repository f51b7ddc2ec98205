package main

import (
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/internal/ignore"
)

// ignoreFlags say what has no history.
func ignoreFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "ignore", Usage: "paths that match `PATTERN`, as in a .gitignore, have no history; may be given several times (default: the lines of $HYPERFS_IGNORE)"},
		&cli.StringFlag{Name: "ignore-file", EnvVars: []string{"HYPERFS_IGNORE_FILE"}, Usage: "take such patterns from the lines of `FILE`"},
		&cli.StringFlag{Name: "preset", EnvVars: []string{"HYPERFS_PRESET"}, Usage: "the patterns of a `NAME`: deps is " + strings.Join(ignore.Presets["deps"], ", ")},
		&cli.BoolFlag{Name: "strict-ignored", EnvVars: []string{"HYPERFS_STRICT_IGNORED"}, Usage: "let writes to ignored paths fail with EROFS"},
	}
}

// patternFlags are those of ignoreFlags that the backend scan can do something about.
func patternFlags() []cli.Flag {
	return slices.DeleteFunc(ignoreFlags(), func(f cli.Flag) bool { return slices.Contains(f.Names(), "strict-ignored") })
}

// saysIgnored reports whether the flags or the environment say what is ignored, be it nothing.
func saysIgnored(c *cli.Context) bool {
	return c.IsSet("ignore") || c.IsSet("ignore-file") || c.IsSet("preset") || os.Getenv(envIgnore) != ""
}

// refusePatterns refuses flags that say what is ignored where a mount or a daemon has said it.
func refusePatterns(c *cli.Context) error {
	for _, f := range patternFlags() {
		name := f.Names()[0]
		env := f.(cli.DocGenerationFlag).GetEnvVars()
		if c.IsSet(name) && (len(env) == 0 || os.Getenv(env[0]) == "") {
			return errs.New(control.Usage, c.Command.Name, "--"+name, "what is ignored is said when the workspace is mounted or served").
				WithHint("hyperfs unmount, then hyperfs mount --" + name)
		}
	}
	return nil
}

// envIgnore has patterns, one a line, where --ignore does not.
const envIgnore = "HYPERFS_IGNORE"

// ignoreOf reads the flags: the preset first, so that a pattern can make an exception from it, then the file, then what was given one by one.
func ignoreOf(c *cli.Context) ([]string, error) {
	if c.IsSet(readyFlag) { // whoever starts a daemon has put all of them together
		return c.StringSlice("ignore"), nil
	}
	var lines []string
	preset, err := given(c, "preset")
	if err != nil {
		return nil, err
	}
	if preset != "" {
		of, ok := ignore.Presets[preset]
		if !ok {
			return nil, errs.New(control.Usage, c.Command.Name, "--preset", "%q is none", preset).WithHint(strings.Join(slices.Sorted(maps.Keys(ignore.Presets)), ", "))
		}
		lines = append(lines, of...)
	}
	name, err := given(c, "ignore-file")
	if err != nil {
		return nil, err
	}
	if name != "" {
		if name, err = absolute(c, name); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, errs.Wrap(control.Path, c.Command.Name, name, cause(err))
		}
		lines = append(lines, linesOf(string(text))...)
	}
	if c.IsSet("ignore") {
		lines = append(lines, c.StringSlice("ignore")...)
	} else {
		lines = append(lines, linesOf(os.Getenv(envIgnore))...)
	}
	if _, err := ignore.Compile(lines); err != nil {
		return nil, errs.New(control.Usage, c.Command.Name, "--ignore", "%w", err)
	}
	return lines, nil
}

func linesOf(text string) []string {
	text = strings.TrimPrefix(strings.TrimSuffix(text, "\n"), "\ufeff")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
