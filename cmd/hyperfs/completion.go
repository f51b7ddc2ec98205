package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
)

// bashCompletion asks the program itself, with the words before the cursor.
const bashCompletion = `_hyperfs() {
  local cur="${COMP_WORDS[COMP_CWORD]}" words=("${COMP_WORDS[@]:0:COMP_CWORD}")
  if [[ "$cur" == -* ]]; then
    words+=("$cur")
  fi
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur"))
}
complete -o bashdefault -o default -F _hyperfs hyperfs
`

const zshCompletion = `#compdef hyperfs
_hyperfs() {
  local -a opts
  local cur="${words[CURRENT]}"
  if [[ "$cur" == -* ]]; then
    opts=("${(@f)$(${words[@]:0:#words[@]-1} ${cur} --generate-bash-completion 2>/dev/null)}")
  else
    opts=("${(@f)$(${words[@]:0:#words[@]-1} --generate-bash-completion 2>/dev/null)}")
  fi
  if [[ -n "${opts[1]}" ]]; then
    compadd -a opts
  else
    _files
  fi
}
compdef _hyperfs hyperfs
`

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:        "completion",
		Usage:       "print a script that completes commands, flags and checkpoints in a shell",
		UsageText:   "hyperfs completion bash|zsh|fish",
		Description: example("", "source <(hyperfs completion bash)", "hyperfs completion fish > ~/.config/fish/completions/hyperfs.fish"),
		Action: arguments(1, 1, func(c *cli.Context) error {
			script, err := completionScript(c.App, c.Args().First())
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.App.Writer, script)
			return err
		}),
	}
}

func completionScript(app *cli.App, shell string) (string, error) {
	switch shell {
	case "bash":
		return bashCompletion, nil
	case "zsh":
		return zshCompletion, nil
	case "fish":
		return app.ToFishCompletion()
	}
	return "", errs.New(control.Usage, "completion", shell, "no such shell").WithHint("bash, zsh or fish")
}

// completeCheckpoints prints the IDs of active checkpoints, or the flags if a dash was typed. Failures show nothing.
func completeCheckpoints(c *cli.Context) {
	complete(c, func(w *control.Client) error {
		l, err := w.List(c.Context, overlay.ListOptions{})
		for _, k := range l {
			fmt.Fprintln(c.App.Writer, k.ID)
		}
		return err
	})
}

// complete prints the flags if a dash was typed, else what fn prints.
func complete(c *cli.Context, fn func(w *control.Client) error) {
	if len(os.Args) > 2 && os.Args[len(os.Args)-2] != "" && os.Args[len(os.Args)-2][0] == '-' {
		cli.DefaultCompleteWithFlags(c.Command)(c)
		return
	}
	_ = withWorkspace(c, fn)
}
