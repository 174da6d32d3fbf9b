// Package nvme holds the wire formats of NVMe and NVMe over Fabrics: typed
// views over bytes and codecs against exact lengths. It does no I/O and knows
// no clock, log or configuration.
//
// All multi-byte fields are little-endian. Section numbers are those of the
// NVM Express Base Specification 2.0 ("Base"), the NVM Command Set
// Specification 1.0 ("NVM"), NVMe over Fabrics 1.1 ("NVMe-oF") and the RDMA
// Transport Specification 1.0 ("RDMA").
package nvme
