package main

import (
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/hyperfs/hyperfs/control"
)

// version is set by the linker (-X main.version=…); without it, the module's version counts.
var version string

// buildVersion says what this program was built from and runs on.
var buildVersion = sync.OnceValue(func() control.Version {
	v := control.Version{
		Version:  version,
		Go:       runtime.Version(),
		OS:       runtime.GOOS,
		Arch:     runtime.GOARCH,
		Kernel:   kernelRelease(),
		Features: localFeatures(),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Revision += " (modified)"
		}
	}
	return v
})
