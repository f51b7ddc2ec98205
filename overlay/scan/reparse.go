package scan

import (
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// reparse is a symlink or a junction of NTFS and ReFS, as REPARSE_DATA_BUFFER has it.
type reparse struct {
	target   string // the substitute name, where the kernel goes to: it begins with \??\, or is relative to the link
	junction bool
}

// wholePath begins the substitute names that are not relative.
const wholePath = `\??\`

const (
	tagSymlink  = 0xA000000C
	tagJunction = 0xA0000003

	reparseHead  = 8 // tag, length of what follows, 2 bytes without meaning
	reparseNames = 8 // offsets and lengths of both names
	relativeFlag = 1
)

var errReparse = errors.New("the reparse point has a form that is not known")

// decodeReparse reads what the filesystem keeps.
func decodeReparse(b []byte) (reparse, error) {
	if len(b) < reparseHead+reparseNames {
		return reparse{}, errReparse
	}
	r, names := reparse{}, b[reparseHead+reparseNames:]
	switch binary.LittleEndian.Uint32(b) {
	case tagJunction:
		r.junction = true
	case tagSymlink:
		if len(names) < 4 {
			return reparse{}, errReparse
		}
		names = names[4:]
	default:
		return reparse{}, errReparse
	}
	from := int(binary.LittleEndian.Uint16(b[reparseHead:]))
	length := int(binary.LittleEndian.Uint16(b[reparseHead+2:]))
	if from+length > len(names) || length%2 != 0 {
		return reparse{}, errReparse
	}
	r.target = decodeUTF16(names[from : from+length])
	return r, nil
}

// encode gives what the filesystem is to keep.
func (r reparse) encode() ([]byte, error) {
	target, shown := encodeUTF16(r.target), encodeUTF16(strings.TrimPrefix(r.target, wholePath))
	tag, flags := uint32(tagSymlink), make([]byte, 4)
	if !strings.HasPrefix(r.target, wholePath) {
		flags[0] = relativeFlag
	}
	if r.junction {
		tag, flags = tagJunction, nil
	}
	names := append(append([]byte{}, target...), 0, 0)
	shownAt := len(names)
	names = append(append(names, shown...), 0, 0)
	length := reparseNames + len(flags) + len(names)
	if length > 16<<10-reparseHead {
		return nil, errReparse
	}
	b := binary.LittleEndian.AppendUint32(nil, tag)
	for _, v := range []int{length, 0, 0, len(target), shownAt, len(shown)} {
		b = binary.LittleEndian.AppendUint16(b, uint16(v))
	}
	return append(append(b, flags...), names...), nil
}

// decodeUTF16 gives UTF-8, with lone surrogates as WTF-8 has them.
func decodeUTF16(b []byte) string {
	var s []byte
	for len(b) >= 2 {
		c := rune(binary.LittleEndian.Uint16(b))
		b = b[2:]
		if utf16.IsSurrogate(c) && len(b) >= 2 {
			if r := utf16.DecodeRune(c, rune(binary.LittleEndian.Uint16(b))); r != '\uFFFD' {
				s, b = append(s, string(r)...), b[2:]
				continue
			}
		}
		if utf16.IsSurrogate(c) {
			s = append(s, 0xE0|byte(c>>12), 0x80|byte(c>>6)&0x3F, 0x80|byte(c)&0x3F)
			continue
		}
		s = append(s, string(c)...)
	}
	return string(s)
}

// encodeUTF16 is the inverse of decodeUTF16.
func encodeUTF16(s string) []byte {
	var b []byte
	for len(s) > 0 {
		if len(s) >= 3 && s[0] == 0xED && s[1] >= 0xA0 && s[1] <= 0xBF && s[2]&0xC0 == 0x80 {
			b = binary.LittleEndian.AppendUint16(b, 0xD000|uint16(s[1]&0x3F)<<6|uint16(s[2]&0x3F))
			s = s[3:]
			continue
		}
		r, n := utf8.DecodeRuneInString(s)
		for _, c := range utf16.Encode([]rune{r}) {
			b = binary.LittleEndian.AppendUint16(b, c)
		}
		s = s[n:]
	}
	return b
}
