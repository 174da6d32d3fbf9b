package cache

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/file"
	"github.com/nvmf-go/nvmf/nvme"
)

// overFile is a cache over a file of 64 blocks, whose log is in out.
func overFile(t *testing.T, out *bytes.Buffer) (*Device, *rig) {
	t.Helper()
	dev, err := file.Open(file.Options{Path: filepath.Join(t.TempDir(), "img"), Size: 64 * 4096, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(out)
	d := opened(t, dev, 64, Options{Log: log})
	return d, newRig(t, d, 4)
}

// scribble writes to the file as another program, at a later time.
func scribble(t *testing.T, path string, at int64, with byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{with}, 4096), at); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Second) // the clock of a file system may be coarse
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
}

func refresh(t *testing.T, d *Device) {
	t.Helper()
	if _, err := d.Refresh(); err != nil {
		t.Fatal(err)
	}
}

func TestForeignWriter(t *testing.T) {
	var out bytes.Buffer
	d, r := overFile(t, &out)
	r.write(0, 4096, 1)
	r.cached(t, d, 0, 4096)
	refresh(t, d) // that was ours
	if n := d.Stats().Foreign; n != 0 || out.Len() > 0 {
		t.Fatalf("our own write was taken for another's: %s", &out)
	}
	if _, ok := r.lend(0, 4096); !ok {
		t.Fatal("our own write made everything stale")
	}
	scribble(t, d.Info().Path, 0, 2)
	refresh(t, d)
	if n := d.Stats().Foreign; n != 1 || !strings.Contains(out.String(), "another program") {
		t.Errorf("another's write was noticed %d times: %s", n, &out)
	}
	if _, ok := r.lend(0, 4096); ok {
		t.Error("the old page is lent")
	}
	if st := r.read(0, 4096); st != nvme.Success || !is(r.memory[:4096], 2) {
		t.Errorf("%v, %x", st, r.memory[0])
	}
	refresh(t, d)
	if n := d.Stats().Foreign; n != 1 {
		t.Errorf("one write was noticed %d times", n)
	}
}

// When we write as well, nobody can tell; the next time it is noticed.
func TestForeignWriterBesideOurs(t *testing.T) {
	var out bytes.Buffer
	d, r := overFile(t, &out)
	refresh(t, d)
	r.write(0, 4096, 1)
	scribble(t, d.Info().Path, 4096, 2)
	refresh(t, d)
	if n := d.Stats().Foreign; n != 0 {
		t.Errorf("%d, but it may have been ours", n)
	}
	scribble(t, d.Info().Path, 8192, 2)
	if err := os.Chtimes(d.Info().Path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	refresh(t, d)
	if n := d.Stats().Foreign; n != 1 {
		t.Errorf("%d", n)
	}
}

// Nor while a write of ours is in flight.
func TestForeignWhileWriting(t *testing.T) {
	var out bytes.Buffer
	d, _ := overFile(t, &out)
	refresh(t, d)
	d.changes.begin()
	scribble(t, d.Info().Path, 0, 2)
	refresh(t, d)
	d.changes.end()
	refresh(t, d)
	refresh(t, d)
	if n := d.Stats().Foreign; n != 0 {
		t.Errorf("%d", n)
	}
}

// Another size is a resize and no alarm; another file of the name is none of
// ours.
func TestForeignResizeAndRename(t *testing.T) {
	var out bytes.Buffer
	d, r := overFile(t, &out)
	r.cached(t, d, 0, 4096)
	path := d.Info().Path
	if err := os.Truncate(path, 128*4096); err != nil {
		t.Fatal(err)
	}
	refresh(t, d)
	if s := d.Stats(); s.Foreign != 0 || s.Resizes != 1 {
		t.Errorf("%d foreign, %d resizes", s.Foreign, s.Resizes)
	}
	if _, ok := r.lend(0, 4096); ok {
		t.Error("lent after a resize")
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := os.WriteFile(path, make([]byte, 128*4096), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = d.Refresh() // it says ErrReplaced
	}
	if s := d.Stats(); out.Len() > 0 || s.Foreign != 0 {
		t.Errorf("another file of the name: %d foreign: %s", s.Foreign, &out)
	}
}

var _ backend.Lending = (*Device)(nil)
