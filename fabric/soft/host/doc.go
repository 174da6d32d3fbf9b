// Package host is what the software RNICs need of the host they run on: its
// addresses, which are their devices, and a way to sleep until a descriptor is
// ready.
package host
