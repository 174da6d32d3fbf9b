// Package nvme holds the wire formats of NVMe and NVMe over Fabrics: typed
// views over bytes and codecs against exact lengths. It does no I/O and knows
// no clock, log or configuration.
//
// What is small or on the data path is a view: a named []byte with a method for
// each field ([Command], [SGL], [Completion], [ConnectData], [NSList],
// [EffectsLog]). A view has a length that its doc comment names; who receives
// the bytes checks it once, before any method. A Command has further views by
// what kind it is ([Command.Connect], [Command.Identify]).
//
// What has many fields is a struct ([IdentifyController], [SMARTLog],
// [DiscoveryEntry]). Unmarshal fails with a [LengthError] for bytes of a wrong
// length and for nothing else, keeps values it does not know, and allocates
// nothing. MarshalTo fills memory of exactly the right length, reserved bytes
// being zero; a wrong length there is a mistake of the program, and panics.
//
// Lists from a peer ([ParseANALog], [NSDescriptors], [NSList]) are bounded by the
// bytes that are there, never by a count that the peer wrote.
//
// All multi-byte fields are little-endian. Section numbers are those of the
// NVM Express Base Specification 2.0 ("Base"), the NVM Command Set
// Specification 1.0 ("NVM"), NVMe over Fabrics 1.1 ("NVMe-oF") and the RDMA
// Transport Specification 1.0 ("RDMA").
package nvme
