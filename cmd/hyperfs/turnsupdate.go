package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/session"
	"github.com/hyperfs/hyperfs/session/turn"
)

// turnAround gives the turn that this process is in, "" if it is in none.
func turnAround() string { return os.Getenv(envTurn) }

// stateFlags change the state of a turn.
func stateFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "message", Usage: "add a message: a JSON object with a role, or `ROLE=TEXT`; may be repeated"},
		&cli.StringSliceFlag{Name: "artifact", Usage: "add an artifact, or replace the one of that name: `NAME=VALUE`, or NAME=@FILE; what is no JSON is a string; may be repeated"},
		&cli.StringFlag{Name: "custom", Usage: "replace the custom document: `JSON`, or @FILE"},
		&cli.StringFlag{Name: "patch", Usage: "change the custom document by a JSON Patch (RFC 6902): `JSON`, or @FILE"},
		&cli.StringFlag{Name: "bindings", Usage: "save variables: `JSON`, or @FILE; null removes them"},
	}
}

// updateOf gives what the flags change, nil if none is given.
func updateOf(c *cli.Context) (*turn.Update, error) {
	u := &turn.Update{}
	given := false
	for _, text := range c.StringSlice("message") {
		raw, err := messageOf(c, text)
		if err != nil {
			return nil, err
		}
		u.AddMessages, given = append(u.AddMessages, raw), true
	}
	for _, text := range c.StringSlice("artifact") {
		a, err := artifactOf(c, text)
		if err != nil {
			return nil, err
		}
		u.AddArtifacts, given = append(u.AddArtifacts, a), true
	}
	for name, field := range map[string]*json.RawMessage{"custom": &u.Custom, "patch": &u.CustomPatch, "bindings": &u.Bindings} {
		if !c.IsSet(name) {
			continue
		}
		raw, err := valueOf(c, name, c.String(name))
		if err != nil {
			return nil, err
		}
		if !json.Valid(raw) {
			return nil, errs.New(control.Usage, nameOf(c), "--"+name, "it is no JSON")
		}
		*field, given = raw, true
	}
	if !given {
		return nil, nil
	}
	return u, nil
}

// valueOf gives text, or where it is @FILE what the file has.
func valueOf(c *cli.Context, flag, text string) ([]byte, error) {
	name, isFile := strings.CutPrefix(text, "@")
	if !isFile {
		return []byte(text), nil
	}
	path, err := absolute(c, name)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.New(control.Path, nameOf(c), "--"+flag, "%s: %w", name, cause(err))
	}
	return b, nil
}

func messageOf(c *cli.Context, text string) (json.RawMessage, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return json.RawMessage(text), nil // the daemon looks at it
	}
	role, content, ok := strings.Cut(text, "=")
	if !ok || role == "" {
		return nil, errs.New(control.Usage, nameOf(c), "--message", "%q is neither a JSON object nor ROLE=TEXT", text)
	}
	return json.Marshal(session.Message{Role: role, Content: content})
}

func artifactOf(c *cli.Context, text string) (a turn.Artifact, err error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return a, errs.New(control.Usage, nameOf(c), "--artifact", "%q is not NAME=VALUE", text)
	}
	raw, err := valueOf(c, "artifact", value)
	if err != nil {
		return a, err
	}
	if !json.Valid(raw) {
		if !utf8.Valid(raw) {
			return a, errs.New(control.Usage, nameOf(c), "--artifact", "%s is neither JSON nor text in UTF-8", name)
		}
		if raw, err = json.Marshal(string(raw)); err != nil {
			return a, err
		}
	}
	return turn.Artifact{Name: name, Data: raw}, nil
}

// readUpdate reads an update from the standard input.
func readUpdate(c *cli.Context) (*turn.Update, error) {
	if isTerminal(c.App.Reader) {
		return nil, wrongArguments(c)
	}
	text, err := io.ReadAll(c.App.Reader)
	if err != nil {
		return nil, errs.Wrap(control.Usage, nameOf(c), "stdin", err)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errs.New(control.Usage, nameOf(c), "stdin", "it is empty, and no flag says what to change").WithHint("hyperfs help " + nameOf(c))
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	u := &turn.Update{}
	if err = dec.Decode(u); err == nil {
		if _, more := dec.Token(); more != io.EOF {
			err = errors.New("something follows the object")
		}
	}
	return u, errs.Wrap(control.Usage, nameOf(c), "stdin", err)
}

func turnsUpdateCommand() *cli.Command {
	return &cli.Command{
		Name:      "update",
		Usage:     "change the state of a turn that is under way",
		UsageText: "hyperfs turns update [--message M]… [--artifact NAME=VALUE]… [--custom JSON | --patch JSON] [--bindings JSON] [ID]",
		Description: example("All of it is done, or nothing; it counts once the turn completes. Without flags the change is read from the standard input: a JSON object with any of\n"+
			"set_messages, add_messages, add_artifacts, custom, custom_patch, bindings. Without an ID it is the turn that the command runs in, as $HYPERFS_TURN\n"+
			"says.",
			`hyperfs turns update --message 'user=Make the tests pass' "$id"`,
			"hyperfs turns update --artifact plan=@plan.md --custom '{\"step\": 1}'",
			`echo '{"custom_patch": [{"op": "replace", "path": "/step", "value": 2}]}' | hyperfs turns update`),
		Flags: append(stateFlags(), jsonFlag()),
		Action: arguments(0, 1, func(c *cli.Context) error {
			id, err := turnOf(c)
			if err != nil {
				return err
			}
			u, err := updateOf(c)
			if u == nil && err == nil {
				u, err = readUpdate(c)
			}
			if err != nil {
				return err
			}
			asJSON := flagAnywhere(c, "json")
			u.WithPatch = asJSON
			return withWorkspace(c, func(w *control.Client) error {
				ev, err := w.UpdateTurn(c.Context, id, *u)
				if err == nil && asJSON {
					err = printJSON(c.App.Writer, ev)
				}
				return err
			})
		}),
		BashComplete: completeTurns(checkpoint.TurnPending),
	}
}

func turnsEndCommand() *cli.Command {
	return &cli.Command{
		Name:      "end",
		Usage:     "end a turn: commit files and conversation, or put both back",
		UsageText: "hyperfs turns end [--failed [--error TEXT] [--no-rollback]] [--finish-reason R] [--message M]… [--artifact NAME=VALUE]… [ID]",
		Description: example("Without --failed the turn completes, with what the other flags change as its last update. A turn that somebody has aborted meanwhile stays aborted, whatever is\n"+
			"asked for: its files go back, and the exit code is 1.",
			`hyperfs turns end --finish-reason stop "$id"`, `hyperfs turns end --failed --error 'the tests fail' "$id"`),
		Flags: append(append([]cli.Flag{
			&cli.BoolFlag{Name: "failed", Usage: "it has failed"},
			&cli.StringFlag{Name: "error", Usage: "why it has failed"},
			&cli.BoolFlag{Name: "no-rollback", Usage: "if it does not complete, leave the files as they are"},
			&cli.StringFlag{Name: "finish-reason", Usage: "why it has completed, as stop or length"},
		}, stateFlags()...), jsonFlag()),
		Action:       arguments(0, 1, endTurn),
		BashComplete: completeTurns(checkpoint.TurnPending),
	}
}

func endTurn(c *cli.Context) error {
	id, err := turnOf(c)
	if err != nil {
		return err
	}
	o := turn.EndOptions{Outcome: turn.Completed, NoRollback: c.Bool("no-rollback")}
	if o.FinishReason, err = given(c, "finish-reason"); err != nil {
		return err
	}
	if o.Update, err = updateOf(c); err != nil {
		return err
	}
	failed := c.Bool("failed")
	switch {
	case failed && (o.FinishReason != "" || o.Update != nil):
		return errs.New(control.Usage, nameOf(c), "--failed", "nothing of a turn that has failed is kept, and its finish reason is %s", turn.ReasonFailed)
	case !failed && c.IsSet("error"):
		return errs.New(control.Usage, nameOf(c), "--error", "it belongs to --failed")
	case failed:
		o.Outcome, o.Error = turn.Failed, &checkpoint.TurnError{Message: c.String("error")}
	}
	return withWorkspace(c, func(w *control.Client) error {
		r, err := w.EndTurn(c.Context, id, o)
		if err != nil {
			return err
		}
		err = output(c, r, func(out io.Writer) error {
			_, err := fmt.Fprintln(out, endedText(r))
			return err
		})
		if err == nil && !failed && r.Turn.Status != checkpoint.TurnCompleted {
			return exited(1)
		}
		return err
	})
}

// endedText says what has become of a turn.
func endedText(r turn.Result) string {
	text := fmt.Sprintf("%s %s", statusText(r.Turn), r.Turn.ID)
	if r.Turn.Status == checkpoint.TurnCompleted {
		return text
	}
	if r.Rollback != nil {
		text += ": " + rollbackText(*r.Rollback)
	}
	if r.LastGood != "" {
		text += "; the last good turn is " + r.LastGood
	}
	return text
}
