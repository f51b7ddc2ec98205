package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// The size of a chart, and of what is around its plot.
const (
	svgWidth, svgHeight                 = 760.0, 400.0
	svgLeft, svgTop, svgRight, svgBelow = 64.0, 40.0, 210.0, 48.0
)

// svgColors can be told apart, and stand out from white and from black.
var svgColors = []string{"#3b82f6", "#e8590c", "#2f9e44", "#c2255c", "#9c6ade", "#0c9aa6"}

const svgText, svgGrid = "#808890", "#808890"

// plot maps figures to places in a chart; both axes are logarithmic.
type plot struct {
	xMin, xMax, yMin, yMax float64
}

// svg draws a curve: one line for each series, and a dotted one that grows as X does, from where the line begins that grows most.
func (c *curve) svg() []byte {
	p := c.plot()
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" font-family="system-ui, sans-serif" font-size="12">`+"\n",
		svgWidth, svgHeight, svgWidth, svgHeight)
	fmt.Fprintf(&b, "<title>%s</title>\n", escaped(c.Title))
	fmt.Fprintf(&b, `<clipPath id="plot"><rect x="%g" y="%g" width="%g" height="%g"/></clipPath>`+"\n", svgLeft, svgTop, p.right()-svgLeft, p.bottom()-svgTop)
	text(&b, svgLeft, svgTop-18, "start", c.Title, svgText, `font-size="14" font-weight="600"`)
	p.grid(&b, c.xs())
	text(&b, (svgLeft+p.right())/2, svgHeight-10, "middle", c.X, svgText, "")
	p.linear(&b, c)
	styles := c.styles()
	for i, s := range c.Series {
		p.line(&b, s, styles[i])
		legend(&b, i, s.Name, styles[i])
	}
	legend(&b, len(c.Series), "linear", style{svgText, svgDotted})
	b.WriteString("</svg>\n")
	return b.Bytes()
}

const svgDotted, svgDashed = `stroke-dasharray="2 4"`, `stroke-dasharray="7 4"`

// style is how a line is drawn.
type style struct{ color, dashes string }

// styles gives each series a colour, but the same one to what is compared with each other: their names differ in what follows a comma. The plain filesystem's are dashed.
func (c *curve) styles() []style {
	colors := map[string]string{}
	var all []style
	for _, s := range c.Series {
		what, where, _ := strings.Cut(s.Name, ", ")
		if _, ok := colors[what]; !ok {
			colors[what] = svgColors[len(colors)%len(svgColors)]
		}
		st := style{color: colors[what]}
		if where == "plain" {
			st.dashes = svgDashed
		}
		all = append(all, st)
	}
	return all
}

// plot chooses the ranges: all of X, and of the times whole decades.
func (c *curve) plot() plot {
	p := plot{xMin: math.Inf(1), xMax: math.Inf(-1), yMin: math.Inf(1), yMax: math.Inf(-1)}
	for _, s := range c.Series {
		for _, at := range s.Points {
			p.xMin, p.xMax = min(p.xMin, float64(at.X)), max(p.xMax, float64(at.X))
			p.yMin, p.yMax = min(p.yMin, at.Median), max(p.yMax, at.Median)
		}
	}
	if p.xMin == p.xMax {
		p.xMax *= 10
	}
	p.yMin = math.Pow(10, math.Floor(math.Log10(p.yMin)))
	p.yMax = max(math.Pow(10, math.Ceil(math.Log10(p.yMax))), p.yMin*10)
	return p
}

func (p plot) right() float64  { return svgWidth - svgRight }
func (p plot) bottom() float64 { return svgHeight - svgBelow }

func (p plot) x(v float64) float64 {
	return svgLeft + math.Log(v/p.xMin)/math.Log(p.xMax/p.xMin)*(p.right()-svgLeft)
}

func (p plot) y(seconds float64) float64 {
	return p.bottom() - math.Log(seconds/p.yMin)/math.Log(p.yMax/p.yMin)*(p.bottom()-svgTop)
}

// grid draws a line for each decade of the times, finer ones between them, and one where there are points.
func (p plot) grid(b *bytes.Buffer, xs []int) {
	rule := func(x1, y1, x2, y2, opacity float64) {
		fmt.Fprintf(b, `<path d="M%.1f %.1fL%.1f %.1f" stroke="%s" stroke-opacity="%g"/>`+"\n", x1, y1, x2, y2, svgGrid, opacity)
	}
	for decade := p.yMin; decade < p.yMax*1.01; decade *= 10 {
		rule(svgLeft, p.y(decade), p.right(), p.y(decade), 0.45)
		text(b, svgLeft-8, p.y(decade)+4, "end", decadeLabel(decade), svgText, "")
		for k := 2.0; k < 10 && decade*k < p.yMax; k++ {
			rule(svgLeft, p.y(decade*k), p.right(), p.y(decade*k), 0.12)
		}
	}
	for _, x := range xs {
		rule(p.x(float64(x)), svgTop, p.x(float64(x)), p.bottom(), 0.3)
		text(b, p.x(float64(x)), p.bottom()+18, "middle", thousands(x), svgText, "")
	}
}

// decadeLabel names a power of ten seconds.
func decadeLabel(seconds float64) string {
	unit, n := "s", seconds
	switch {
	case seconds < 0.9e-6:
		unit, n = "ns", seconds*1e9
	case seconds < 0.9e-3:
		unit, n = "µs", seconds*1e6
	case seconds < 0.9:
		unit, n = "ms", seconds*1e3
	}
	return fmt.Sprintf("%.0f %s", n, unit)
}

// linear draws what grows as X does.
func (p plot) linear(b *bytes.Buffer, c *curve) {
	from := c.Series[0]
	for _, s := range c.Series {
		if s.growth() > from.growth() {
			from = s
		}
	}
	at := from.Points[0]
	end := at.Median * p.xMax / float64(at.X)
	fmt.Fprintf(b, `<path d="M%.1f %.1fL%.1f %.1f" stroke="%s" stroke-width="1.5" %s clip-path="url(#plot)"/>`+"\n",
		p.x(float64(at.X)), p.y(at.Median), p.x(p.xMax), p.y(end), svgText, svgDotted)
}

// line draws a series with a mark for each point, which tells its figure.
func (p plot) line(b *bytes.Buffer, s *series, st style) {
	fmt.Fprintf(b, `<path fill="none" stroke-width="2" stroke="%s" %s d="`, st.color, st.dashes)
	for i, at := range s.Points {
		fmt.Fprintf(b, "%c%.1f %.1f", "ML"[min(i, 1)], p.x(float64(at.X)), p.y(at.Median))
	}
	fmt.Fprintln(b, `"/>`)
	for _, at := range s.Points {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"><title>%s</title></circle>`+"\n",
			p.x(float64(at.X)), p.y(at.Median), st.color, escaped(fmt.Sprintf("%s, %s: %s", s.Name, thousands(at.X), duration(at.Median))))
	}
}

// legend names the i-th line at the right.
func legend(b *bytes.Buffer, i int, name string, st style) {
	x, y := svgWidth-svgRight+18, svgTop+12+float64(i)*20
	fmt.Fprintf(b, `<path d="M%g %gh22" stroke="%s" stroke-width="2" %s/>`+"\n", x, y, st.color, st.dashes)
	text(b, x+30, y+4, "start", name, svgText, "")
}

func text(b *bytes.Buffer, x, y float64, anchor, s, color, attributes string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" %s>%s</text>`+"\n", x, y, anchor, color, attributes, escaped(s))
}

func escaped(s string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(s))
	return b.String()
}
