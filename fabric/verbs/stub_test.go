//go:build !linux || !cgo || nordma

package verbs

import (
	"errors"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

func TestStubSaysWhy(t *testing.T) {
	p, err := New()
	if p != nil || !errors.Is(err, fabric.ErrNotSupported) || !strings.Contains(err.Error(), "cgo") {
		t.Errorf("%v, %v", p, err)
	}
}
