package rawjson_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hyperfs/hyperfs/internal/rawjson"
)

// texts are JSON, and almost.
var texts = []string{
	`{}`, `[]`, `""`, `0`, `-0`, `-1.5e+10`, `1E400`, `123456789012345678901234567890.10`, `true`, `false`, `null`, ` [ 1 , {"a" : [ ] } ] `,
	`"\u00e9\ud800 \" \\ \/ \b\f\n\r\t"`, `"é日本"`, `{"a":1,"a":2}`, `{"":{"":[[[]]]}}`, "\"a long string of more than eight bytes, and a DEL \x7f\"",
	``, ` `, `{`, `[`, `"`, `"\`, `"\u12`, `"\u12g4"`, `"\x"`, "\"\n\"", "\"1234567\x1f\"", `01`, `-`, `1.`, `.5`, `1e`, `1e+`, `+1`, `tru`, `nul`, `truee`, `True`,
	`[1,]`, `[,1]`, `[1 2]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{a:1}`, `{"a" 1}`, `{1:1}`, `1 2`, `[]]`, `{}}`, `'a'`, `NaN`, "\ufeff1", "\x00", `"` + "\t" + `"`,
}

// same fails the test unless the package and encoding/json agree on whether a text is JSON.
func same(t *testing.T, text []byte) {
	t.Helper()
	v, err := rawjson.Value(text)
	if want := json.Valid(text) && utf8.Valid(text); want != (err == nil) {
		t.Errorf("%q: %v, but valid is %v", text, err, want)
	}
	if err == nil && !bytes.Equal(v, bytes.Trim(text, " \t\r\n")) {
		t.Errorf("%q became %q", text, v)
	}
}

func TestWhatIsJSONIsAsInTheStandardLibrary(t *testing.T) {
	for _, s := range texts {
		same(t, []byte(s))
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 { // damaged and joined
		s := []byte(texts[random.IntN(len(texts))] + texts[random.IntN(len(texts))])
		s = fmt.Appendf(nil, `{"k":[%s,%s]}`, s, texts[random.IntN(len(texts))])
		for range random.IntN(3) {
			s[random.IntN(len(s))] = `{}[]",:\0n`[random.IntN(10)]
		}
		same(t, s)
	}
}

func FuzzValue(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Fuzz(same)
}

func TestTooDeepIsRefused(t *testing.T) {
	deep := strings.Repeat("[", 10000) + strings.Repeat("]", 10000)
	if _, err := rawjson.Value([]byte(deep)); err != nil {
		t.Error(err)
	}
	if _, err := rawjson.Value([]byte("[" + deep + "]")); err == nil {
		t.Error("it is not")
	}
}

func TestReaderTakesATextApart(t *testing.T) {
	r := rawjson.NewReader([]byte(` {"a" : "x\u0041", "b\n": [1, {"c":2.50}], "t":true, "n":-7} `))
	got := ""
	err := r.Object(func(name []byte) (err error) {
		got += string(name) + "="
		switch string(name) {
		case "a":
			s, err := r.String()
			got += s + ";"
			return err
		case "t":
			b, err := r.Bool()
			got += fmt.Sprint(b, ";")
			return err
		case "n":
			n, err := r.Int()
			got += fmt.Sprint(n, ";")
			return err
		}
		return r.Array(func(i int) error {
			v, err := r.Value()
			got += fmt.Sprintf("%d:%s;", i, v)
			return err
		})
	})
	if err == nil {
		err = r.End()
	}
	if want := "a=xA;b\n=0:1;1:{\"c\":2.50};t=true;n=-7;"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestWrongTypesAreErrors(t *testing.T) {
	for _, text := range []string{`1.5`, `"1"`, `99999999999999999999`, `null`, ``} {
		if n, err := rawjson.NewReader([]byte(text)).Int(); err == nil {
			t.Errorf("%s is the integer %d", text, n)
		}
	}
	if _, err := rawjson.NewReader([]byte(`1`)).String(); err == nil {
		t.Error("1 is a string")
	}
	if _, err := rawjson.NewReader([]byte(`"true"`)).Bool(); err == nil {
		t.Error("a string is a boolean")
	}
}

func BenchmarkValue(b *testing.B) {
	message := `{"role":"assistant","content":"` + strings.Repeat(`word and \"quoted\" word, `, 40) + `","n":[1,2.5,true,null]}`
	text := []byte("[" + strings.Repeat(message+",", 1000) + message + "]")
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := rawjson.Value(text); err != nil {
			b.Fatal(err)
		}
	}
}
