//go:build linux

package overlay

import "github.com/hyperfs/hyperfs/internal/parallel"

func inParallel[T any](items []T, fn func(T) error) error { return parallel.Each(items, fn) }

// inTurn is inParallel without anything in parallel.
func inTurn[T any](items []T, fn func(T) error) error {
	for _, item := range items {
		if err := fn(item); err != nil {
			return err
		}
	}
	return nil
}
