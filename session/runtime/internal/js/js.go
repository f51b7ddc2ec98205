// Package js has what the JavaScript runtimes share: which values JSON can say, and the operations on globals.
package js

import _ "embed"

// Globals is an expression of JavaScript: a function that makes the operations; see the file.
//
//go:embed globals.js
var Globals string
