package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hyperfs/hyperfs/session"
)

// attempts measures what an attempt costs beside what is done in it: its begin, its end, and finding out what has changed.
func (b *bench) attempts(l lower) error {
	for _, files := range []int{1_000, 50_000} {
		files = b.scale(files)
		success := fmt.Sprintf("attempt, %d files, nothing changed", files)
		failure := fmt.Sprintf("attempt that fails, %d files, 1 modified and 1 created", files)
		if !b.wants(success, failure) {
			continue
		}
		if err := b.attemptsOf(l, files, success, failure); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) attemptsOf(l lower, files int, success, failure string) error {
	defer done(l, success, time.Now())
	s := b.snapshots()
	return b.unlessFailed(l, success, s, b.withTree(l, s, files, func(root string) error {
		w, err := session.Open(b.ctx, session.Config{Workspace: root, Start: session.StartNothing})
		if err != nil {
			return err
		}
		defer w.Close()
		nothing := func(int) error { return nil }
		b.timed(l, success, s, b.scale(300), func(n int) error { return attempted(b.ctx, w, n, nothing) })
		if err := s.forget(b.ctx); err != nil {
			return err
		}
		failed := errors.New("it fails")
		b.timed(l, failure, s, b.scale(300), func(n int) error {
			err := attempted(b.ctx, w, n, func(n int) error { return errors.Join(changeFiles(root, files, 1, n), failed) })
			if errors.Is(err, failed) {
				err = isRestored(root)
			}
			return err
		})
		return s.forget(b.ctx)
	}))
}

// attempted makes an attempt.
func attempted(ctx context.Context, s *session.Session, n int, fn func(int) error) error {
	_, err := session.RunAttempt(ctx, s, func(context.Context, *session.Attempt) (struct{}, error) { return struct{}{}, fn(n) }, session.AttemptOptions{})
	return err
}
