package rdma

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
)

func desc(addr uint64, n uint32, tail ...byte) []byte {
	d := make([]byte, nvme.SGLSize)
	binary.LittleEndian.PutUint64(d, addr)
	binary.LittleEndian.PutUint32(d[8:], n)
	copy(d[nvme.SGLSize-len(tail):], tail)
	return d
}

func keyed(addr uint64, n, key uint32, sub uint8) []byte {
	d := make([]byte, nvme.SGLSize)
	nvme.SGL(d).SetKeyed(addr, n, key, sub)
	return d
}

func list(ds ...[]byte) []byte { return bytes.Join(ds, nil) }

func repeat(n int, d []byte) []byte { return bytes.Repeat(d, n) }

func TestParseSGL(t *testing.T) {
	const (
		dnr   = nvme.StatusDNR
		huge  = ^uint64(0)
		inCap = 0x01
		last  = 0x31
	)
	k := keyed(0x1000, 512, 7, nvme.SGLAddress)
	inv := keyed(0x1000, 512, 9, nvme.SGLInvalidate)
	data := make([]byte, 4096)
	for _, c := range []struct {
		name string
		sgl  []byte
		data []byte
		st   nvme.Status
		want dataSGL // lengths are compared, not contents
	}{
		{"no data, all zero", desc(0, 0, 0), nil, 0, dataSGL{}},
		{"no data, keyed zero", keyed(0, 0, 0, 0), nil, 0, dataSGL{keyed: k}},
		{"no data, keyed invalidate of length 0", keyed(0, 0, 5, 0xF), nil, 0, dataSGL{keyed: k}},
		{"keyed", k, nil, 0, dataSGL{keyed: k, total: 512}},
		{"keyed, greatest length", keyed(huge, 0xFFFFFF, 1, 0), nil, 0, dataSGL{keyed: k, total: 0xFFFFFF}},
		{"keyed, invalidate", inv, nil, 0, dataSGL{keyed: k, total: 512, key: 9, inv: true}},
		{"keyed, sub type 1", keyed(0, 512, 7, 1), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"keyed, sub type 0xE", keyed(0, 512, 7, 0xE), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},

		{"in capsule", desc(0, 4096, inCap), data, 0, dataSGL{capsule: data, total: 4096}},
		{"in capsule, the end", desc(4095, 1, inCap), data, 0, dataSGL{capsule: data[:1], total: 1}},
		{"in capsule, nothing at the end", desc(4096, 0, inCap), data, 0, dataSGL{}},
		{"in capsule, one too long", desc(0, 4097, inCap), data, nvme.SGLOffsetInvalid | dnr, dataSGL{}},
		{"in capsule, beyond the end", desc(4097, 0, inCap), data, nvme.SGLOffsetInvalid | dnr, dataSGL{}},
		{"in capsule, offset wraps", desc(huge-511, 512, inCap), data, nvme.SGLOffsetInvalid | dnr, dataSGL{}},
		{"in capsule, offset wraps by one", desc(huge, 1, inCap), data, nvme.SGLOffsetInvalid | dnr, dataSGL{}},
		{"in capsule, none came", desc(0, 512, inCap), nil, nvme.SGLOffsetInvalid | dnr, dataSGL{}},

		{"data block by address", desc(0x1000, 512, 0), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"data block by address 0", desc(0, 512, 0), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"data block, length 0 with an address", desc(1, 0, 0), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"data block, sub type 2", desc(0, 0, 2), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"bit bucket", desc(0, 512, 0x10), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"segment", desc(0, 32, 0x21), list(k, k), nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"transport data block", desc(0, 512, 0x5A), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"reserved type", desc(0, 512, 0x60), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"vendor specific type", desc(0, 512, 0xF0), nil, nvme.SGLTypeInvalid | dnr, dataSGL{}},

		{"list of two", desc(0, 32, last), list(k, inv), 0, dataSGL{keyed: list(k, k), total: 1024, key: 9, inv: true}},
		{"list of one", desc(0, 16, last), k, 0, dataSGL{keyed: k, total: 512}},
		{"list at an offset", desc(16, 16, last), list(inv, k), 0, dataSGL{keyed: k, total: 512}},
		{"list of the most", desc(0, 256, last), repeat(16, k), 0, dataSGL{keyed: repeat(16, k), total: 16 * 512}},
		{
			"list, sum beyond 32 bits of nothing", desc(0, 256, last), repeat(16, keyed(0, 0xFFFFFF, 1, 0)), 0,
			dataSGL{keyed: repeat(16, k), total: 16 * 0xFFFFFF},
		},
		{"list of one too many", desc(0, 272, last), repeat(17, k), nvme.InvalidSGLCount | dnr, dataSGL{}},
		{"list, length of 4 GiB", desc(0, 0xFFFFFFF0, last), k, nvme.InvalidSGLCount | dnr, dataSGL{}},
		{"list, empty", desc(0, 0, last), k, nvme.InvalidSGLSegment | dnr, dataSGL{}},
		{"list, part of a descriptor", desc(0, 24, last), list(k, k), nvme.InvalidSGLSegment | dnr, dataSGL{}},
		{"list beyond the capsule", desc(16, 32, last), list(k, k), nvme.SGLOffsetInvalid | dnr, dataSGL{}},
		{"list, offset wraps", desc(huge-15, 16, last), k, nvme.SGLOffsetInvalid | dnr, dataSGL{}},
		{"list by address", desc(0, 16, 0x30), k, nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"list with a segment", desc(0, 32, last), list(k, desc(0, 16, last)), nvme.InvalidSGLSegment | dnr, dataSGL{}},
		{"list with data in the capsule", desc(0, 32, last), list(k, desc(0, 16, inCap)), nvme.SGLTypeInvalid | dnr, dataSGL{}},
		{"list with an unknown sub type", desc(0, 32, last), list(k, keyed(0, 1, 1, 3)), nvme.SGLTypeInvalid | dnr, dataSGL{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := make(nvme.Command, nvme.SQESize)
			copy(cmd.SGL1(), c.sgl)
			got, st := parseSGL(cmd, c.data, 16)
			if st != c.st {
				t.Fatalf("status %v, want %v", st, c.st)
			}
			if len(got.capsule) != len(c.want.capsule) || len(got.keyed) != len(c.want.keyed) ||
				got.list != (sglType(c.sgl) == nvme.SGLLastSegment && st.OK()) ||
				got.total != c.want.total || got.key != c.want.key || got.inv != c.want.inv {
				t.Errorf("%d in capsule, %d of keyed, total %d, key %d %v", len(got.capsule), len(got.keyed), got.total, got.key, got.inv)
			}
		})
	}
}

func sglType(sgl []byte) nvme.SGLType { return nvme.SGL(sgl).Type() }

// Whatever the bytes, what is found lies within the capsule.
func FuzzParseSGL(f *testing.F) {
	k := keyed(0x1000, 512, 7, nvme.SGLInvalidate)
	f.Add(k, []byte(nil))
	f.Add(desc(0, 4, 0x01), []byte("data"))
	f.Add(desc(16, 32, 0x31), list(k, k, k))
	f.Fuzz(func(t *testing.T, sgl, data []byte) {
		cmd := make(nvme.Command, nvme.SQESize)
		copy(cmd.SGL1(), sgl)
		s, st := parseSGL(cmd, data, 16)
		if !st.OK() {
			if s.total != 0 || !st.DNR() {
				t.Fatalf("%v with %d bytes", st, s.total)
			}
			return
		}
		if len(s.capsule) > len(data) || len(s.keyed) > 16*nvme.SGLSize || len(s.keyed)%nvme.SGLSize != 0 {
			t.Fatalf("%d bytes in capsule, %d of descriptors", len(s.capsule), len(s.keyed))
		}
		sum := uint64(len(s.capsule))
		for d := range descriptors(s.keyed) {
			sum += uint64(d.KeyedLength())
		}
		if sum != s.total {
			t.Fatalf("total %d, descriptors say %d", s.total, sum)
		}
	})
}
