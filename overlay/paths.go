package overlay

import "strings"

// parentPath gives the directory of a workspace-relative path, "" for one that is in the workspace itself.
func parentPath(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
