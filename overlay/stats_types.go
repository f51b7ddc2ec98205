package overlay

import "github.com/hyperfs/hyperfs/strategy"

// TreeStats is what the live tree has done since it was opened, and holds now.
type TreeStats struct {
	Snapshots uint64          `json:"snapshots"` // checkpoints of main that were made
	Rollbacks uint64          `json:"rollbacks"` // of main, undos among them
	Preimages []PreimageStats `json:"preimages"` // that were saved, by where

	Nodes       int `json:"nodes"`       // inodes held in memory
	Handles     int `json:"handles"`     // open files and directories
	Directories int `json:"directories"` // descriptors of directories that are kept
	Descriptors int `json:"descriptors"` // of the whole process

	Hot *strategy.HotStats `json:"hot,omitempty"`
}

// PreimageStats is what was saved in one place.
type PreimageStats struct {
	Kind  string `json:"kind"`  // a tier; "hot" is the hot buffer, "blocks" what is kept of large files, "trash" old inodes that were kept themselves
	Count uint64 `json:"count"` // preimages, or inodes; of blocks how often some were saved
	Bytes uint64 `json:"bytes"` // that were copied or cloned; none were where an inode is kept itself
}

// Metered is a workspace that counts what it does.
type Metered interface {
	// Stats asks nobody and scans nothing, but for how many descriptors are open.
	Stats() TreeStats
}

// Sub gives what has been counted since earlier. What is no count is as it is now.
func (s TreeStats) Sub(earlier TreeStats) TreeStats {
	s.Snapshots -= earlier.Snapshots
	s.Rollbacks -= earlier.Rollbacks
	before := map[string]PreimageStats{}
	for _, p := range earlier.Preimages {
		before[p.Kind] = p
	}
	saved := []PreimageStats{}
	for _, p := range s.Preimages {
		b := before[p.Kind]
		if p.Count > b.Count {
			saved = append(saved, PreimageStats{p.Kind, p.Count - b.Count, p.Bytes - b.Bytes})
		}
	}
	s.Preimages = saved
	if s.Hot != nil && earlier.Hot != nil {
		hot := *s.Hot
		hot.Hits -= earlier.Hot.Hits
		hot.Spills -= earlier.Hot.Spills
		hot.Mirrored -= earlier.Hot.Mirrored
		s.Hot = &hot
	}
	return s
}
