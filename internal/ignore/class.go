package ignore

import (
	"fmt"
	"strings"
)

// class writes a bracket expression that glob begins with, and gives how long that is. It is not ok where it has no end or names a class
// that there is not.
func class(b *strings.Builder, glob string) (n int, ok bool) {
	var set [256]bool
	i := 1
	negated := i < len(glob) && (glob[i] == '!' || glob[i] == '^')
	if negated {
		i++
	}
	low := -1 // of a range that may follow
	for first := true; ; first = false {
		if i >= len(glob) {
			return 0, false
		}
		c := glob[i]
		switch {
		case c == ']' && !first:
			writeSet(b, &set, negated)
			return i + 1, true
		case c == '-' && low >= 0 && i+1 < len(glob) && glob[i+1] != ']':
			i++
			if glob[i] == '\\' {
				i++
			}
			if i >= len(glob) {
				return 0, false
			}
			for k := low; k <= int(glob[i]); k++ {
				set[k] = true
			}
			low = -1
			i++
		case strings.HasPrefix(glob[i:], "[:"):
			end := strings.IndexByte(glob[i+2:], ']')
			if end < 0 {
				return 0, false
			}
			name := glob[i+2 : i+2+end]
			if !strings.HasSuffix(name, ":") { // a bracket like any other
				set['['], low = true, '['
				i++
				continue
			}
			in, known := named[strings.TrimSuffix(name, ":")]
			if !known {
				return 0, false
			}
			for k := range set {
				set[k] = set[k] || k < 0x80 && in(byte(k))
			}
			low = -1
			i += 2 + end + 1
		default:
			if c == '\\' {
				if i++; i >= len(glob) {
					return 0, false
				}
				c = glob[i]
			}
			set[c], low = true, int(c)
			i++
		}
	}
}

// writeSet writes a class of bytes. None matches a slash.
func writeSet(b *strings.Builder, set *[256]bool, negated bool) {
	any := false
	var in strings.Builder
	for k := range set {
		if set[k] != negated && k != '/' {
			fmt.Fprintf(&in, `\x{%x}`, k)
			any = true
		}
	}
	if !any {
		b.WriteString(`[^\x{0}-\x{10ffff}]`)
		return
	}
	b.WriteString("[" + in.String() + "]")
}

// named are the classes of ASCII that have names.
var named = map[string]func(byte) bool{
	"alnum":  func(c byte) bool { return isAlpha(c) || isDigit(c) },
	"alpha":  isAlpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"digit":  isDigit,
	"graph":  func(c byte) bool { return c > ' ' && c < 0x7f },
	"lower":  func(c byte) bool { return c >= 'a' && c <= 'z' },
	"print":  func(c byte) bool { return c >= ' ' && c < 0x7f },
	"punct":  func(c byte) bool { return c > ' ' && c < 0x7f && !isAlpha(c) && !isDigit(c) },
	"space":  func(c byte) bool { return strings.IndexByte(" \t\n\v\f\r", c) >= 0 },
	"upper":  func(c byte) bool { return c >= 'A' && c <= 'Z' },
	"xdigit": func(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' },
}

func isAlpha(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }
