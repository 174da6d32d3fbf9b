package nbd

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListenUnix(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	old := unix.Umask(0)
	l, err := ListenUnix(path)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if _, err := ListenUnix(path); !errors.Is(err, ErrInUse) {
		t.Errorf("a socket that is in use: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	// A dead server leaves its socket.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if l, err = ListenUnix(path); err != nil {
		t.Fatalf("a socket that nobody serves: %v", err)
	}
	l.Close()
	for name, make := range map[string]func(string) error{
		"file":   func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) },
		"folder": func(p string) error { return os.Mkdir(p, 0o700) },
		"link":   func(p string) error { return os.Symlink("elsewhere", p) },
		"fifo":   func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		p := filepath.Join(dir, name)
		if err := make(p); err != nil {
			t.Fatal(err)
		}
		if _, err := ListenUnix(p); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, p := range []string{"", "@abstract", "a\x00b", filepath.Join(dir, "absent", "s"), filepath.Join(dir, strings.Repeat("x", 200))} {
		if l, err := ListenUnix(p); err == nil {
			t.Errorf("%q is taken for a path", p)
			l.Close()
		}
	}
}

// Another user's socket is not replaced, even by who could.
func TestForeignSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
}

func TestListenTCP(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "localhost:0", "[::1]:0", "127.9.9.9:0"} {
		l, err := ListenTCP(at, false)
		if err != nil {
			if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
				continue // no IPv6 here
			}
			t.Errorf("%s: %v", at, err)
			continue
		}
		l.Close()
	}
	for _, at := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:0", "8.8.8.8"} {
		if _, err := ListenTCP(at, false); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v", at, err)
		}
	}
	for _, at := range []string{"", ":10809", "somewhere:1", "127.0.0.1:99999", "127.0.0.1:x"} {
		if _, err := ListenTCP(at, true); err == nil || errors.Is(err, ErrNotLoopback) {
			t.Errorf("%q: %v", at, err)
		}
	}
	l, err := ListenTCP("0.0.0.0:0", true)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for s, want := range map[string]string{"127.0.0.1": "127.0.0.1:10809", "::1": "[::1]:10809", "[::1]": "[::1]:10809", "127.0.0.1:7": "127.0.0.1:7"} {
		if got, err := parseListen(s); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
}
