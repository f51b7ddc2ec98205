package gitpatch

import (
	"fmt"
	"strings"
)

// quote gives a path the form it has in a patch, behind its prefix ("a/", "b/" or none): as it is, or, with unusual
// bytes, in double quotes with the escapes of a C string (core.quotePath in git-config(1)). git diff itself doesn't quote
// spaces, but git apply then finds no name in the header of an empty file "end /a".
func quote(prefix, path string) string {
	if !strings.ContainsFunc(path, isUnusual) {
		return prefix + path
	}
	var b strings.Builder
	b.WriteByte('"')
	b.WriteString(prefix)
	for i := range len(path) {
		b.WriteString(escape(path[i]))
	}
	b.WriteByte('"')
	return b.String()
}

// isUnusual covers the space and every rune outside printable ASCII: the decoder turns invalid bytes into U+FFFD, which is outside
// of it, too.
func isUnusual(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' }

func escape(c byte) string {
	const letters = "abtnvfr" // of the bytes 7 to 13
	switch {
	case c >= 7 && c <= 13:
		return `\` + letters[c-7:c-6]
	case c == '"' || c == '\\':
		return `\` + string(rune(c))
	case c < ' ' || c >= 0x7f:
		return fmt.Sprintf(`\%03o`, c)
	}
	return string(rune(c))
}
