package session

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mounted is one mount of this namespace.
type mounted struct {
	id, parent int
	device     string // of its filesystem
	root       string // what of the filesystem it shows
	point      string // where
}

// mounts gives all mounts: those over others come after them.
func mounts() ([]mounted, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []mounted
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20) // the options of an overlay are long
	for lines.Scan() {
		if m, ok := parseMount(lines.Text()); ok {
			all = append(all, m)
		}
	}
	return all, lines.Err()
}

func parseMount(line string) (m mounted, ok bool) {
	f := strings.Fields(line)
	if len(f) < 5 {
		return m, false
	}
	var err, err2 error
	m.id, err = strconv.Atoi(f[0])
	m.parent, err2 = strconv.Atoi(f[1])
	m.device, m.root, m.point = f[2], unescape(f[3]), unescape(f[4])
	return m, err == nil && err2 == nil
}

// unescape gives a path of /proc/self/mountinfo, where blanks, tabs, line feeds and backslashes are octal.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// place is a directory within a filesystem, by whatever mount one looks at it.
type place struct{ device, path string }

// placesOf gives what a path shows, and what it would show without each of the mounts that lie over it.
func placesOf(path string, all []mounted) []place {
	var places []place
	byID := make(map[int]mounted, len(all))
	var top mounted
	for _, m := range all {
		byID[m.id] = m
		if within(m.point, path) && len(m.point) >= len(top.point) {
			top = m
		}
	}
	for m, ok := top, top.point != ""; ok; m, ok = byID[m.parent] {
		places = append(places, place{m.device, filepath.Join(m.root, relative(m.point, path))})
		if m.point != path {
			break
		}
	}
	return places
}

// shownAt gives every path that shows something of p.
func (p place) shownAt(all []mounted) []string {
	var paths []string
	for _, m := range all {
		switch {
		case m.device != p.device:
		case within(m.root, p.path):
			paths = append(paths, filepath.Join(m.point, relative(m.root, p.path)))
		case within(p.path, m.root):
			paths = append(paths, m.point)
		}
	}
	return paths
}

// within reports whether path is dir or below it; both are clean and absolute.
func within(dir, path string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// relative gives path, which is within dir, as seen from there.
func relative(dir, path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
}
