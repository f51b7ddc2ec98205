package main

import (
	"os"
	"os/exec"

	"github.com/hyperfs/hyperfs/control"
)

// What mounting needs.
const (
	featureDevice = "/dev/fuse"
	featureHelper = "fusermount3"
)

// localFeatures tells what this process would find if it mounted.
func localFeatures() []control.Feature {
	list := []control.Feature{{Name: featureDevice, On: true}, {Name: featureHelper, On: true}}
	if f, err := os.OpenFile(featureDevice, os.O_RDWR, 0); err != nil {
		list[0].On, list[0].Note = false, cause(err).Error()
	} else {
		f.Close()
	}
	if _, err := exec.LookPath(featureHelper); err != nil {
		list[1].On, list[1].Note = false, "not installed"
	}
	return list
}
