package javascript

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/dop251/goja/ast"
	"github.com/dop251/goja/file"
	"github.com/dop251/goja/parser"
	"github.com/dop251/goja/token"
)

// The body of an asynchronous function is what a program becomes.
const (
	opening = "(async () => {"
	closing = "\n})()"
)

// rewriting makes a program that declares what it declares at its top level as globals, and returns its last expression. It does what the driver of
// Node.js does with another parser.
type rewriting struct {
	text      string // with opening and closing
	names     []string
	functions []string
	edits     []edit
}

// edit replaces the text between two offsets.
type edit struct {
	start, end int
	text       string
}

// rewrite gives the program to run for code, or a syntax error.
func rewrite(name, code string) (string, error) {
	if strings.HasPrefix(code, "#!") {
		code = "//" + code[2:]
	}
	r := &rewriting{text: opening + code + closing}
	program, err := parser.ParseFile(nil, name, r.text, 0, parser.WithDisableSourceMaps)
	if err != nil {
		return "", err
	}
	body, ok := wrapped(program)
	if !ok {
		return "", errors.New("SyntaxError: it has an unbalanced brace")
	}
	for _, s := range body.List {
		r.declaration(s)
		r.nested(reflect.ValueOf(s))
	}
	if n := len(body.List); n > 0 {
		r.last(body.List[n-1])
	}
	return r.apply(strict(body.List)), nil
}

// wrapped gives the body of the function that the program must be.
func wrapped(program *ast.Program) (*ast.BlockStatement, bool) {
	if len(program.Body) != 1 {
		return nil, false
	}
	s, ok := program.Body[0].(*ast.ExpressionStatement)
	if !ok {
		return nil, false
	}
	call, ok := s.Expression.(*ast.CallExpression)
	if !ok {
		return nil, false
	}
	f, ok := call.Callee.(*ast.ArrowFunctionLiteral)
	if !ok || int(f.Start) > len(opening) {
		return nil, false
	}
	body, ok := f.Body.(*ast.BlockStatement)
	return body, ok
}

// strict reports whether the program begins with a directive for strict mode.
func strict(list []ast.Statement) bool {
	for _, s := range list {
		e, ok := s.(*ast.ExpressionStatement)
		if !ok {
			return false
		}
		text, ok := e.Expression.(*ast.StringLiteral)
		if !ok {
			return false
		}
		if text.Value == "use strict" {
			return true
		}
	}
	return false
}

func (r *rewriting) replace(start, end int, text string) {
	r.edits = append(r.edits, edit{start, end, text})
}

// at gives the offset of a position, which counts from 1.
func at(i file.Idx) int { return int(i) - 1 }

// declaration rewrites let, const, class and function at the top level.
func (r *rewriting) declaration(s ast.Statement) {
	switch s := s.(type) {
	case *ast.LexicalDeclaration:
		r.bindings(at(s.Idx), s.Token.String(), s.List, "0,")
		for _, b := range s.List {
			if b.Initializer == nil && s.Token == token.LET {
				r.replace(at(b.Idx1()), at(b.Idx1()), " = undefined")
			}
		}
	case *ast.ClassDeclaration:
		name := s.Class.Name.Name.String()
		r.names = append(r.names, name)
		r.replace(at(s.Class.Class), at(s.Class.Class), name+" = ")
		r.replace(at(s.Class.RightBrace)+1, at(s.Class.RightBrace)+1, ";")
	case *ast.FunctionDeclaration:
		name := s.Function.Name.Name.String()
		r.names, r.functions = append(r.names, name), append(r.functions, name)
	}
}

// bindings replaces the keyword of a declaration.
func (r *rewriting) bindings(start int, keyword string, list []*ast.Binding, by string) {
	r.replace(start, start+len(keyword), by)
	for _, b := range list {
		r.bound(b.Target)
	}
}

// bound notes the names that a pattern declares.
func (r *rewriting) bound(e ast.Expression) {
	switch e := e.(type) {
	case *ast.Identifier:
		r.names = append(r.names, e.Name.String())
	case *ast.AssignExpression:
		r.bound(e.Left)
	case *ast.ArrayPattern:
		for _, element := range append(slices.Clone(e.Elements), e.Rest) {
			r.bound(element)
		}
	case *ast.ObjectPattern:
		for _, p := range e.Properties {
			switch p := p.(type) {
			case *ast.PropertyShort:
				r.names = append(r.names, p.Name.Name.String())
			case *ast.PropertyKeyed:
				r.bound(p.Value)
			}
		}
		r.bound(e.Rest)
	}
}

// nested rewrites var wherever it stands, but in functions.
func (r *rewriting) nested(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			r.nested(v.Elem())
		}
	case reflect.Pointer:
		if v.IsNil() || !r.enter(v.Interface()) {
			return
		}
		if v.Elem().Kind() == reflect.Struct && strings.HasSuffix(v.Elem().Type().PkgPath(), "goja/ast") {
			r.nested(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				r.nested(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			r.nested(v.Index(i))
		}
	}
}

// enter rewrites a node, and reports whether there may be some below it.
func (r *rewriting) enter(node any) bool {
	switch n := node.(type) {
	case *ast.FunctionLiteral, *ast.ArrowFunctionLiteral, *ast.ClassLiteral:
		return false
	case *ast.VariableStatement:
		r.bindings(at(n.Var), "var", n.List, "0,")
	case *ast.ForStatement:
		if v, ok := n.Initializer.(*ast.ForLoopInitializerVarDeclList); ok {
			r.head(n.For, v.List, "0,")
		}
	case *ast.ForInStatement:
		r.into(n.For, n.Into)
	case *ast.ForOfStatement:
		r.into(n.For, n.Into)
	}
	return true
}

// into rewrites the variable of a loop over something.
func (r *rewriting) into(loop file.Idx, into ast.ForInto) {
	if v, ok := into.(*ast.ForIntoVar); ok {
		r.head(loop, []*ast.Binding{v.Binding}, "")
	}
}

// head rewrites the variables of a loop. The tree does not say where their keyword is.
func (r *rewriting) head(loop file.Idx, list []*ast.Binding, by string) {
	r.bindings(at(loop)+strings.Index(r.text[at(loop):], "var"), "var", list, by)
}

// last lets the program return its last expression, which begins before parentheses that the tree doesn't have.
func (r *rewriting) last(s ast.Statement) {
	e, ok := s.(*ast.ExpressionStatement)
	if !ok {
		return
	}
	start := at(e.Idx0())
	if start < len(opening) {
		return // an assignment to a pattern, whose place the tree does not have
	}
	for i := start - 1; i >= len(opening) && strings.IndexByte("( \t\r\n", r.text[i]) >= 0; i-- {
		if r.text[i] == '(' {
			start = i
		}
	}
	r.replace(start, start, "return ")
}

// apply makes the edits.
func (r *rewriting) apply(strict bool) string {
	var b strings.Builder
	b.WriteString(opening)
	if strict {
		b.WriteString(`"use strict";`)
	}
	slices.Sort(r.names)
	for _, name := range slices.Compact(r.names) {
		b.WriteString(`if (!("` + name + `" in globalThis)) globalThis.` + name + ` = undefined;`)
	}
	for _, name := range r.functions {
		b.WriteString("globalThis." + name + " = " + name + ";")
	}
	slices.SortStableFunc(r.edits, func(a, b edit) int { return a.start - b.start })
	at := len(opening)
	for _, e := range r.edits {
		b.WriteString(r.text[at:e.start] + e.text)
		at = e.end
	}
	b.WriteString(r.text[at:])
	return b.String()
}
