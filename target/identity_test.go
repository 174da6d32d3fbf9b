package target

import (
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
)

// The derived identities are a promise to hosts: what they are may not change
// from one release to the next.
func TestIdentityIsStable(t *testing.T) {
	id := deriveIdentity(nqnA, &NamespaceConfig{NSID: 1, Name: "disk0"}, "file:/var/lib/disk0.img")
	for _, c := range []struct{ name, got, want string }{
		{"UUID", id.uuid.String(), "7b840bc6-9835-82df-99a0-23b40652f1ae"},
		{"NGUID", id.nguid.String(), "4022ed96a66980deee0094ce28586996"},
		{"EUI64", id.eui64.String(), "7aa1773361c1b69f"},
		{"serial", deriveSerial(nqnA), "2b3bf0377eec11948d1f"},
	} {
		if c.got != c.want {
			t.Errorf("%s %s, want %s", c.name, c.got, c.want)
		}
	}
}

func TestIdentityForms(t *testing.T) {
	id := deriveIdentity(nqnA, &NamespaceConfig{NSID: 1}, "x")
	if id.uuid[6]>>4 != 8 || id.uuid[8]>>6 != 2 {
		t.Errorf("UUID %v is not of version 8", id.uuid)
	}
	if id.nguid[8]&3 != 2 || id.eui64[0]&3 != 2 {
		t.Errorf("NGUID %v, EUI64 %v: the OUI is not a local one", id.nguid, id.eui64)
	}
}

func TestIdentityDiffers(t *testing.T) {
	base := deriveIdentity(nqnA, &NamespaceConfig{NSID: 1, Name: "disk"}, "file:/a")
	same := deriveIdentity(nqnA, &NamespaceConfig{NSID: 1, Name: "renamed"}, "file:/a")
	if base != same {
		t.Error("the name counts although the medium has an identity")
	}
	for name, other := range map[string]identity{
		"subsystem": deriveIdentity(nqnB, &NamespaceConfig{NSID: 1, Name: "disk"}, "file:/a"),
		"nsid":      deriveIdentity(nqnA, &NamespaceConfig{NSID: 2, Name: "disk"}, "file:/a"),
		"medium":    deriveIdentity(nqnA, &NamespaceConfig{NSID: 1, Name: "disk"}, "file:/b"),
		"no medium": deriveIdentity(nqnA, &NamespaceConfig{NSID: 1, Name: "disk"}, ""),
		"shifted":   deriveIdentity(nqnA+"1", &NamespaceConfig{NSID: 1, Name: "disk"}, "file:/a"),
	} {
		if other.uuid == base.uuid || other.nguid == base.nguid || other.eui64 == base.eui64 {
			t.Errorf("another %s, the same identity", name)
		}
	}
	a := deriveIdentity(nqnA, &NamespaceConfig{NSID: 1, Name: "m0"}, "")
	b := deriveIdentity(nqnA, &NamespaceConfig{NSID: 1, Name: "m1"}, "")
	if a.uuid == b.uuid {
		t.Error("two media in memory have one identity")
	}
}

func TestIdentityConfigured(t *testing.T) {
	cfg := NamespaceConfig{NSID: 1, UUID: nvme.UUID{1}, NGUID: nvme.NGUID{2}, EUI64: nvme.EUI64{3}}
	if id := deriveIdentity(nqnA, &cfg, "x"); id.uuid != cfg.UUID || id.nguid != cfg.NGUID || id.eui64 != cfg.EUI64 {
		t.Errorf("%+v", id)
	}
}

// Two daemons with one configuration are the same subsystem to a host, with
// controllers that it can tell apart.
func TestTwoDaemonsOneSubsystem(t *testing.T) {
	var pages [2][]byte
	var ids [2]uint16
	for i, cfg := range []Config{{CntlidMin: 1, CntlidMax: 100}, {CntlidMin: 101, CntlidMax: 200}} {
		r := newRig(t, cfg)
		port := r.addPort(1, "front", "192.0.2.1:4420")
		s := r.addSubsystem(SubsystemConfig{NQN: nqnA, Hosts: AnyHost()})
		d := newFakeDevice(512, 64)
		r.devices["d"] = d
		r.addNamespace(s, 1, d)
		admin, _ := r.session(port, 0)
		sqe := make(nvme.Command, nvme.SQESize)
		sqe.Identify().Init(nvme.CNSDescriptors, 1, 0, 0)
		pages[i] = r.ok(admin, sqe, nil, nvme.IdentifySize).in
		sqe.Identify().Init(nvme.CNSController, 0, 0, 0)
		ctrl := r.ok(admin, sqe, nil, nvme.IdentifySize).in
		pages[i] = append(pages[i], ctrl[4:72]...)     // SN, MN, FR
		pages[i] = append(pages[i], ctrl[768:1024]...) // SUBNQN
		ids[i] = admin.q.Controller().ID()
	}
	if string(pages[0]) != string(pages[1]) {
		t.Error("the daemons' identities differ")
	}
	if ids[0] == ids[1] {
		t.Errorf("both controllers are %d", ids[0])
	}
}
