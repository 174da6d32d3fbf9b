package rdma

import (
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
)

func request(r nvme.CMRequest, size int) []byte {
	b := make([]byte, max(size, nvme.CMRequestSize))
	r.MarshalTo(b[:nvme.CMRequestSize])
	return b[:size]
}

func TestOfferCheck(t *testing.T) {
	cfg := DefaultConfig()
	admin := nvme.CMRequest{HRQSize: 32, HSQSize: 31}
	io := nvme.CMRequest{QID: 1, HRQSize: 128, HSQSize: 127}
	with := func(r nvme.CMRequest, f func(*nvme.CMRequest)) []byte {
		f(&r)
		return request(r, nvme.CMRequestSize)
	}
	exact := func(o offer) offer { o.padded = false; return o }
	fine := func(private []byte) offer { return offer{private: private, padded: true, peerIRD: 16, maxORD: 16} }
	for _, c := range []struct {
		name string
		o    offer
		want nvme.CMStatus
	}{
		{"admin", fine(request(admin, 32)), 0},
		{"I/O", fine(request(io, 32)), 0},
		{"padded as InfiniBand does", fine(request(admin, 56)), 0},
		{"padded on iWARP", exact(fine(request(admin, 56))), nvme.CMInvalidLength},
		{"exact on iWARP", exact(fine(request(admin, 32))), 0},
		{"none", fine(nil), nvme.CMInvalidLength},
		{"16 bytes", fine(request(admin, 16)), nvme.CMInvalidLength},
		{"31 bytes", exact(fine(request(admin, 31))), nvme.CMInvalidLength},
		{"none, padded", fine(make([]byte, 56)), nvme.CMInvalidHSQSize},

		{"record format 1", fine(with(admin, func(r *nvme.CMRequest) { r.RecFmt = 1 })), nvme.CMInvalidRecFmt},
		{"the last queue", fine(with(io, func(r *nvme.CMRequest) { r.QID = 64 })), 0},
		{"one queue too many", fine(with(io, func(r *nvme.CMRequest) { r.QID = 65 })), nvme.CMInvalidQID},
		{"queue FFFFh", fine(with(io, func(r *nvme.CMRequest) { r.QID = 0xFFFF })), nvme.CMInvalidQID},

		{"admin depth 33", fine(with(admin, func(r *nvme.CMRequest) { r.HSQSize = 32 })), nvme.CMInvalidHSQSize},
		{"admin depth 4097", fine(with(admin, func(r *nvme.CMRequest) { r.HSQSize = 4096 })), nvme.CMInvalidHSQSize},
		{"I/O depth 129", fine(with(io, func(r *nvme.CMRequest) { r.HSQSize = 128 })), nvme.CMInvalidHSQSize},
		{"I/O depth 65536", fine(with(io, func(r *nvme.CMRequest) { r.HSQSize = 65535 })), nvme.CMInvalidHSQSize},
		{"I/O depth 1", fine(with(io, func(r *nvme.CMRequest) { r.HSQSize = 0 })), nvme.CMInvalidHSQSize},
		{"deeper than the device", offer{private: request(io, 32), padded: true, peerIRD: 16, maxORD: 16, maxQP: 128}, nvme.CMInvalidHSQSize},
		{"as deep as the device", offer{private: request(io, 32), padded: true, peerIRD: 16, maxORD: 16, maxQP: 129}, 0},
		{"no host receives", fine(with(io, func(r *nvme.CMRequest) { r.HRQSize = 0 })), nvme.CMInvalidHRQSize},
		{"fewer host receives", fine(with(io, func(r *nvme.CMRequest) { r.HRQSize = 1 })), 0},
		{"many host receives", fine(with(io, func(r *nvme.CMRequest) { r.HRQSize = 65535 })), 0},

		{"the host answers no READs", offer{private: request(io, 32), padded: true, maxORD: 16}, nvme.CMInvalidIRD},
		{"the host answers one READ", offer{private: request(io, 32), padded: true, maxORD: 16, peerIRD: 1}, 0},
		{"our device reads not", offer{private: request(io, 32), padded: true, peerIRD: 16}, nvme.CMInvalidORD},

		{"controller 7", fine(with(io, func(r *nvme.CMRequest) { r.CNTLID = 7 })), 0},
		{"no controller 8", fine(with(io, func(r *nvme.CMRequest) { r.CNTLID = 8 })), nvme.CMInvalidCNTLID},
		{"admin names a controller", fine(with(admin, func(r *nvme.CMRequest) { r.CNTLID = 8 })), 0},
	} {
		if _, st := c.o.check(&cfg, func(id uint16) bool { return id == 7 }); st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		}
	}
}

func FuzzOfferCheck(f *testing.F) {
	f.Add(request(nvme.CMRequest{HRQSize: 32, HSQSize: 31}, 56), true, 16)
	f.Add([]byte{1, 2, 3}, false, 1)
	f.Fuzz(func(t *testing.T, private []byte, padded bool, ird int) {
		cfg := DefaultConfig()
		o := offer{private: private, padded: padded, peerIRD: ird, maxORD: 16}
		r, st := o.check(&cfg, func(uint16) bool { return false })
		if st == 0 && (len(private) < nvme.CMRequestSize || int(r.HSQSize)+1 > cfg.MaxQueueDepth || r.HRQSize == 0 || ird == 0) {
			t.Fatalf("accepted %x", private)
		}
	})
}
