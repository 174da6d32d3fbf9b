// Package backendtest holds what every backend is tested with: Conformance,
// the suite all of them pass; Rig, which drives one queue step by step; and
// Faulty, a device that fails, delays and loses operations on demand.
package backendtest
