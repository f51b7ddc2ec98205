package runtime

import (
	"slices"
	"unicode"

	"github.com/hyperfs/hyperfs/internal/errs"
)

// CheckNames says why variables can't have some name: it is none in any language, or the runtime's own.
func CheckNames(reserved map[string]bool, names ...string) error {
	for _, name := range names {
		if err := checkName(name, reserved); err != nil {
			return err
		}
	}
	return nil
}

// Globals gives the variables that a patch of name changes.
func (p Patch) Globals(name string) []string { return slices.Concat([]string{name}, p.Delete, p.Alias) }

// Globals gives the variables that change.
func (b Boundary) Globals() []string {
	return slices.Concat([]string{b.Evidence}, b.Delete, b.Patch.Globals(b.Inputs))
}

// Gone gives the variables whose values go.
func (b Boundary) Gone() []string {
	return slices.Concat([]string{b.Evidence}, b.Delete, b.Patch.Delete)
}

func checkName(name string, reserved map[string]bool) error {
	for i, r := range name {
		if !(r == '_' || unicode.IsLetter(r) || i > 0 && unicode.IsDigit(r)) {
			return errs.New(errs.Usage, opRun, name, "it is not a name of a variable")
		}
	}
	switch {
	case name == "" || name == "__proto__":
		return errs.New(errs.Usage, opRun, name, "it is not a name of a variable")
	case reserved[name]:
		return errs.New(errs.Usage, opRun, name, "the name is the runtime's own")
	}
	return nil
}

// Restorable gives the entries of a snapshot that a session may set. JSON that the language would change is an error.
func Restorable(language string, entries []Entry, reserved map[string]bool) (able []Entry, err error) {
	for _, e := range entries {
		if !e.Restorable() || reserved[e.Name] {
			continue
		}
		if err := checkName(e.Name, nil); err != nil {
			return nil, err
		}
		if language == JavaScript {
			if err := exact(e.Value); err != nil {
				return nil, errs.Wrap(errs.Usage, "restore bindings", e.Name, err)
			}
		}
		able = append(able, e)
	}
	return able, nil
}
