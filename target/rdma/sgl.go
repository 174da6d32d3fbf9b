package rdma

import "github.com/nvmf-go/nvmf/nvme"

// dataSGL is what SGL1 of a command describes: nothing, data in the capsule, or
// the host's memory.
type dataSGL struct {
	capsule []byte // data in the capsule, when that is where it is
	keyed   []byte // keyed data block descriptors, nvme.SGLSize bytes each
	list    bool   // keyed lies in the capsule's data, not in the SQE
	total   uint64 // bytes in all
	key     uint32 // to be invalidated with the response
	inv     bool
}

// parseSGL reads SGL1 of cmd. data is what came behind the SQE in the capsule,
// maxDescs the most descriptors a command may have (MSDBD). The status is the
// command's end when it is not success; it is then final (do not retry).
//
//	0/1      data block, offset:   bytes of the capsule
//	4/0 4/F  keyed data block:     memory of the host; F asks to invalidate the key
//	3/1      last segment, offset: a list of keyed data blocks in the capsule
//	0/0      all of it zero:       no data, as is 4/x of length 0
func parseSGL(cmd nvme.Command, data []byte, maxDescs int) (dataSGL, nvme.Status) {
	sgl := cmd.SGL1()
	switch sgl.Type() {
	case nvme.SGLKeyedDataBlock:
		return keyedList(sgl)
	case nvme.SGLDataBlock:
		return capsuleData(sgl, data)
	case nvme.SGLLastSegment:
		return lastSegment(sgl, data, maxDescs)
	}
	return dataSGL{}, nvme.SGLTypeInvalid | nvme.StatusDNR
}

// capsuleData is a data block: in the capsule, or not there at all.
func capsuleData(sgl nvme.SGL, data []byte) (dataSGL, nvme.Status) {
	if !sgl.InCapsule() {
		if sgl.SubType() == nvme.SGLAddress && sgl.Address() == 0 && sgl.Length() == 0 {
			return dataSGL{}, nvme.Success
		}
		return dataSGL{}, nvme.SGLTypeInvalid | nvme.StatusDNR
	}
	part, ok := within(data, sgl.Address(), sgl.Length())
	if !ok {
		return dataSGL{}, nvme.SGLOffsetInvalid | nvme.StatusDNR
	}
	return dataSGL{capsule: part, total: uint64(len(part))}, nvme.Success
}

// lastSegment is a list of keyed descriptors in the capsule.
func lastSegment(sgl nvme.SGL, data []byte, maxDescs int) (dataSGL, nvme.Status) {
	n := sgl.Length()
	switch {
	case sgl.SubType() != nvme.SGLOffset:
		return dataSGL{}, nvme.SGLTypeInvalid | nvme.StatusDNR
	case n == 0 || n%nvme.SGLSize != 0:
		return dataSGL{}, nvme.InvalidSGLSegment | nvme.StatusDNR
	case n/nvme.SGLSize > uint32(maxDescs):
		return dataSGL{}, nvme.InvalidSGLCount | nvme.StatusDNR
	}
	list, ok := within(data, sgl.Address(), n)
	if !ok {
		return dataSGL{}, nvme.SGLOffsetInvalid | nvme.StatusDNR
	}
	s, st := keyedList(list)
	s.list = st.OK()
	return s, st
}

// keyedList checks that every descriptor of list is a keyed data block and adds
// them up. The key to be invalidated is that of the last which asks for it: a
// response can carry but one.
func keyedList(list []byte) (dataSGL, nvme.Status) {
	s := dataSGL{keyed: list}
	for d := range descriptors(list) {
		switch d.Type() {
		case nvme.SGLKeyedDataBlock:
		case nvme.SGLSegment, nvme.SGLLastSegment:
			return dataSGL{}, nvme.InvalidSGLSegment | nvme.StatusDNR
		default:
			return dataSGL{}, nvme.SGLTypeInvalid | nvme.StatusDNR
		}
		if sub := d.SubType(); sub != nvme.SGLAddress && sub != nvme.SGLInvalidate {
			return dataSGL{}, nvme.SGLTypeInvalid | nvme.StatusDNR
		}
		n := d.KeyedLength()
		s.total += uint64(n)
		if n > 0 && d.SubType() == nvme.SGLInvalidate {
			s.key, s.inv = d.Key(), true
		}
	}
	return s, nvme.Success
}

// descriptors iterates over the whole descriptors of list.
func descriptors(list []byte) func(func(nvme.SGL) bool) {
	return func(yield func(nvme.SGL) bool) {
		for ; len(list) >= nvme.SGLSize; list = list[nvme.SGLSize:] {
			if !yield(nvme.SGL(list[:nvme.SGLSize])) {
				return
			}
		}
	}
}

// within is data[off:off+n], if that is within data.
func within(data []byte, off uint64, n uint32) ([]byte, bool) {
	size := uint64(len(data))
	if off > size || uint64(n) > size-off {
		return nil, false
	}
	return data[off : off+uint64(n)], true
}
