package overlay

// Answer is what a system says to a question that it may not understand.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown" // the system or the filesystem does not say
)

// AnswerOf makes an answer of one that was given.
func AnswerOf(yes bool) Answer {
	if yes {
		return Yes
	}
	return No
}

// WindowsVolume is what Windows says of the volume that a workspace is on.
type WindowsVolume struct {
	FileSystem string `json:"file_system"` // NTFS, ReFS, FAT32, …; "" where it is not known
	HardLinks  Answer `json:"hard_links"`
	BlockClone Answer `json:"block_clone"` // clones files, as ReFS does: a candidate for the tier reflink
	DevDrive   Answer `json:"dev_drive"`
	Trusted    Answer `json:"trusted"` // of a Dev Drive: virus scanners work on it asynchronously
}
