package turn

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/wI2L/jsondiff"

	"github.com/hyperfs/hyperfs/internal/rawjson"
)

// maxCopied is how many bytes the copy operations of one patch may add: a few of them can double a document each.
const maxCopied = 16 << 20

// maxCompared is how long documents may be, in bytes, that are compared to tell what has changed. Longer ones are told whole.
const maxCompared = 64 << 10

// applyPatch applies a JSON Patch to a document, of which nil says that there is none: to a patch that is null. The result is nil if the document was removed. Numbers
// stay as they are written.
func applyPatch(doc, patch json.RawMessage) (json.RawMessage, error) {
	if len(patch) == 0 || patch[0] != '[' {
		return nil, wrong("custom_patch", "a JSON Patch is an array of operations, not %s", kind(append(patch, 0)[0]))
	}
	ops, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, wrong("custom_patch", "%w", err)
	}
	// The library takes objects and arrays alone: so the document becomes a member of one.
	for _, op := range ops {
		for _, name := range []string{"path", "from"} {
			if err := lower(op, name); err != nil {
				return nil, err
			}
		}
	}
	if doc == nil {
		doc = json.RawMessage("null")
	}
	o := jsonpatch.NewApplyOptions()
	o.EscapeHTML, o.SupportNegativeIndices, o.AccumulatedCopySizeLimit = false, false, maxCopied
	whole, err := ops.ApplyWithOptions(append(append([]byte(wrapper), doc...), '}'), o)
	if err != nil {
		return nil, wrong("custom_patch", "%s", notApplied(ops, err))
	}
	after, ok := bytes.CutPrefix(whole, []byte(wrapper))
	if !ok { // it was removed
		return nil, nil
	}
	return rawjson.Value(after[:len(after)-1])
}

// wrapper is how an object begins with the document as its only member.
const wrapper = `{"d":`

// lower makes a pointer one into the wrapper.
func lower(op jsonpatch.Operation, name string) error {
	raw := op[name]
	if raw == nil {
		return nil
	}
	var p string
	if err := json.Unmarshal(*raw, &p); err != nil || p != "" && !strings.HasPrefix(p, "/") {
		return wrong("custom_patch", "%s is no JSON Pointer: %s", name, *raw)
	}
	p = "/d" + p
	text, err := json.Marshal(p)
	*raw = text
	return err
}

// notApplied gives the text of the library's error, with the pointer that it names as the patch has it.
func notApplied(ops jsonpatch.Patch, err error) string {
	text, named := err.Error(), ""
	for _, op := range ops {
		for _, name := range []string{"path", "from"} {
			var p string
			if raw := op[name]; raw != nil && json.Unmarshal(*raw, &p) == nil && len(p) > len(named) && strings.Contains(text, p) {
				named = p
			}
		}
	}
	if named == "" {
		return text
	}
	return strings.Replace(text, named, cmp.Or(strings.TrimPrefix(named, "/d"), `""`), 1)
}

// replaced gives the patch that replaces a whole document.
func replaced(doc json.RawMessage) json.RawMessage {
	if doc == nil {
		doc = json.RawMessage("null")
	}
	b := append(make([]byte, 0, len(doc)+64), `[{"op":"replace","path":"","value":`...)
	return append(append(b, doc...), "}]"...)
}

// comparePatch gives a patch that leads from one document to another.
func comparePatch(before, after json.RawMessage) json.RawMessage {
	if before == nil || after == nil || len(before) > maxCompared || len(after) > maxCompared {
		return replaced(after)
	}
	ops, err := jsondiff.CompareJSON(before, after, jsondiff.UnmarshalFunc(unmarshal))
	if err != nil {
		return replaced(after)
	}
	if len(ops) == 0 {
		return json.RawMessage("[]")
	}
	patch, err := json.Marshal(ops)
	if err != nil || len(patch) > len(after)+64 {
		return replaced(after)
	}
	return patch
}

// unmarshal keeps numbers as they are written.
func unmarshal(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(v)
}
