// Package raw is a host that breaks the rules, for the lab's guest: tests (build
// tag lab) that talk to a running daemon through the kernel's RDMA device, byte
// for byte as they like. The scenario raw.sh starts the daemon, puts a well
// behaved host beside them, and checks that neither notices.
//
// NVMF_RAW_TARGET is the daemon's address and port, NVMF_RAW_NQN a subsystem
// with a namespace 1 of 512-byte blocks.
package raw
