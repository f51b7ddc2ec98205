//go:build !windows

package strategy

import "errors"

// tryNtfsLink is for Windows: see kinds.
func tryNtfsLink(site) error { return errors.ErrUnsupported }
