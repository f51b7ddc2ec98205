package control

import "os"

// unnamedFile opens a file that vanishes when it is closed.
func unnamedFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "spool-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}
