package session_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
	"github.com/hyperfs/hyperfs/session"
)

// project opens a directory with one file. In process there is no mount: where there is FUSE, Config{Workspace: dir} is all that it takes.
func project() (s *session.Session, remove func()) {
	dir, err := os.MkdirTemp("", "project")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.ts"), []byte("export {}\n"), 0o644)
	}
	if err == nil {
		s, err = session.Open(context.Background(), session.Config{Workspace: dir, Start: session.StartInProcess})
	}
	if err != nil {
		log.Fatal(err)
	}
	return s, func() {
		s.Close()
		os.RemoveAll(dir)
	}
}

// What an attempt did stays if it succeeds.
func ExampleRunAttempt() {
	s, remove := project()
	defer remove()
	r, err := session.RunAttempt(context.Background(), s, func(ctx context.Context, a *session.Attempt) (int, error) {
		result, err := a.Exec(ctx, session.Command{Args: []string{"sh", "-c", "mkdir dist && cp main.ts dist/main.js"}})
		return result.ExitCode, err
	}, session.AttemptOptions{Agent: "builder"})
	fmt.Println(r.Value, err, r.RolledBack, r.Reconcile.Created)
	// Output: 0 <nil> false [dist/]
}

// What it did is rolled back if it fails, whatever has changed the files.
func ExampleRunAttempt_failure() {
	s, remove := project()
	defer remove()
	r, err := session.RunAttempt(context.Background(), s, func(ctx context.Context, a *session.Attempt) (string, error) {
		_, err := a.Exec(ctx, session.Command{Args: []string{"sh", "-c", "rm main.ts; echo half done > new; exit 2"}})
		return "no result", err
	}, session.AttemptOptions{})
	var exit *session.ExitError
	if errors.As(err, &exit) {
		fmt.Println("exit code", exit.Result.ExitCode)
	}
	text, _ := os.ReadFile(filepath.Join(s.Workspace(), "main.ts"))
	fmt.Printf("%v %s", r.RolledBack, text)
	// Output:
	// exit code 2
	// true export {}
}

// One attempt at a time: who comes second is told so at once.
func ExampleRunAttempt_inProgress() {
	s, remove := project()
	defer remove()
	nothing := func(context.Context, *session.Attempt) (bool, error) { return true, nil }
	_, err := session.RunAttempt(context.Background(), s, func(ctx context.Context, a *session.Attempt) (bool, error) {
		_, err := session.RunAttempt(ctx, s, nothing, session.AttemptOptions{})
		var e *control.Error
		fmt.Println(errors.As(err, &e), e.Code, e.On == a.CheckpointID())
		return true, nil
	}, session.AttemptOptions{})
	fmt.Println(err)
	// Output:
	// true ATTEMPT_IN_PROGRESS true
	// <nil>
}

// Without an attempt, checkpoints are made and gone back to by hand.
func ExampleSession_Rollback() {
	s, remove := project()
	defer remove()
	ctx := context.Background()
	k, err := s.Snapshot(ctx, overlay.SnapshotOptions{Message: "before the migration"})
	if err != nil {
		log.Fatal(err)
	}
	os.Remove(filepath.Join(s.Workspace(), "main.ts"))
	changed, err := s.Reconcile(ctx, k.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("deleted:", changed.Deleted)
	r, err := s.Rollback(ctx, k.ID, overlay.RollbackOptions{})
	fmt.Println("restored:", r.Restored, err)
	// Output:
	// deleted: [main.ts]
	// restored: 1 <nil>
}

// Exec runs one command, without a checkpoint.
func ExampleSession_Exec() {
	s, remove := project()
	defer remove()
	r, err := s.Exec(context.Background(), session.Command{Args: []string{"cat", "main.ts"}, Capture: true})
	fmt.Printf("%s%v\n", r.Stdout, err)
	// Output:
	// export {}
	// <nil>
}
