package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

// hostNQNFile has the name that this host goes by in all NVMe tools.
const hostNQNFile = "/etc/nvme/hostnqn"

// identify fills in who this host is, when the user does not say. Packages are
// known to install a hostnqn and a hostid that were made apart; then the name
// counts, and the ID that it stands for.
func (w *world) identify(cfg *initiator.Config, verbose bool) error {
	if cfg.HostNQN != "" || !cfg.HostID.IsZero() {
		return nil
	}
	nqn, id, err := initiator.HostIdentity()
	if errors.Is(err, initiator.ErrIdentity) {
		if n, i, ok := identityOf(hostNQNFile); ok {
			nqn, id, err = n, i, nil
			if verbose {
				fmt.Fprintf(w.stderr, "nvmf: /etc/nvme/hostid is not the ID in %s, which is used: %v\n", hostNQNFile, id)
			}
		}
	}
	cfg.HostNQN, cfg.HostID = nqn, id
	return err
}

// identityOf reads a name of the UUID form.
func identityOf(path string) (nvme.NQN, nvme.HostID, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", nvme.HostID{}, false
	}
	line, _, _ := strings.Cut(string(b), "\n")
	nqn, err := nvme.ParseNQN(strings.TrimSpace(line))
	if err != nil {
		return "", nvme.HostID{}, false
	}
	uuid, ok := nqn.UUID()
	return nqn, nvme.HostID(uuid), ok
}
