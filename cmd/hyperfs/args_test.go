package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestFlagsMayFollowArguments(t *testing.T) {
	app := newApp(nil, io.Discard, io.Discard)
	for in, want := range map[string]string{
		"hyperfs rollback ID --json":            "hyperfs rollback --json -- ID",
		"hyperfs rollback --json ID":            "hyperfs rollback --json -- ID",
		"hyperfs -C dir list --agent a --all":   "hyperfs -C dir list --agent a --all --",
		"hyperfs mount DIR --at M --sync":       "hyperfs mount --at M --sync -- DIR",
		"hyperfs mount DIR --at=M":              "hyperfs mount --at=M -- DIR",
		"hyperfs drop -- -odd --json":           "hyperfs drop -- -odd --json",
		"hyperfs run ls --json":                 "hyperfs run -- ls --json",
		"hyperfs exec --branch b ls --json":     "hyperfs exec --branch b -- ls --json",
		"hyperfs attempt ls --json":             "hyperfs attempt -- ls --json",
		"hyperfs recover -C dir":                "hyperfs -C dir recover --",
		"hyperfs show ID --json -C=dir":         "hyperfs -C=dir show --json -- ID",
		"hyperfs -C a diff -C b":                "hyperfs -C a -C b diff --",
		"hyperfs run -C dir -- ls -C other":     "hyperfs -C dir run -- ls -C other",
		"hyperfs run -m -C ls -C other":         "hyperfs run -m -C -- ls -C other",
		"hyperfs drop -- -C":                    "hyperfs drop -- -C",
		"hyperfs recover -C":                    "hyperfs recover -C",
		"hyperfs run --keep -- ls -l":           "hyperfs run --keep -- ls -l",
		"hyperfs snapshot -m":                   "hyperfs snapshot -m",
		"hyperfs turns list --limit 3 x --json": "hyperfs turns list --limit 3 --json -- x",
		"hyperfs turns show ID --state":         "hyperfs turns show --state -- ID",
		"hyperfs turns run -c a ls --json":      "hyperfs turns run -c a -- ls --json",
		"hyperfs turns --json list -C dir":      "hyperfs -C dir turns --json list --",
		"hyperfs turns -C dir list":             "hyperfs -C dir turns list --",
		"hyperfs -C a turns -C=b end -C c ID":   "hyperfs -C a -C=b -C c turns end -- ID",
		"hyperfs turns nonsense --json":         "hyperfs turns --json -- nonsense",
		"hyperfs turns":                         "hyperfs turns --",
		"hyperfs help turns begin":              "hyperfs turns begin --help --",
		"hyperfs nonsense x --y":                "hyperfs nonsense x --y",
		"hyperfs":                               "hyperfs",
		"hyperfs show " + completionFlag:        "hyperfs show " + completionFlag,
		"hyperfs show - --json":                 "hyperfs show --json -- -",
		"hyperfs --json list":                   "hyperfs --json list --",
		"hyperfs show --unknown ID":             "hyperfs show --unknown -- ID",
		"hyperfs promote --patch ID -h":         "hyperfs promote --patch -h -- ID",
		"hyperfs snapshot --id I --message -x":  "hyperfs snapshot --id I --message -x --",
	} {
		if got := permute(app, strings.Fields(in)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestJSONIsWantedOnlyByOurOwnFlag(t *testing.T) {
	app := newApp(nil, io.Discard, io.Discard)
	for in, want := range map[string]bool{
		"hyperfs list --json":            true,
		"hyperfs --json list":            true,
		"hyperfs list --bogus --json":    true,
		"hyperfs run --json -- ls":       true,
		"hyperfs run -- ls --json":       false,
		"hyperfs run ls --json":          false,
		"hyperfs run -m msg ls --json":   false,
		"hyperfs run -m --json ls":       false,
		"hyperfs snapshot -m --json":     false,
		"hyperfs list":                   false,
		"hyperfs -C --json list":         false,
		"hyperfs --json nonsense":        true,
		"hyperfs -C dir nonsense --json": true,
		"hyperfs turns list --json":      true,
		"hyperfs turns --json list":      true,
		"hyperfs turns run -- ls --json": false,
		"hyperfs turns run ls --json":    false,
		"hyperfs turns list -c --json":   false,
	} {
		if got := wantsJSON(app, strings.Fields(in)); got != want {
			t.Errorf("%q wants JSON: %v", in, got)
		}
	}
}
