//go:build !linux || !cgo || nordma

package verbs

import (
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
)

// New fails: this program was built without libibverbs. The error wraps
// fabric.ErrNotSupported.
func New() (fabric.Provider, error) {
	return nil, &fabric.OpError{Op: "load " + ProviderName, Err: fmt.Errorf("%w: %s", fabric.ErrNotSupported, whyNot)}
}

const whyNot = "this program was built without RDMA verbs (they need Linux, cgo and no build tag nordma)"
