package strategy

// HotLimits bound what the hot buffer takes. One of them that is 0 or less turns the buffer off.
type HotLimits struct {
	FileBytes  int64 `json:"file_bytes"`  // of one preimage; larger ones go to the tier
	TotalBytes int64 `json:"total_bytes"` // not mirrored to the disk yet
	Files      int   `json:"files"`       // not mirrored to the disk yet
}

// DefaultHotLimits are those where nothing else is asked for. What is not mirrored is bounded by about what a disk takes between two rounds
// of the mirror.
var DefaultHotLimits = HotLimits{FileBytes: 256 << 10, TotalBytes: 32 << 20, Files: 8192}

func (l HotLimits) on() bool { return l.FileBytes > 0 && l.TotalBytes > 0 && l.Files > 0 }

// HotStats are the counters of the hot buffer.
type HotStats struct {
	On           bool      `json:"on"`
	Reason       string    `json:"reason,omitempty"` // why it is not on
	Limits       HotLimits `json:"limits"`
	Hits         uint64    `json:"hits"`          // preimages that it took since the mount
	Spills       uint64    `json:"spills"`        // preimages that it left to the tier since the mount
	Files        int       `json:"files"`         // preimages that it holds
	Bytes        int64     `json:"bytes"`         // that these have
	PendingFiles int       `json:"pending_files"` // of these, how many a loss of power would take
	PendingBytes int64     `json:"pending_bytes"`
	Mirrored     uint64    `json:"mirrored"` // preimages that reached the disk since the mount
	Segments     int       `json:"segments"` // files that it keeps them in
}
