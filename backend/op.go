package backend

import "github.com/nvmf-go/nvmf/nvme"

// Check is what a device of size bytes says of an operation before it starts:
// 0, LBAOutOfRange (the size may have changed since the submitter looked),
// NamespaceWriteProtected, or InvalidField for an unknown kind.
func (o *Op) Check(size uint64, readOnly bool) nvme.Status {
	switch {
	case o.Kind >= NumKinds:
		return nvme.InvalidField
	case o.Kind == Flush:
		return nvme.Success
	case readOnly && o.Kind != Read:
		return nvme.NamespaceWriteProtected
	case o.Offset > size || o.Length > size-o.Offset:
		return nvme.LBAOutOfRange
	}
	return nvme.Success
}
