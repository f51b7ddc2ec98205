//go:build unix

package scan

import "github.com/hyperfs/hyperfs/overlay"

// volumeAround has nothing to tell: there are no such volumes here.
func volumeAround(dir, string) *overlay.WindowsVolume { return nil }
