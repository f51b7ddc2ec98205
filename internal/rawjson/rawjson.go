// Package rawjson takes JSON texts (RFC 8259) apart without decoding what is in them: values are parts of the text, byte for byte, so that numbers of any size, and
// the order of members, survive. One pass both checks and divides; package encoding/json needs three for a value in a value, each several times as long.
package rawjson

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// maxDepth is how deep values may be nested, as in encoding/json.
const maxDepth = 10000

// SyntaxError says where a text is no JSON.
type SyntaxError struct {
	Offset int // in bytes
	Why    string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("malformed JSON at byte %d: %s", e.Offset, e.Why)
}

// Reader reads one text from its beginning to its end. It is for one goroutine. After an error it must not be used any more.
type Reader struct {
	text  []byte
	pos   int
	depth int
}

// NewReader makes a reader. What it gives are parts of text.
func NewReader(text []byte) *Reader { return &Reader{text: text} }

// Value gives text without the space around it, or an error where it is not one JSON value in UTF-8.
func Value(text []byte) (json.RawMessage, error) {
	if err := CheckUTF8(text); err != nil {
		return nil, err
	}
	r := NewReader(text)
	v, err := r.Value()
	if err == nil {
		err = r.End()
	}
	return v, err
}

// CheckUTF8 says where a text is not UTF-8, which the other functions do not look at.
func CheckUTF8(text []byte) error {
	if utf8.Valid(text) {
		return nil
	}
	for i := 0; i < len(text); {
		c, n := utf8.DecodeRune(text[i:])
		if c == utf8.RuneError && n == 1 {
			return &SyntaxError{i, "it is not UTF-8"}
		}
		i += n
	}
	return nil
}

func (r *Reader) fail(why string) error {
	if r.pos >= len(r.text) {
		why = "the JSON ends too early"
	}
	return &SyntaxError{r.pos, why}
}

func (r *Reader) space() {
	for r.pos < len(r.text) {
		switch r.text[r.pos] {
		case ' ', '\n', '\t', '\r':
			r.pos++
		default:
			return
		}
	}
}

// Kind gives the first byte of the next value, which tells its type; 0 at the end.
func (r *Reader) Kind() byte {
	r.space()
	if r.pos == len(r.text) {
		return 0
	}
	return r.text[r.pos]
}

// End says that nothing may follow.
func (r *Reader) End() error {
	if r.space(); r.pos < len(r.text) {
		return r.fail("something follows the value")
	}
	return nil
}

// Value reads a value of any type.
func (r *Reader) Value() (json.RawMessage, error) { return r.Raw(r.Skip) }

// Raw gives the text of the value that read reads.
func (r *Reader) Raw(read func() error) (json.RawMessage, error) {
	r.space()
	start := r.pos
	if err := read(); err != nil {
		return nil, err
	}
	return json.RawMessage(r.text[start:r.pos:r.pos]), nil
}

// Skip passes a value of any type.
func (r *Reader) Skip() error {
	switch c := r.Kind(); c {
	case '{':
		return r.Object(func([]byte) error { return r.Skip() })
	case '[':
		return r.Array(func(int) error { return r.Skip() })
	case '"':
		return r.skipString()
	case 't':
		return r.word("true")
	case 'f':
		return r.word("false")
	case 'n':
		return r.word("null")
	default:
		if c == '-' || c >= '0' && c <= '9' {
			return r.number()
		}
		return r.fail("a value is expected")
	}
}

// Object reads an object. member is called for each with its name, which is good until it returns, and must read the value.
func (r *Reader) Object(member func(name []byte) error) error {
	if err := r.open('{', "an object is expected"); err != nil {
		return err
	}
	for first := true; r.Kind() != '}'; first = false {
		if err := r.comma(first); err != nil {
			return err
		}
		if r.Kind() != '"' {
			return r.fail("the name of a member is expected")
		}
		name, err := r.bytes()
		if err != nil {
			return err
		}
		if r.Kind() != ':' {
			return r.fail("a colon is expected")
		}
		r.pos++
		if err := member(name); err != nil {
			return err
		}
	}
	r.pos++
	r.depth--
	return nil
}

// Array reads an array. element is called for each with its index, and must read the value.
func (r *Reader) Array(element func(i int) error) error {
	if err := r.open('[', "an array is expected"); err != nil {
		return err
	}
	for i := 0; r.Kind() != ']'; i++ {
		if err := r.comma(i == 0); err != nil {
			return err
		}
		if err := element(i); err != nil {
			return err
		}
	}
	r.pos++
	r.depth--
	return nil
}

func (r *Reader) open(c byte, why string) error {
	if r.Kind() != c {
		return r.fail(why)
	}
	if r.depth++; r.depth > maxDepth {
		return r.fail("it is nested too deeply")
	}
	r.pos++
	return nil
}

func (r *Reader) comma(first bool) error {
	if first {
		return nil
	}
	if r.Kind() != ',' {
		return r.fail("a comma is expected")
	}
	r.pos++
	if c := r.Kind(); c == ']' || c == '}' {
		return r.fail("a value is expected after the comma")
	}
	return nil
}

// String reads a string.
func (r *Reader) String() (string, error) {
	if r.Kind() != '"' {
		return "", r.fail("a string is expected")
	}
	b, err := r.bytes()
	return string(b), err
}

// bytes reads a string.
func (r *Reader) bytes() ([]byte, error) {
	start := r.pos
	if err := r.skipString(); err != nil {
		return nil, err
	}
	raw := r.text[start:r.pos]
	for _, c := range raw {
		if c == '\\' {
			var s string
			err := json.Unmarshal(raw, &s)
			return []byte(s), err
		}
	}
	return raw[1 : len(raw)-1], nil
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special has the high bit of the lowest byte set that ends a run of ordinary ones in a string: a quote, a backslash or a control character. Bits above that one
// say nothing.
func special(w uint64) uint64 {
	quote, back := w^(ones*'"'), w^(ones*'\\')
	return ((quote-ones)&^quote | (back-ones)&^back | (w-ones*0x20)&^w) & highs
}

// skipString passes a string. Its first quote is there.
func (r *Reader) skipString() error {
	b, i := r.text, r.pos+1
	for {
		for i+8 <= len(b) {
			if m := special(binary.LittleEndian.Uint64(b[i:])); m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			r.pos = len(b)
			return r.fail("")
		}
		switch c := b[i]; {
		case c == '"':
			r.pos = i + 1
			return nil
		case c == '\\':
			n := escape(b[i+1:])
			if n == 0 {
				r.pos = i
				return r.fail("a wrong escape in a string")
			}
			i += 1 + n
		case c < 0x20:
			r.pos = i
			return r.fail("a control character in a string")
		default:
			i++
		}
	}
}

// escape gives the length of what follows a backslash, 0 where it is wrong.
func escape(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 1
	case 'u':
		if len(b) < 5 {
			return 0
		}
		for _, c := range b[1:5] {
			if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
				return 0
			}
		}
		return 5
	}
	return 0
}

func (r *Reader) word(w string) error {
	if len(r.text)-r.pos < len(w) || string(r.text[r.pos:r.pos+len(w)]) != w {
		return r.fail(w + " is expected")
	}
	r.pos += len(w)
	return nil
}

// number passes a number.
func (r *Reader) number() error {
	b, i := r.text, r.pos
	digits := func() bool {
		start := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > start
	}
	at := func(set ...byte) bool {
		for _, c := range set {
			if i < len(b) && b[i] == c {
				return true
			}
		}
		return false
	}
	if at('-') {
		i++
	}
	ok := true
	if at('0') {
		i++
	} else {
		ok = digits()
	}
	if ok && at('.') {
		i++
		ok = digits()
	}
	if ok && at('e', 'E') {
		if i++; at('+', '-') {
			i++
		}
		ok = digits()
	}
	r.pos = i
	if !ok {
		return r.fail("a digit is expected")
	}
	return nil
}

// Bool reads a boolean.
func (r *Reader) Bool() (bool, error) {
	switch r.Kind() {
	case 't':
		return true, r.word("true")
	case 'f':
		return false, r.word("false")
	}
	return false, r.fail("a boolean is expected")
}

// Int reads an integer that an int64 can hold.
func (r *Reader) Int() (int64, error) {
	if c := r.Kind(); c != '-' && (c < '0' || c > '9') {
		return 0, r.fail("an integer is expected")
	}
	start := r.pos
	if err := r.number(); err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(r.text[start:r.pos]), 10, 64)
	if err != nil {
		r.pos = start
		return 0, r.fail("an integer of 64 bits is expected")
	}
	return n, nil
}
