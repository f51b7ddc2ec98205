//go:build !linux

package strategy

import (
	"errors"
	"fmt"
	"runtime"
)

func tryTmpfs(site) error { return fmt.Errorf("tmpfs on %s: %w", runtime.GOOS, errors.ErrUnsupported) }

func openTmpfs(s site) (Strategy, error) { return nil, tryTmpfs(s) }

func openSavedTmpfs(site) (Strategy, error) { return nil, ErrMissing }
