package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// kernel is a Debian kernel unpacked in the cache.
type kernel struct {
	version string // as uname -r has it: 6.1.0-57-amd64
	root    string // the unpacked package
}

func (k kernel) image() string   { return filepath.Join(k.root, "boot", "vmlinuz-"+k.version) }
func (k kernel) modules() string { return filepath.Join(k.root, "lib", "modules", k.version) }

// rootModules is what the initramfs must load to see the machine's root.
var rootModules = []string{"virtio_pci", "9pnet_virtio", "9p", "overlay"}

// prepareKernel returns the kernel that linux-image-amd64 stands for, fetching
// and unpacking the package when the cache does not have it. LAB_KERNEL names
// another version (as uname -r has it). Nothing is installed and no root needed.
func prepareKernel(p paths) (kernel, error) {
	unlock, err := lockFile(filepath.Join(p.cache, "lock"))
	if err != nil {
		return kernel{}, err
	}
	defer unlock()
	if k, ok := cachedKernel(p.cache); ok {
		return k, nil
	}
	version, err := wantedKernel()
	if err != nil {
		return kernel{}, err
	}
	k := kernel{version: version, root: filepath.Join(p.cache, "linux-"+version)}
	fmt.Fprintf(os.Stderr, "lab: fetching linux-image-%s\n", version)
	part := k.root + ".part"
	if err := unpackPackages(part, "linux-image-"+version); err != nil {
		return kernel{}, err
	}
	if out, err := exec.Command(sbin("depmod"), "-b", part, version).CombinedOutput(); err != nil {
		return kernel{}, fmt.Errorf("depmod: %w: %s", err, out)
	}
	if err := os.Rename(part, k.root); err != nil {
		return kernel{}, err
	}
	return k, os.WriteFile(filepath.Join(p.cache, "kernel"), []byte(version), 0o644)
}

// cachedKernel is the kernel of LAB_KERNEL, or the one fetched last.
func cachedKernel(cache string) (kernel, bool) {
	version := os.Getenv("LAB_KERNEL")
	if version == "" {
		b, err := os.ReadFile(filepath.Join(cache, "kernel"))
		if err != nil {
			return kernel{}, false
		}
		version = strings.TrimSpace(string(b))
	}
	k := kernel{version: version, root: filepath.Join(cache, "linux-"+version)}
	_, err := os.Stat(filepath.Join(k.modules(), "modules.dep"))
	return k, err == nil
}

// wantedKernel asks apt which kernel linux-image-amd64 depends on today.
func wantedKernel() (string, error) {
	if v := os.Getenv("LAB_KERNEL"); v != "" {
		return v, nil
	}
	out, err := exec.Command("apt-cache", "depends", "linux-image-amd64").Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache depends linux-image-amd64: %w (is this a Debian machine, and was apt-get update run?)", err)
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return v, nil
		}
	}
	return "", fmt.Errorf("apt knows no linux-image-amd64: run apt-get update")
}

// unpackPackages downloads Debian packages and unpacks them all into dir.
func unpackPackages(dir string, packages ...string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	debs := dir + ".debs"
	if err := os.MkdirAll(debs, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	get := exec.Command("apt-get", append([]string{"download", "-q"}, packages...)...)
	get.Dir = debs
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download %s: %w: %s(run apt-get update; when Debian has a newer kernel by now, remove lab/cache)",
			strings.Join(packages, " "), err, out)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if out, err := exec.Command("dpkg", "-x", f, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("dpkg -x %s: %w: %s", f, err, out)
		}
	}
	return nil
}

// loadOrder is the module files to insmod, in order, to have the named modules.
func (k kernel) loadOrder(modules ...string) ([]string, error) {
	var order []string
	for _, m := range modules {
		out, err := exec.Command(sbin("modprobe"), "-d", k.root, "-S", k.version, "--show-depends", m).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("modprobe --show-depends %s: %w: %s", m, err, out)
		}
		for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
			f := strings.Fields(s.Text())
			if len(f) >= 2 && f[0] == "insmod" && !slices.Contains(order, f[1]) {
				order = append(order, f[1])
			}
		}
	}
	return order, nil
}

// writeInitrd makes the initramfs: busybox, guest/init, and the modules it loads.
func (k kernel) writeInitrd(path string, p paths) error {
	order, err := k.loadOrder(rootModules...)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c := &cpioWriter{w: f}
	for _, d := range []string{"bin", "dev", "modules"} {
		c.dir(d)
	}
	c.char("dev/console", 5, 1)
	c.fileFrom("bin/busybox", busybox())
	c.fileFrom("init", filepath.Join(p.lab, "guest", "init"))
	var names []byte
	for _, m := range order {
		c.fileFrom("modules/"+filepath.Base(m), m)
		names = append(names, filepath.Base(m)+"\n"...)
	}
	c.file("modules/order", names)
	if err := c.close(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return f.Close()
}

// lockFile takes an exclusive lock on path, waiting for its holder.
func lockFile(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
