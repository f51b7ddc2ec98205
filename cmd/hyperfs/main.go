// Command hyperfs is the command line of hyperfs, and its daemon.
package main

import (
	"os"
	"strings"
)

func main() {
	becomeExact()
	forgetEmptyVariables()
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// forgetEmptyVariables makes an empty variable of ours the same as none, as a user expects who writes HYPERFS_STORE= before
// a command.
func forgetEmptyVariables() {
	for _, v := range os.Environ() {
		if name, ok := strings.CutSuffix(v, "="); ok && strings.HasPrefix(name, "HYPERFS_") {
			os.Unsetenv(name)
		}
	}
}
