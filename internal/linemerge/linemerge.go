// Package linemerge merges two edited versions of a text line by line, as `git merge-file` does: what one side changed is
// taken, and where both did it is a conflict, unless they did the same.
//
// Where lines repeat, several comparisons may be the shortest, and git may take another one: then a place may conflict here and not
// there, or the other way round.
//
// Lines end with a newline, which belongs to them: so a carriage return before it is part of the line, and a last line
// without one differs from the same line with it. Bytes need not be UTF-8.
package linemerge

import "bytes"

// Conflict is a place that both sides changed, not in the same way. Changes that touch count as one place.
type Conflict struct {
	Base   Lines `json:"base"`
	Ours   Lines `json:"ours"`
	Theirs Lines `json:"theirs"`
}

// Lines are lines of a text. The first line of a text is 1. An empty range stands before First.
type Lines struct {
	First int `json:"first"`
	Count int `json:"count"`
}

// Merge gives the merged text, or the conflicts if there are any.
func Merge(base, ours, theirs []byte) ([]byte, []Conflict) {
	var in interner
	b, o, t := split(base), split(ours), split(theirs)
	nb, no, nt := in.numbers(b), in.numbers(o), in.numbers(t)
	m := merger{base: b, ours: o, theirs: t, byOurs: diff(nb, no), byTheirs: diff(nb, nt)}
	m.run()
	if len(m.conflicts) > 0 {
		return nil, m.conflicts
	}
	return m.out.Bytes(), nil
}

// split cuts a text after each newline.
func split(text []byte) [][]byte {
	if len(text) == 0 {
		return nil
	}
	lines := bytes.SplitAfter(text, []byte{'\n'})
	if n := len(lines) - 1; len(lines[n]) == 0 {
		lines = lines[:n]
	}
	return lines
}

// interner gives equal lines equal numbers.
type interner struct{ known map[string]int32 }

func (in *interner) numbers(lines [][]byte) []int32 {
	if in.known == nil {
		in.known = make(map[string]int32, len(lines))
	}
	out := make([]int32, len(lines))
	for i, line := range lines {
		n, ok := in.known[string(line)]
		if !ok {
			n = int32(len(in.known))
			in.known[string(line)] = n
		}
		out[i] = n
	}
	return out
}

// merger walks through the changes of both sides.
type merger struct {
	base, ours, theirs [][]byte
	byOurs, byTheirs   []change // not dealt with yet
	done               int      // lines of the base that are
	shiftO, shiftT     int      // how much further on a common line is on that side than in the base
	out                bytes.Buffer
	conflicts          []Conflict
}

func (m *merger) run() {
	for len(m.byOurs) > 0 || len(m.byTheirs) > 0 {
		m.place()
	}
	m.copy(m.base[m.done:])
}

func (m *merger) copy(lines [][]byte) {
	for _, l := range lines {
		m.out.Write(l)
	}
}

// place deals with the next change and all that touch it.
func (m *merger) place() {
	from := m.next()
	m.copy(m.base[m.done:from])
	to, deltaO, deltaT := from, 0, 0
	hasO, hasT := false, false
	for {
		if c, ok := take(&m.byOurs, to); ok {
			to, deltaO, hasO = max(to, c.a1), deltaO+c.b1-c.b0-(c.a1-c.a0), true
			continue
		}
		if c, ok := take(&m.byTheirs, to); ok {
			to, deltaT, hasT = max(to, c.a1), deltaT+c.b1-c.b0-(c.a1-c.a0), true
			continue
		}
		break
	}
	atO, atT := from+m.shiftO, from+m.shiftT
	ours, theirs := m.ours[atO:to+m.shiftO+deltaO], m.theirs[atT:to+m.shiftT+deltaT]
	switch {
	case !hasT:
		m.copy(ours)
	case !hasO || equal(ours, theirs):
		m.copy(theirs)
	default:
		m.conflicts = append(m.conflicts, Conflict{
			Base: Lines{from + 1, to - from}, Ours: Lines{atO + 1, len(ours)}, Theirs: Lines{atT + 1, len(theirs)},
		})
	}
	m.done, m.shiftO, m.shiftT = to, m.shiftO+deltaO, m.shiftT+deltaT
}

// next gives the line of the base where the next change begins.
func (m *merger) next() int {
	switch {
	case len(m.byOurs) == 0:
		return m.byTheirs[0].a0
	case len(m.byTheirs) == 0:
		return m.byOurs[0].a0
	}
	return min(m.byOurs[0].a0, m.byTheirs[0].a0)
}

// take takes the first change off a list if it begins no later than at a line.
func take(list *[]change, line int) (change, bool) {
	if len(*list) == 0 || (*list)[0].a0 > line {
		return change{}, false
	}
	c := (*list)[0]
	*list = (*list)[1:]
	return c, true
}

func equal(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
