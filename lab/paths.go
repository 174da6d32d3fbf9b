package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// paths are the folders the lab works in, all absolute. The guest sees the
// machine's root at the same paths.
type paths struct {
	repo  string // the checkout
	lab   string // repo/lab
	cache string // kernel, modules, siw: kept between runs, made again when absent
	out   string // one folder per run
}

// findPaths looks for the checkout upward from LAB_DIR (lab/run sets it) or the
// working directory.
func findPaths() (paths, error) {
	dir := os.Getenv("LAB_DIR")
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return paths{}, err
		}
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "lab", "guest", "init")); err == nil {
			lab := filepath.Join(d, "lab")
			return paths{repo: d, lab: lab, cache: filepath.Join(lab, "cache"), out: filepath.Join(lab, "out")}, nil
		}
		if d == filepath.Dir(d) {
			return paths{}, fmt.Errorf("no lab/guest/init in %s or above it: run the lab inside the checkout", dir)
		}
	}
}
