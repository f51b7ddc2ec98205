package gitpatch

import "strings"

// Representable reports whether git apply takes a patch to the path: git refuses absolute paths, "." and "..", its own
// directory in every spelling that some filesystem takes for it, and a .gitmodules that is a symlink (verify_path in
// git's read-cache.c, with core.protectNTFS, which is on by default everywhere).
func Representable(path string, mode uint32) bool {
	if path == "" || strings.IndexByte(path, 0) >= 0 {
		return false
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." || isDotGit(name) {
			return false
		}
		if mode == ModeSymlink && isNTFSName(name, ".gitmodules", "gitmod~") {
			return false
		}
	}
	return true
}

// isDotGit reports whether some filesystem takes name for ".git": whatever its case, its NTFS short name, with
// trailing dots and spaces, or with an NTFS stream after a colon. A backslash ends the name on Windows.
func isDotGit(name string) bool {
	if i := strings.IndexAny(name, `\:`); i >= 0 {
		name = name[:i]
	}
	name = strings.TrimRight(strings.ToLower(name), ". ")
	return name == ".git" || name == "git~1"
}

// isNTFSName is a wider isDotGit for another name: short is how its NTFS short names start. It refuses a few names
// more than git does, none of which has a use.
func isNTFSName(name, long, short string) bool {
	if i := strings.IndexByte(name, ':'); i >= 0 {
		name = name[:i]
	}
	name = strings.TrimRight(strings.ToLower(name), ". ")
	return name == long || strings.HasPrefix(name, short) || strings.HasPrefix(name, "gi7eba~")
}
