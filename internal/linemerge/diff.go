package linemerge

import "math"

// change is a run of lines that differs: a[a0:a1] became b[b0:b1]. One of the two may be empty.
type change struct{ a0, a1, b0, b1 int }

// diff gives the changes from a to b, in order, at least one common line between any two of them. Lines are numbers: equal
// ones have the same.
func diff(a, b []int32) []change {
	ca, cb := make([]bool, len(a)), make([]bool, len(b))
	lo := 0
	for lo < len(a) && lo < len(b) && a[lo] == b[lo] {
		lo++
	}
	endA, endB := len(a), len(b)
	for endA > lo && endB > lo && a[endA-1] == b[endB-1] {
		endA, endB = endA-1, endB-1
	}
	ix, iy := common(a[lo:endA], b[lo:endB], ca[lo:endA], cb[lo:endB])
	m := newMyers(pick(a[lo:endA], ix), pick(b[lo:endB], iy))
	m.compare(0, len(ix), 0, len(iy), false)
	mark(ca[lo:endA], ix, m.cx)
	mark(cb[lo:endB], iy, m.cy)
	slide(a, ca, gaps(cb))
	slide(b, cb, gaps(ca))
	return changes(ca, cb)
}

// common gives the positions of the lines that both sides have, and marks the others as changed: comparing these would cost
// time and could find nothing.
func common(a, b []int32, ca, cb []bool) (ix, iy []int) {
	inA, inB := set(a), set(b)
	for i, v := range a {
		if ca[i] = !inB[v]; !ca[i] {
			ix = append(ix, i)
		}
	}
	for i, v := range b {
		if cb[i] = !inA[v]; !cb[i] {
			iy = append(iy, i)
		}
	}
	return ix, iy
}

func set(lines []int32) map[int32]bool {
	s := make(map[int32]bool, len(lines))
	for _, v := range lines {
		s[v] = true
	}
	return s
}

func pick(lines []int32, at []int) []int32 {
	out := make([]int32, len(at))
	for i, p := range at {
		out[i] = lines[p]
	}
	return out
}

func mark(changed []bool, at []int, picked []bool) {
	for i, p := range at {
		changed[p] = picked[i]
	}
}

// myers is the linear-space algorithm of E. Myers, "An O(ND) Difference Algorithm and Its Variations".
type myers struct {
	x, y     []int32
	cx, cy   []bool // what has no partner on the other side
	fwd, bwd []int  // the furthest x on each diagonal, from the front and from the back
	zero     int    // where diagonal 0 is in these
	maxCost  int
}

// minCost is the number of differences up to which the shortest script is always found.
const minCost = 256

func newMyers(x, y []int32) *myers {
	n := len(x) + len(y) + 3
	return &myers{
		x: x, y: y, cx: make([]bool, len(x)), cy: make([]bool, len(y)),
		fwd: make([]int, n), bwd: make([]int, n), zero: len(y) + 1,
		maxCost: max(minCost, int(math.Sqrt(float64(n)))),
	}
}

// compare marks what differs between x[x0:x1] and y[y0:y1]. With exact it looks for the shortest script at any cost.
func (m *myers) compare(x0, x1, y0, y1 int, exact bool) {
	for x0 < x1 && y0 < y1 && m.x[x0] == m.y[y0] {
		x0, y0 = x0+1, y0+1
	}
	for x0 < x1 && y0 < y1 && m.x[x1-1] == m.y[y1-1] {
		x1, y1 = x1-1, y1-1
	}
	switch {
	case x0 == x1:
		for i := y0; i < y1; i++ {
			m.cy[i] = true
		}
	case y0 == y1:
		for i := x0; i < x1; i++ {
			m.cx[i] = true
		}
	default:
		s := m.split(x0, x1, y0, y1, exact)
		m.compare(x0, s.x, y0, s.y, s.exactBefore)
		m.compare(s.x, x1, s.y, y1, s.exactAfter)
	}
}

// point is where a comparison is cut in two.
type point struct {
	x, y                    int
	exactBefore, exactAfter bool // the half was searched already, and is known to be cheap
}

// split finds a point on a shortest path from (x0, y0) to (x1, y1), by walking from both ends until they meet. A walk that
// has become too long ends at the point that has come furthest.
func (m *myers) split(x0, x1, y0, y1 int, exact bool) point {
	min, max := x0-y1, x1-y0 // the diagonals that exist
	f := front{m.fwd, x0 - y0, x0 - y0}
	b := front{m.bwd, x1 - y1, x1 - y1}
	odd := (f.lo-b.lo)&1 != 0
	m.fwd[m.zero+f.lo], m.bwd[m.zero+b.lo] = x0, x1
	for cost := 1; ; cost++ {
		f.widen(m.zero, min, max, -1)
		for d := f.hi; d >= f.lo; d -= 2 {
			x := m.forward(d, x1, y1)
			if odd && b.lo <= d && d <= b.hi && m.bwd[m.zero+d] <= x {
				return point{x, x - d, true, true}
			}
		}
		b.widen(m.zero, min, max, math.MaxInt)
		for d := b.hi; d >= b.lo; d -= 2 {
			x := m.backward(d, x0, y0)
			if !odd && f.lo <= d && d <= f.hi && x <= m.fwd[m.zero+d] {
				return point{x, x - d, true, true}
			}
		}
		if !exact && cost >= m.maxCost {
			return m.furthest(f, b, x0, x1, y0, y1)
		}
	}
}

// front is the diagonals that one of the two walks has reached.
type front struct {
	at     []int
	lo, hi int
}

// widen adds a diagonal at both ends, as far as they exist, with a sentinel beyond.
func (f *front) widen(zero, min, max, sentinel int) {
	if f.lo > min {
		f.lo--
		f.at[zero+f.lo-1] = sentinel
	} else {
		f.lo++
	}
	if f.hi < max {
		f.hi++
		f.at[zero+f.hi+1] = sentinel
	} else {
		f.hi--
	}
}

// forward takes one more step onto diagonal d, and goes along it as far as lines are equal.
func (m *myers) forward(d, x1, y1 int) int {
	k := m.zero + d
	x := m.fwd[k+1]
	if m.fwd[k-1] >= x {
		x = m.fwd[k-1] + 1
	}
	for x < x1 && x-d < y1 && m.x[x] == m.y[x-d] {
		x++
	}
	m.fwd[k] = x
	return x
}

func (m *myers) backward(d, x0, y0 int) int {
	k := m.zero + d
	x := m.bwd[k-1]
	if m.bwd[k+1] <= x {
		x = m.bwd[k+1] - 1
	}
	for x > x0 && x-d > y0 && m.x[x-1] == m.y[x-1-d] {
		x--
	}
	m.bwd[k] = x
	return x
}

// furthest gives the point of either walk that has left the most lines behind it.
func (m *myers) furthest(f, b front, x0, x1, y0, y1 int) point {
	best, at := -1, point{}
	for d := f.lo; d <= f.hi; d += 2 {
		x := min(m.fwd[m.zero+d], x1)
		if x-d > y1 {
			x = y1 + d
		}
		if done := x - x0 + x - d - y0; x-d >= y0 && done > best {
			best, at = done, point{x, x - d, true, false}
		}
	}
	for d := b.lo; d <= b.hi; d += 2 {
		x := max(m.bwd[m.zero+d], x0)
		if x-d < y0 {
			x = y0 + d
		}
		if done := x1 - x + y1 - (x - d); x-d <= y1 && done > best {
			best, at = done, point{x, x - d, false, true}
		}
	}
	return at
}

// gaps gives, for every number of common lines, how many changed ones follow after so many.
func gaps(changed []bool) []int {
	g := []int{0}
	for _, c := range changed {
		if c {
			g[len(g)-1]++
		} else {
			g = append(g, 0)
		}
	}
	return g
}

// slide moves every run of changed lines that could as well stand elsewhere: to where the other side has changed too, else as
// far down as it goes. So two sides that did the same say it in the same way. Runs that meet become one.
func slide(lines []int32, changed []bool, other []int) {
	same := 0 // common lines before i
	for i := 0; i < len(lines); {
		if !changed[i] {
			i, same = i+1, same+1
			continue
		}
		r := run{lines: lines, changed: changed, start: i, end: i, same: same}
		r.join()
		aligned := -1
		for size := -1; size != r.end-r.start; {
			size = r.end - r.start
			for r.up() {
			}
			aligned = -1
			if other[r.same] > 0 {
				aligned = r.end
			}
			for r.down() {
				if other[r.same] > 0 {
					aligned = r.end
				}
			}
		}
		for aligned >= 0 && r.end > aligned && r.up() {
		}
		i, same = r.end, r.same
	}
}

// run is lines[start:end], all changed, with so many common lines before it.
type run struct {
	lines            []int32
	changed          []bool
	start, end, same int
}

func (r *run) up() bool {
	if r.start == 0 || r.lines[r.start-1] != r.lines[r.end-1] {
		return false
	}
	r.start, r.end, r.same = r.start-1, r.end-1, r.same-1
	r.changed[r.start], r.changed[r.end] = true, false
	r.join()
	return true
}

func (r *run) down() bool {
	if r.end == len(r.lines) || r.lines[r.start] != r.lines[r.end] {
		return false
	}
	r.changed[r.start], r.changed[r.end] = false, true
	r.start, r.end, r.same = r.start+1, r.end+1, r.same+1
	r.join()
	return true
}

// join takes in the runs that it has come to touch.
func (r *run) join() {
	for r.start > 0 && r.changed[r.start-1] {
		r.start--
	}
	for r.end < len(r.lines) && r.changed[r.end] {
		r.end++
	}
}

func changes(ca, cb []bool) []change {
	var list []change
	for i, j := 0, 0; i < len(ca) || j < len(cb); {
		c := change{a0: i, b0: j}
		for i < len(ca) && ca[i] {
			i++
		}
		for j < len(cb) && cb[j] {
			j++
		}
		if c.a1, c.b1 = i, j; c.a0 < c.a1 || c.b0 < c.b1 {
			list = append(list, c)
			continue
		}
		i, j = i+1, j+1
	}
	return list
}
