package scan

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func TestReparsePointsAreReadAndMadeAgain(t *testing.T) {
	for name, r := range map[string]reparse{
		"a relative symlink":          {target: `..\sibling\file.txt`},
		"an absolute symlink":         {target: `\??\C:\some where\file`},
		"a junction":                  {target: `\??\C:\project\target`, junction: true},
		"a mounted volume":            {target: `\??\Volume{a1b2c3d4-0000-0000-0000-100000000000}\`, junction: true},
		"a target that is no Unicode": {target: "lone\xed\xa0\x80and pair \U0001F600 \u00e9"},
		"a long target":               {target: strings.Repeat("n", 3000)},
	} {
		b, err := r.encode()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := decodeReparse(b); got != r || err != nil {
			t.Errorf("%s: it became %+v, %v", name, got, err)
		}
	}
	if _, err := (reparse{target: strings.Repeat("n", 9000)}).encode(); !errors.Is(err, errReparse) {
		t.Errorf("a target that is too long: %v", err)
	}
}

// What the documentation of REPARSE_DATA_BUFFER says, byte by byte.
func TestReparsePointsHaveTheFormOfNTFS(t *testing.T) {
	for _, c := range []struct {
		r    reparse
		want string
	}{
		{reparse{target: `a`}, "0c0000a0" + "1400" + "0000" + "0000" + "0200" + "0400" + "0200" + "01000000" + "61000000" + "61000000"},
		{reparse{target: `\??\C:`}, "0c0000a0" + "2000" + "0000" + "0000" + "0c00" + "0e00" + "0400" + "00000000" +
			"5c003f003f005c0043003a000000" + "43003a000000"},
		{reparse{target: `\??\C:`, junction: true}, "030000a0" + "1c00" + "0000" + "0000" + "0c00" + "0e00" + "0400" +
			"5c003f003f005c0043003a000000" + "43003a000000"},
	} {
		b, err := c.r.encode()
		if got := hex.EncodeToString(b); got != c.want || err != nil {
			t.Errorf("%+v is %s, %v, want %s", c.r, got, err, c.want)
		}
	}
}

func TestReparsePointsThatAreDamagedAreRefused(t *testing.T) {
	b, err := reparse{target: `somewhere`}.encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(b) - len("somewhere")*2 - 4 {
		if _, err := decodeReparse(b[:n]); !errors.Is(err, errReparse) {
			t.Errorf("its first %d bytes: %v", n, err)
		}
	}
	b[0] = 0x1d // LX_SYMLINK
	if _, err := decodeReparse(b); !errors.Is(err, errReparse) {
		t.Errorf("another tag: %v", err)
	}
}
