package target

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"

	"github.com/nvmf-go/nvmf/nvme"
)

// Identities that nobody configured are derived by hashing what distinguishes
// them. So they are the same after a restart and in every daemon with this
// configuration, differ between subsystems that share a medium, and change
// when an NSID is given another medium: a host must never take new data for
// that of a namespace it knows.

// identity is how hosts recognise a namespace (CNS 03h).
type identity struct {
	uuid  nvme.UUID
	nguid nvme.NGUID
	eui64 nvme.EUI64
}

// digest hashes parts so that no two lists of parts collide by moving bytes
// from one part to the next.
func digest(parts ...string) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	h.Sum(sum[:0])
	return sum
}

// deriveSerial is 20 hexadecimal digits.
func deriveSerial(nqn nvme.NQN) string {
	sum := digest("serial", string(nqn))
	return hex.EncodeToString(sum[:serialLen/2])
}

// deriveIdentity fills in what cfg leaves open. medium is Info.Identity.
func deriveIdentity(nqn nvme.NQN, cfg *NamespaceConfig, medium string) identity {
	if medium == "" {
		medium = "name:" + cfg.Name
	}
	of := func(what string) [sha256.Size]byte {
		return digest(what, string(nqn), strconv.FormatUint(uint64(cfg.NSID), 10), medium)
	}
	id := identity{uuid: cfg.UUID, nguid: cfg.NGUID, eui64: cfg.EUI64}
	if id.uuid.IsZero() {
		id.uuid = deriveUUID(of("uuid"))
	}
	if id.nguid.IsZero() {
		id.nguid = deriveNGUID(of("nguid"))
	}
	if id.eui64.IsZero() {
		id.eui64 = deriveEUI64(of("eui64"))
	}
	return id
}

// deriveUUID is of version 8, custom (RFC 9562 section 5.8).
func deriveUUID(sum [sha256.Size]byte) (u nvme.UUID) {
	copy(u[:], sum[:])
	u[6] = u[6]&0x0F | 0x80
	u[8] = u[8]&0x3F | 0x80
	return u
}

// deriveNGUID has in bytes 8 to 10, where the OUI is, one that is locally
// administered and not of a group (IEEE 802 8.4).
func deriveNGUID(sum [sha256.Size]byte) (n nvme.NGUID) {
	copy(n[:], sum[:])
	n[8] = local(n[8])
	return n
}

// deriveEUI64 has an OUI that is locally administered.
func deriveEUI64(sum [sha256.Size]byte) (e nvme.EUI64) {
	copy(e[:], sum[:])
	e[0] = local(e[0])
	return e
}

func local(b byte) byte { return b&^1 | 2 }

// identities is a set of identifiers with the place that uses each, to refuse
// duplicates by naming both. Target.mu guards it.
type identities map[string]string

// claim enters keys for place, all or none.
func (s identities) claim(place string, keys ...string) error {
	for _, k := range keys {
		if other, taken := s[k]; taken {
			return refuse("%s: %s is already that of %s", place, k, other)
		}
	}
	for _, k := range keys {
		s[k] = place
	}
	return nil
}

func (s identities) release(keys ...string) {
	for _, k := range keys {
		delete(s, k)
	}
}

// keys are the entries of a namespace's identity.
func (id identity) keys() []string {
	return []string{"UUID " + id.uuid.String(), "NGUID " + id.nguid.String(), "EUI64 " + id.eui64.String()}
}

func serialKey(serial string) string { return "serial number " + serial }
