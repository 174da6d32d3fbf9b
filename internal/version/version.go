// Package version says which build this is.
package version

import "runtime/debug"

// Version is set by the linker to the commit; a plain go build takes it from
// the build information.
var Version string

// String is the version for people and for Identify's firmware revision.
func String() string {
	if Version != "" {
		return Version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 8 {
				return s.Value[:8]
			}
		}
	}
	return "unknown"
}
