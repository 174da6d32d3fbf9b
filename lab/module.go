package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// moduleBuild is a driver that Debian's source has and Debian's configuration
// leaves out, built unchanged against the kernel's own headers.
type moduleBuild struct {
	name   string // of the module
	source string // its folder in the kernel's source
	config string // what make must be told
}

// siw is the kernel's iWARP over TCP.
var siw = moduleBuild{name: "siw", source: "drivers/infiniband/sw/siw", config: "CONFIG_RDMA_SIW=m"}

// prepareModule builds a module into the cached kernel unless it is there.
// Packages are unpacked, not installed.
func prepareModule(p paths, k kernel, m moduleBuild) error {
	unlock, err := lockFile(filepath.Join(p.cache, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	built := filepath.Join(k.modules(), "updates", m.name+".ko")
	if _, err := os.Stat(built); err == nil {
		return nil
	}
	fmt.Fprintf(os.Stderr, "lab: building %s for %s\n", m.name, k.version)
	work := filepath.Join(p.cache, "build-"+m.name)
	defer os.RemoveAll(work)
	ko, err := m.build(work, k)
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	if err := os.MkdirAll(filepath.Dir(built), 0o755); err != nil {
		return err
	}
	return runAll(
		exec.Command("strip", "-g", "-o", built, ko),
		exec.Command(sbin("depmod"), "-b", k.root, k.version),
	)
}

// build makes the module in the folder work and returns its path.
func (m moduleBuild) build(work string, k kernel) (string, error) {
	series, err := k.series()
	if err != nil {
		return "", err
	}
	err = unpackPackages(work, "linux-source-"+series, "linux-kbuild-"+series,
		"linux-headers-"+k.version, "linux-headers-"+strings.TrimSuffix(k.version, "-amd64")+"-common")
	if err != nil {
		return "", err
	}
	src := filepath.Join(work, "usr", "src")
	headers := filepath.Join(src, "linux-headers-"+k.version)
	// The package's makefile names the common headers by the path they would be
	// installed at.
	include := "include " + strings.TrimSuffix(headers, "-amd64") + "-common/Makefile\n"
	if err := os.WriteFile(filepath.Join(headers, "Makefile"), []byte(include), 0o644); err != nil {
		return "", err
	}
	folder := filepath.Join(work, "linux-source-"+series, m.source)
	return filepath.Join(folder, m.name+".ko"), runAll(
		exec.Command("tar", "-C", work, "-xf", filepath.Join(src, "linux-source-"+series+".tar.xz"), "linux-source-"+series+"/"+m.source),
		exec.Command("make", "-s", "-C", headers, "M="+folder, m.config, "modules"),
	)
}

// series is the first two numbers of the version: the name of Debian's source
// package ends in it.
func (k kernel) series() (string, error) {
	f := strings.SplitN(k.version, ".", 3)
	if len(f) < 3 {
		return "", fmt.Errorf("kernel version %q has no series", k.version)
	}
	return f[0] + "." + f[1], nil
}

// runAll runs commands in order until one fails.
func runAll(cmds ...*exec.Cmd) error {
	for _, c := range cmds {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, out)
		}
	}
	return nil
}
