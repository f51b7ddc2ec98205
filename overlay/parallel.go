//go:build linux

package overlay

import "github.com/hyperfs/hyperfs/internal/parallel"

func inParallel[T any](items []T, fn func(T) error) error { return parallel.Each(items, fn) }
