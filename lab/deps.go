package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// dep is a program of the machine that the lab or its guest runs.
type dep struct{ program, pkg string }

// deps: the runner's own first, then the guest's, which sees the machine's root.
var deps = []dep{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"busybox", "busybox-static"},
	{"modprobe", "kmod"},
	{"mkfs.ext4", "e2fsprogs"},
	{"mkfs.xfs", "xfsprogs"},
	{"ip", "iproute2"},
	{"rdma", "iproute2"},
	{"nvme", "nvme-cli"},
	{"fio", "fio"},
	{"jq", "jq"},
	{"rping", "rdmacm-utils"},
	{"ibv_devinfo", "ibverbs-utils"},
	{"ib_write_bw", "perftest"},
	{"tshark", "tshark"},
	{"udevadm", "udev"},
	{"cmp", "diffutils"},
	{"nbd-client", "nbd-client"},
	{"blkdiscard", "util-linux"},
	{"dmsetup", "dmsetup"},
	{"ps", "procps"},
}

// extraPackages have no program to look for: the library the daemon loads, and
// rdma-core's provider of it for rxe and siw.
var extraPackages = []string{"librdmacm1", "ibverbs-providers"}

// siwPackages build the iWARP driver, which Debian's kernel leaves out.
var siwPackages = []dep{{"gcc-12", "gcc-12"}, {"make", "make"}, {"xz", "xz-utils"}, {"strip", "binutils"}}

// sbin finds a system program also when /usr/sbin is not in a user's PATH.
func sbin(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path := filepath.Join(dir, name); executable(path) {
			return path
		}
	}
	return name
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

func busybox() string { return sbin("busybox") }

// missing lists the packages of want whose program the machine does not have.
func missing(want []dep) (pkgs []string) {
	for _, d := range want {
		if !executable(sbin(d.program)) {
			pkgs = append(pkgs, d.pkg)
		}
	}
	return pkgs
}

// missingExtra lists the packages of extraPackages that are not installed.
func missingExtra() (pkgs []string) {
	for _, name := range extraPackages {
		out, err := exec.Command("dpkg-query", "-W", "-f", "${Status}", name).Output()
		if err != nil || !strings.Contains(string(out), "install ok installed") {
			pkgs = append(pkgs, name)
		}
	}
	return pkgs
}

// installDeps installs what the machine lacks of the lab's programs, and names
// it when it may not.
func installDeps() error {
	need := append(missing(deps), missing(siwPackages)...)
	need = append(need, missingExtra()...)
	if len(need) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("the lab needs packages and only root can install them: apt-get install --no-install-recommends %s", strings.Join(need, " "))
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("the lab needs a Debian machine: there is no apt-get")
	}
	fmt.Fprintf(os.Stderr, "lab: installing %s\n", strings.Join(need, " "))
	if err := apt("update", "-q"); err != nil {
		return err
	}
	return apt(append([]string{"install", "-q", "-y", "--no-install-recommends"}, need...)...)
}

// apt runs apt-get; its output goes to stderr.
func apt(args ...string) error {
	cmd := exec.Command("apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w", args[0], err)
	}
	return nil
}
