package initiator

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nvmf-go/nvmf/nvme"
)

// systemDir has the host's identity as all NVMe tools know it.
const systemDir = "/etc/nvme"

const (
	nqnFile = "hostnqn"
	idFile  = "hostid"
)

// HostIdentity is who this host is: /etc/nvme/hostnqn and hostid when they are
// there, else the same files in the user's configuration folder (nvmf below
// $XDG_CONFIG_HOME or ~/.config), which are made at the first call.
//
// Targets take a host for one host by the pair: a name with two IDs, or an ID
// with two names, is refused by some and breaks reservations on others. So what
// is in /etc/nvme is taken as it is, for the kernel and nvme-cli use the same
// pair, even when the ID is not the UUID in the name (Debian makes them apart).
// When one half is missing it follows from the other, never from elsewhere. The
// user's own files are one pair: that they contradict each other is an error.
func HostIdentity() (nvme.NQN, nvme.HostID, error) { return hostIdentity(systemDir) }

// hostIdentity is HostIdentity with the system's files elsewhere.
func hostIdentity(system string) (nvme.NQN, nvme.HostID, error) {
	nqn, id, err := readIdentity(system)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return nqn, id, err
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", nvme.HostID{}, fmt.Errorf("host identity: no files in %s, and %w", system, err)
	}
	nqn, id, err = userIdentity(filepath.Join(dir, "nvmf"))
	if err == nil && !matching(nqn, id) {
		err = fmt.Errorf("host identity: %s: %w: the UUID in %s is not the ID %v", filepath.Join(dir, "nvmf"), ErrIdentity, nqn, id)
	}
	return nqn, id, err
}

// userIdentity reads the identity in dir, or makes it.
func userIdentity(dir string) (nvme.NQN, nvme.HostID, error) {
	nqn, id, err := readIdentity(dir)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return nqn, id, err
	}
	if err := makeIdentity(dir); err != nil {
		return "", nvme.HostID{}, fmt.Errorf("host identity: %w", err)
	}
	return readIdentity(dir)
}

// readIdentity reads the pair in dir; either file may be missing when it
// follows from the other. The error matches fs.ErrNotExist when both are.
func readIdentity(dir string) (nqn nvme.NQN, id nvme.HostID, err error) {
	fail := func(name string, err error) (nvme.NQN, nvme.HostID, error) {
		return "", nvme.HostID{}, fmt.Errorf("host identity: %s: %w", filepath.Join(dir, name), err)
	}
	nqnText, err := firstLine(filepath.Join(dir, nqnFile))
	if err != nil {
		return fail(nqnFile, err)
	}
	idText, err := firstLine(filepath.Join(dir, idFile))
	if err != nil {
		return fail(idFile, err)
	}
	if nqnText == "" && idText == "" {
		return fail(nqnFile, fs.ErrNotExist)
	}
	if nqnText != "" {
		if nqn, err = nvme.ParseNQN(nqnText); err != nil {
			return fail(nqnFile, err)
		}
	}
	if idText != "" {
		if id, err = nvme.ParseHostID(idText); err != nil {
			return fail(idFile, err)
		}
	}
	if nqn, id, err = completeIdentity(nqn, id); err != nil {
		return fail("", err)
	}
	return nqn, id, nil
}

// firstLine is the first line of a file, empty when there is no such file.
func firstLine(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line), err
}

// ErrIdentity is matched by the error of a host NQN and a host ID that do not
// go together.
var ErrIdentity = errors.New("host NQN and host ID do not go together")

// completeIdentity fills in the half that is missing.
func completeIdentity(nqn nvme.NQN, id nvme.HostID) (nvme.NQN, nvme.HostID, error) {
	if nqn == "" {
		return nvme.UUIDNQN(nvme.UUID(id)), id, nil
	}
	if err := nqn.Check(); err != nil {
		return "", id, fmt.Errorf("host NQN %.64q: %w", string(nqn), err)
	}
	if !id.IsZero() {
		return nqn, id, nil
	}
	uuid, ok := nqn.UUID()
	if !ok {
		return "", id, fmt.Errorf("%w: %s has no UUID and needs a host ID beside it", ErrIdentity, nqn)
	}
	return nqn, nvme.HostID(uuid), nil
}

// matching says whether the ID is the UUID in the name, if there is one.
func matching(nqn nvme.NQN, id nvme.HostID) bool {
	uuid, ok := nqn.UUID()
	return !ok || nvme.HostID(uuid) == id
}

// makeIdentity makes a new identity in dir, unless another process is faster.
func makeIdentity(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	id := randomUUID()
	err := writeOnce(dir, nqnFile, string(nvme.UUIDNQN(id)))
	if errors.Is(err, fs.ErrExist) {
		return nil // its ID follows from it
	}
	if err != nil {
		return err
	}
	if err := writeOnce(dir, idFile, id.String()); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// writeOnce makes a file that is complete from its first moment, or fails with
// fs.ErrExist.
func writeOnce(dir, name, text string) error {
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(text + "\n")
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), filepath.Join(dir, name))
}

// randomUUID is a version 4 UUID (RFC 4122, section 4.4).
func randomUUID() (u nvme.UUID) {
	_, _ = rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0F | 0x40
	u[8] = u[8]&0x3F | 0x80
	return u
}
