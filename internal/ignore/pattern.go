package ignore

import (
	"regexp"
	"strings"
)

// special are the characters that mean more than themselves.
const special = `*?[\`

// pattern is one line.
type pattern struct {
	negated bool
	dirOnly bool
	byName  bool           // it is compared with the last name of a path only
	literal string         // what it is, where nothing in it is special
	glob    *regexp.Regexp // else; nil matches nothing
}

// parse reads a line. It is none for a comment and an empty line.
func parse(line string) (p pattern, ok bool) {
	line = trimRight(strings.TrimSuffix(line, "\r"))
	if line == "" || line[0] == '#' {
		return p, false
	}
	if line[0] == '!' {
		p.negated, line = true, line[1:]
	}
	if strings.HasSuffix(line, "/") {
		p.dirOnly, line = true, line[:len(line)-1]
	}
	p.byName = !strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return p, false
	}
	if !strings.ContainsAny(line, special) {
		p.literal = line
		return p, true
	}
	if expr, ok := translate(line, p.byName); ok {
		p.glob = regexp.MustCompile(expr)
	}
	return p, true
}

// trimRight takes away spaces at the end, but for one after a backslash.
func trimRight(line string) string {
	end := 0
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '\\':
			i++
			end = min(i+1, len(line))
		case line[i] != ' ':
			end = i + 1
		}
	}
	return line[:end]
}

func (p *pattern) matches(path, base string, isDir bool) bool {
	if p.dirOnly && !isDir {
		return false
	}
	if p.byName {
		path = base
	}
	if p.literal != "" {
		return p.literal == path
	}
	return p.glob != nil && p.glob.MatchString(runes(path))
}

// runes makes a rune of each byte, as git compares bytes: a ? is one of them, and names need not be UTF-8.
func runes(s string) string {
	for i := 0; i < len(s); i++ {
		if s[i] >= 0x80 {
			b := make([]rune, len(s))
			for k := range len(s) {
				b[k] = rune(s[k])
			}
			return string(b)
		}
	}
	return s
}

// translate makes a regular expression of a glob. It is not ok where nothing can match. Of a pattern with slashes git compares what comes before the first special
// character by itself, so that asterisks after that stand at the beginning, too.
func translate(glob string, byName bool) (expr string, ok bool) {
	start := 0
	if !byName {
		start = strings.IndexAny(glob, special)
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(glob); {
		switch c := glob[i]; c {
		case '*':
			i = stars(&b, glob, i, i == start)
		case '?':
			b.WriteString(`[^/]`)
			i++
		case '[':
			n, ok := class(&b, glob[i:])
			if !ok {
				return "", false
			}
			i += n
		case '\\':
			if i+1 == len(glob) {
				return "", false
			}
			literal(&b, glob[i+1])
			i += 2
		default:
			literal(&b, c)
			i++
		}
	}
	b.WriteString(`\z`)
	return b.String(), true
}

func literal(b *strings.Builder, c byte) { b.WriteString(regexp.QuoteMeta(string(rune(c)))) }

// stars writes what the asterisks from i on match, and gives where it goes on. Two that are a whole name stand for any number of directories.
func stars(b *strings.Builder, glob string, i int, first bool) int {
	end := i
	for end < len(glob) && glob[end] == '*' {
		end++
	}
	whole := end-i > 1 && (first || i == 0 || glob[i-1] == '/')
	switch {
	case whole && end == len(glob):
		b.WriteString(`.*`)
	case whole && glob[end] == '/':
		b.WriteString(`(?:.*/)?`)
		end++
	case whole && strings.HasPrefix(glob[end:], `\/`):
		b.WriteString(`.*/`)
		end += 2
	default:
		b.WriteString(`[^/]*`)
	}
	return end
}
