package gitpatch

import (
	"bufio"
	"compress/zlib"
	"encoding/binary"
	"fmt"
)

// writeBinary writes the whole content of both sides: the new one, and the old one so that git apply -R works.
func writeBinary(out *bufio.Writer, before, after blob) error {
	out.WriteString("GIT binary patch\n")
	if err := writeLiteral(out, after); err != nil {
		return err
	}
	return writeLiteral(out, before)
}

// writeLiteral writes one side: its size, and its zlib stream in lines of base85.
func writeLiteral(out *bufio.Writer, b blob) error {
	fmt.Fprintf(out, "literal %d\n", b.size())
	lines := &base85Lines{out: out}
	z := zlib.NewWriter(lines)
	if err := b.copyTo(z); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	lines.flush()
	return out.WriteByte('\n')
}

// lineBytes is how many bytes one line of base85 stands for, at most.
const lineBytes = 52

// base85Lines is a writer of git's base85: each line starts with a letter for the number of bytes in it (A to Z for 1
// to 26, a to z for 27 to 52), then five characters for every four bytes, the last four filled up with zeros. Errors
// are kept by out until it's flushed.
type base85Lines struct {
	out *bufio.Writer
	buf [lineBytes]byte
	n   int
}

func (l *base85Lines) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		k := copy(l.buf[l.n:], p)
		l.n += k
		p = p[k:]
		if l.n == lineBytes {
			l.flush()
		}
	}
	return total, nil
}

// flush writes what is buffered as a line, if there is anything.
func (l *base85Lines) flush() {
	if l.n == 0 {
		return
	}
	l.out.WriteByte(lengthLetter(l.n))
	clear(l.buf[l.n:])
	for i := 0; i < l.n; i += 4 {
		word := encode85(binary.BigEndian.Uint32(l.buf[i:]))
		l.out.Write(word[:])
	}
	l.out.WriteByte('\n')
	l.n = 0
}

func lengthLetter(n int) byte {
	if n <= 26 {
		return byte('A' + n - 1)
	}
	return byte('a' + n - 27)
}

const digits85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

func encode85(v uint32) (word [5]byte) {
	for i := len(word) - 1; i >= 0; i-- {
		word[i] = digits85[v%85]
		v /= 85
	}
	return word
}
