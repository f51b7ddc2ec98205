//go:build !linux

package strategy

// layoutOf has no answer here: zero blocks are taken for holes.
func layoutOf(source) (layout, bool) { return nil, false }

// punch has no answer here: see errNoPunch for what happens.
func (file) punch(int64, int64) error { return errNoPunch }
