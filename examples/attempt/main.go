// A program that rolls back what an attempt has done, if it fails.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/hyperfs/hyperfs/session"
)

func main() {
	ctx := context.Background()
	s, err := session.Open(ctx, session.Config{Workspace: "."})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	r, err := session.RunAttempt(ctx, s, func(ctx context.Context, a *session.Attempt) (int, error) {
		result, err := a.Exec(ctx, session.Command{Args: []string{"npm", "test"}})
		return result.ExitCode, err
	}, session.AttemptOptions{Agent: "builder"})
	fmt.Println(r.CheckpointID, r.RolledBack, err)
}
