//go:build !linux || !cgo || nordma

package verbs

import "github.com/nvmf-go/nvmf/fabric"

// New fails: this program was built without libibverbs. The error matches
// fabric.ErrNotSupported.
func New() (fabric.Provider, error) {
	return nil, &fabric.OpError{Op: "load " + ProviderName, Err: whyNot}
}

const whyNot unavailable = "this program was built without RDMA verbs, which need Linux, cgo and no build tag nordma"
