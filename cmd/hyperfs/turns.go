package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/internal/errs"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session/attempt"
	"github.com/hyperfs/hyperfs/session/turn"
)

// What commands of a turn have in their environment.
const (
	envTurn         = "HYPERFS_TURN"
	envConversation = "HYPERFS_CONVERSATION"
)

func turnsCommand() *cli.Command {
	return &cli.Command{
		Name:      "turns",
		Usage:     "turns of conversations: what an agent has said, made and remembered goes back together with the files",
		UsageText: "hyperfs turns COMMAND [flags] [arguments]",
		Description: example("A turn has an ID before it begins. When it completes, a checkpoint of the files and the state of the conversation (messages, artifacts, a custom\n"+
			"document, saved variables) are committed under that ID, both or neither. When it fails or is aborted, the files go back to what they were.\n"+
			"Any completed turn can be resumed.",
			"hyperfs turns run --conversation fix -- ./agent.sh", "hyperfs turns list", "hyperfs help turns begin"),
		Flags: []cli.Flag{jsonFlag()},
		Subcommands: []*cli.Command{
			turnsBeginCommand(), turnsResumeCommand(), turnsUpdateCommand(), turnsEndCommand(), turnsAbortCommand(), turnsRunCommand(),
			turnsListCommand(), turnsShowCommand(), turnsConversationsCommand(), turnsDeleteCommand(), turnsWatchCommand(), turnsGCCommand(),
		},
		Action: func(c *cli.Context) error {
			if name := c.Args().First(); name != "" {
				return unknownCommand(c, name, c.Command.Subcommands, "hyperfs help turns")
			}
			return errs.New(control.Usage, "turns", "", "a command is missing").WithHint("hyperfs help turns lists them")
		},
	}
}

// beginFlags are those of commands that begin a turn.
func beginFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "conversation", Aliases: []string{"c"}, Usage: "`NAME` of the conversation (default: that of the resumed turn, or a new one)"},
		&cli.StringFlag{Name: "branch", EnvVars: []string{envBranch}, Usage: "work in this branch, or with --fork alone, fork this one (default: where the conversation has worked, or main)"},
		&cli.StringFlag{Name: "fork", Usage: "fork a branch `NAME`, and work in that"},
		&cli.StringFlag{Name: "subagent", Usage: "subagent that it is for"},
		&cli.StringFlag{Name: "agent", Usage: "agent that it is for"},
		&cli.StringFlag{Name: "message", Aliases: []string{"m"}, Usage: "message of the checkpoint"},
	}
}

// fromFlag resumes.
func fromFlag() cli.Flag {
	return &cli.StringFlag{Name: "from", Usage: "resume the completed turn `ID`: the files go back to it, and so does the conversation"}
}

// beginOptions are what the flags say.
func beginOptions(c *cli.Context) (o turn.BeginOptions, err error) {
	for name, field := range map[string]*string{
		"conversation": &o.Conversation, "from": &o.From, "branch": &o.Branch, "fork": &o.Fork, "subagent": &o.Subagent, "agent": &o.Agent, "id": &o.ID,
	} {
		if *field, err = given(c, name); err != nil {
			return o, err
		}
	}
	o.Message = c.String("message")
	return o, nil
}

func turnsBeginCommand() *cli.Command {
	return &cli.Command{
		Name:      "begin",
		Usage:     "begin a turn and print its ID",
		UsageText: "hyperfs turns begin [--conversation NAME] [--from ID] [--branch B] [--fork NAME] [--pid N] [--subagent S] [--agent A] [-m MSG]",
		Description: example("It goes on from the newest completed turn of the conversation, with the files as they are, or with --from from any completed turn: then the files go\n"+
			"back to that, which hyperfs undo takes back. With --fork the files of that turn, or those of now, become a branch, and a new conversation goes\n"+
			"on there. In main, and in each branch, there is one turn at a time. With --pid it is ended as failed once that process is gone, by the next one that\n"+
			"begins; else it stays under way until it is ended. --json prints the state that it begins with, too.",
			`id=$(hyperfs turns begin --conversation fix --pid $$)`, "hyperfs turns begin --from ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A --fork another-way"),
		Flags: append(beginFlags(), fromFlag(),
			&cli.StringFlag{Name: "id", Usage: "an ID that POST /v1/checkpoints/reserve gave"},
			&cli.IntFlag{Name: "pid", Usage: "the process that is going to end it"},
			jsonFlag()),
		Action: arguments(0, 0, func(c *cli.Context) error {
			o, err := beginOptions(c)
			if err != nil {
				return err
			}
			return beginTurn(c, o)
		}),
	}
}

func turnsResumeCommand() *cli.Command {
	return &cli.Command{
		Name:      "resume",
		Usage:     "put files and conversation back to a completed turn, and begin a turn there; the same as begin --from ID",
		UsageText: "hyperfs turns resume [--branch B] [--fork NAME] [--conversation NAME] [--pid N] [--subagent S] [--agent A] [-m MSG] ID",
		Description: example("The turns after it stay, and can be resumed too; only a completed turn can. hyperfs undo takes back what it does to the files.",
			"hyperfs turns resume ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A"),
		Flags: append(beginFlags(), &cli.IntFlag{Name: "pid", Usage: "the process that is going to end it"}, jsonFlag()),
		Action: arguments(1, 1, func(c *cli.Context) error {
			o, err := beginOptions(c)
			if err != nil {
				return err
			}
			o.From = c.Args().First()
			return beginTurn(c, o)
		}),
		BashComplete: completeTurns(checkpoint.TurnCompleted),
	}
}

// beginTurn begins a turn and prints its ID.
func beginTurn(c *cli.Context, o turn.BeginOptions) error {
	if o.PID = c.Int("pid"); o.PID > 0 {
		o.PIDStart = attempt.StartOf(o.PID)
	}
	o.NoState = !flagAnywhere(c, "json")
	return withWorkspace(c, func(w *control.Client) error {
		begun, err := w.BeginTurn(c.Context, o)
		if err != nil {
			return err
		}
		tellBegun(c, begun)
		return output(c, begun, func(out io.Writer) error {
			_, err := fmt.Fprintln(out, begun.ID)
			return err
		})
	})
}

// tellBegun says what beginning a turn has done beside that.
func tellBegun(c *cli.Context, begun turn.Begun) {
	if flagAnywhere(c, "json") {
		return
	}
	for _, t := range begun.Settled {
		say(c.App.ErrWriter, fmt.Sprintf("turn %s was never ended: it is %s (%s), and its files are back", t.ID, t.Status, t.FinishReason))
	}
	if begun.Rollback != nil {
		say(c.App.ErrWriter, rollbackText(*begun.Rollback))
	}
}

// turnOf gives the turn that a command is about: its argument, or the one that it runs in.
func turnOf(c *cli.Context) (string, error) {
	id := c.Args().First()
	if id == "" {
		id = turnAround()
	}
	if id == "" {
		return "", errs.New(control.Usage, nameOf(c), "", "no turn is named, and $%s is not set", envTurn).WithHint("hyperfs turns list")
	}
	return id, nil
}

func turnsAbortCommand() *cli.Command {
	return &cli.Command{
		Name:      "abort",
		Usage:     "abort a turn that is under way",
		UsageText: "hyperfs turns abort [--force] [--reason TEXT] ID",
		Description: example("It can't complete any more. Its owner is told, and puts the files back; where there is none, or with --force, that is done at once. A turn that has ended stays\n"+
			"as it is, and the exit code is 1.", "hyperfs turns abort --reason 'not what was asked for' ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "put the files back now, though the owner may still be at work"},
			&cli.StringFlag{Name: "reason", Usage: "a word for people"},
			jsonFlag(),
		},
		Action: arguments(1, 1, func(c *cli.Context) error {
			reason, err := given(c, "reason")
			if err != nil {
				return err
			}
			return withWorkspace(c, func(w *control.Client) error {
				t, err := w.AbortTurn(c.Context, c.Args().First(), turn.AbortOptions{Reason: reason, Force: c.Bool("force")})
				if err != nil {
					return err
				}
				return printAborted(c, t)
			})
		}),
		BashComplete: completeTurns(checkpoint.TurnPending),
	}
}

func printAborted(c *cli.Context, t turn.Turn) error {
	text := "aborted " + t.ID
	switch {
	case t.Status != checkpoint.TurnAborted:
		text = fmt.Sprintf("%s is %s: it stays as it is", t.ID, t.Status)
	case !t.Settled && t.PID == 0:
		text += ": whoever ends it puts the files back; hyperfs turns abort --force does it now"
	case !t.Settled:
		text += ": its owner puts the files back"
	}
	if err := output(c, t, func(out io.Writer) error {
		_, err := fmt.Fprintln(out, text)
		return err
	}); err != nil {
		return err
	}
	if t.Status != checkpoint.TurnAborted {
		return exited(1)
	}
	return nil
}

func turnsListCommand() *cli.Command {
	return &cli.Command{
		Name:        "list",
		Usage:       "list turns, in the order in which they began",
		UsageText:   "hyperfs turns list [--conversation NAME] [--status STATUS] [--limit N]",
		Description: example("", "hyperfs turns list --conversation fix --status completed --limit 10"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "conversation", Aliases: []string{"c"}, Usage: "only of this one"},
			&cli.StringFlag{Name: "status", Usage: "only those: pending, completed, failed, aborted"},
			&cli.IntFlag{Name: "limit", Usage: "only the newest `N`"},
			jsonFlag(),
		},
		Action: arguments(0, 0, func(c *cli.Context) error {
			o := turn.ListOptions{Limit: c.Int("limit")}
			for name, field := range map[string]*string{"conversation": &o.Conversation, "status": &o.Status} {
				v, err := given(c, name)
				if err != nil {
					return err
				}
				*field = v
			}
			return withWorkspace(c, func(w *control.Client) error {
				list, err := w.Turns(c.Context, o)
				if err != nil {
					return err
				}
				return output(c, control.TurnsReply{Turns: list}, func(out io.Writer) error {
					return table(out, func(row func(...any)) {
						for _, t := range list {
							row(t.ID, clock(t.CreatedAt), statusText(t), quote(t.Conversation), t.Index, "in "+quote(t.WorksIn), tags(tagsOf(t)), line(aboutTurn(t)))
						}
					})
				})
			})
		}),
	}
}

// statusText gives a turn's status with the reason.
func statusText(t turn.Turn) string {
	text := string(t.Status)
	if t.FinishReason != "" && t.FinishReason != text {
		text += " (" + line(t.FinishReason) + ")"
	}
	return text
}

func tagsOf(t turn.Turn) checkpoint.Checkpoint {
	return checkpoint.Checkpoint{Agent: t.Agent, Subagent: t.Subagent}
}

// aboutTurn says what a turn is for, or why it failed.
func aboutTurn(t turn.Turn) string {
	if t.Error != nil && t.Error.Message != "" {
		return t.Error.Message
	}
	return t.Message
}

func turnsShowCommand() *cli.Command {
	return &cli.Command{
		Name:        "show",
		Usage:       "show one turn, or its state",
		UsageText:   "hyperfs turns show [--state] [ID]",
		Description: example("Without an ID it is the one that the command runs in, as $HYPERFS_TURN says.", "hyperfs turns show --state ckpt_01JD2Q4Z9V4Z8J6S3N2T5W7X9A | jq '.messages[-1]'"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "state", Usage: "print messages, artifacts, custom document and saved variables as JSON: what it has left, or has so far"},
			jsonFlag(),
		},
		Action: arguments(0, 1, func(c *cli.Context) error {
			id, err := turnOf(c)
			if err != nil {
				return err
			}
			return withWorkspace(c, func(w *control.Client) error {
				if c.Bool("state") {
					st, err := w.TurnState(c.Context, id)
					if err != nil {
						return err
					}
					return printJSON(c.App.Writer, st)
				}
				t, err := w.Turn(c.Context, id)
				if err != nil {
					return err
				}
				return output(c, t, func(out io.Writer) error { return printTurn(out, t) })
			})
		}),
		BashComplete: completeTurns(""),
	}
}

func printTurn(out io.Writer, t turn.Turn) error {
	return table(out, func(row func(...any)) {
		optional := func(name, value string) {
			if value != "" {
				row(name, value)
			}
		}
		row("turn", t.ID)
		row("conversation", quote(t.Conversation))
		row("index", t.Index)
		optional("parent", t.Parent)
		row("status", statusText(t))
		if t.Error != nil {
			optional("error", line(t.Error.Message))
			optional("code", line(t.Error.Code))
		}
		row("works in", quote(t.WorksIn))
		row("files go back to", t.Base)
		if t.FilesGone {
			row("files", "its checkpoint is gone: only the state can be had")
		}
		if t.Status != checkpoint.TurnCompleted && !t.Settled {
			row("under way", cmp.Or(ownerOf(t), nobodyEndsIt))
		}
		row("began", fmt.Sprintf("%s (%s)", clock(t.CreatedAt), ago(t.CreatedAt)))
		row("updated", fmt.Sprintf("%s (%s)", clock(t.UpdatedAt), ago(t.UpdatedAt)))
		optional("agent", quote(t.Agent))
		optional("subagent", quote(t.Subagent))
		optional("message", oneLine(t.Message))
		if t.Status == checkpoint.TurnCompleted {
			row("state", fmt.Sprintf("%s, %s, %s", plural(t.State.Messages, "message"), plural(len(t.State.Artifacts), "artifact"), bytesText(t.State.Bytes)))
		}
	})
}

// nobodyEndsIt is said of a turn that was begun without a process.
const nobodyEndsIt = "nobody in particular ends it"

// ownerOf says who ends a turn, "" if that is not known.
func ownerOf(t turn.Turn) string {
	if t.PID == 0 {
		return ""
	}
	text := fmt.Sprintf("process %d ends it", t.PID)
	if t.Detached {
		text += ", in the background"
	}
	return text
}

func turnsConversationsCommand() *cli.Command {
	return &cli.Command{
		Name:        "conversations",
		Usage:       "list conversations",
		UsageText:   "hyperfs turns conversations",
		Description: example("Each goes on from its last turn, which is the newest completed one that none follows.", "hyperfs turns conversations --json"),
		Flags:       []cli.Flag{jsonFlag()},
		Action: arguments(0, 0, func(c *cli.Context) error {
			return withWorkspace(c, func(w *control.Client) error {
				list, err := w.Conversations(c.Context)
				if err != nil {
					return err
				}
				return output(c, control.ConversationsReply{Conversations: list}, func(out io.Writer) error {
					return table(out, func(row func(...any)) {
						for _, k := range list {
							under := "-"
							if k.Pending != "" {
								under = "under way: " + k.Pending
							}
							row(quote(k.Name), plural(k.Turns, "turn"), "last: "+cmp.Or(k.Head, "-"), under, "in "+quote(k.WorksIn), clock(k.UpdatedAt))
						}
					})
				})
			})
		}),
	}
}

func turnsDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:        "delete",
		Usage:       "forget all turns of a conversation, and their checkpoints",
		UsageText:   "hyperfs turns delete CONVERSATION",
		Description: example("The files stay as they are. It fails while one of its turns is under way.", "hyperfs turns delete fix"),
		Flags:       []cli.Flag{jsonFlag()},
		Action: arguments(1, 1, func(c *cli.Context) error {
			return withWorkspace(c, func(w *control.Client) error {
				freed, err := w.DeleteConversation(c.Context, c.Args().First())
				return printFreed(c, freed, err)
			})
		}),
		BashComplete: func(c *cli.Context) {
			complete(c, func(w *control.Client) error {
				list, err := w.Conversations(c.Context)
				for _, k := range list {
					fmt.Fprintln(c.App.Writer, k.Name)
				}
				return err
			})
		},
	}
}

func turnsGCCommand() *cli.Command {
	return &cli.Command{
		Name:        "gc",
		Usage:       "free what old turns have",
		UsageText:   "hyperfs turns gc",
		Description: example("Of each conversation the newest completed turns are kept, as many as --keep-turns of mount says. The daemon does it by itself too, and hyperfs gc does.", "hyperfs turns gc"),
		Flags:       []cli.Flag{jsonFlag()},
		Action: arguments(0, 0, func(c *cli.Context) error {
			return withWorkspace(c, func(w *control.Client) error {
				freed, err := w.CollectTurns(c.Context)
				return printFreed(c, freed, err)
			})
		}),
	}
}

func printFreed(c *cli.Context, freed turn.Freed, err error) error {
	if err != nil {
		return err
	}
	return output(c, freed, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "freed %s: %s\n", bytesText(freed.Bytes), plural(freed.Turns, "turn"))
		return err
	})
}

func turnsWatchCommand() *cli.Command {
	return &cli.Command{
		Name:      "watch",
		Usage:     "print what becomes of turns, as it happens",
		UsageText: "hyperfs turns watch [--conversation NAME] [ID]",
		Description: example("It begins with the turns that are under way, and ends when the turn does that is named, or else with an interrupt. With --json each line is a document; the first\n"+
			"patch (RFC 6902) of the custom document in each turn replaces all of it.", "hyperfs turns watch --conversation fix --json | jq -c .data.custom_patch"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "conversation", Aliases: []string{"c"}, Usage: "only of this one"},
			jsonFlag(),
		},
		Action: arguments(0, 1, func(c *cli.Context) error {
			conversation, err := given(c, "conversation")
			if err != nil {
				return err
			}
			if conversation != "" && c.Args().Present() {
				return errs.New(control.Usage, nameOf(c), "--conversation", "a turn is named already")
			}
			p, err := find(c.Context, c)
			switch {
			case err != nil:
				return err
			case p.socket == "":
				return errs.New(control.NotFound, nameOf(c), p.dir, "no daemon answers for it, which could tell").WithHint("hyperfs mount, or hyperfs serve")
			}
			return p.use(c.Context, func(w *control.Client) error {
				events, err := w.TurnEvents(c.Context, c.Args().First(), conversation)
				if err != nil {
					return err
				}
				for ev := range events {
					if err := printEvent(c, ev); err != nil {
						return err
					}
				}
				return nil
			})
		}),
		BashComplete: completeTurns(checkpoint.TurnPending),
	}
}

// printEvent prints an event on one line.
func printEvent(c *cli.Context, ev overlay.Event) error {
	raw, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	if flagAnywhere(c, "json") {
		_, err = fmt.Fprintf(c.App.Writer, "%s\n", raw)
		return err
	}
	text, err := eventText(ev)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s  %s  %s\n", clock(ev.Time), ev.Type, text)
	return err
}

// eventText says what an event is about.
func eventText(ev overlay.Event) (string, error) {
	data, err := json.Marshal(ev.Data)
	if err != nil {
		return "", err
	}
	switch ev.Type {
	case turn.EventUpdated:
		var u turn.UpdateEvent
		if err := json.Unmarshal(data, &u); err != nil {
			return "", err
		}
		return updateText(u), nil
	case turn.EventState, turn.EventBegun, turn.EventAborted, turn.EventEnded:
		var t turn.Turn
		if err := json.Unmarshal(data, &t); err != nil {
			return "", err
		}
		return strings.TrimSpace(strings.Join([]string{t.ID, quote(t.Conversation), statusText(t), line(aboutTurn(t))}, "  ")), nil
	}
	return strings.TrimSpace(ev.Checkpoint + "  " + string(data)), nil
}

func updateText(u turn.UpdateEvent) string {
	list := []string{u.Turn, quote(u.Conversation), plural(u.Messages, "message")}
	for _, name := range u.Artifacts {
		list = append(list, "artifact "+quote(name))
	}
	if len(u.CustomPatch) > 0 {
		list = append(list, "custom "+string(u.CustomPatch))
	}
	if u.Bindings {
		list = append(list, "bindings")
	}
	return strings.Join(list, "  ")
}

// completeTurns prints the IDs of turns with a status, of all with "".
func completeTurns(status checkpoint.TurnStatus) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		complete(c, func(w *control.Client) error {
			list, err := w.Turns(c.Context, turn.ListOptions{Status: string(status)})
			for _, t := range list {
				fmt.Fprintln(c.App.Writer, t.ID)
			}
			return err
		})
	}
}
