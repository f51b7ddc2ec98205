// Package javascript is a runtime inside this process: the engine goja, which needs no program to be installed and no process. It has the language and console, and the functions
// that it is given: no files, no network, no modules, no timers.
//
// It is not a wall. A program shares the heap with this process, and a limit of memory is watched from time to time only. Programs of people that one
// does not trust belong into a process, in a sandbox.
package javascript
