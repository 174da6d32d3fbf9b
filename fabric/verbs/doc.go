// Package verbs is the fabric provider over libibverbs and librdmacm
// (rdma-core): hardware RDMA devices, and the kernel's rxe and siw.
//
// The two libraries are loaded with dlopen when [New] is called, so the program
// starts without them and says which is missing. Building needs their headers
// and cgo; without cgo, or with the build tag nordma, New fails with an error
// that says so. This is the only package of the module that uses cgo.
//
// # How it stands to the libraries
//
// librdmacm opens one context of each device, and every object here is made on
// that context, under one protection domain of our own per device. All ids of
// the connection manager share one event channel, read by one goroutine parked
// in the runtime's poller; so are each device's asynchronous events and each
// completion channel. Events are copied and acknowledged in one call into C:
// no destroy ever waits for a goroutine.
//
// Work requests cross into C in batches, without a pointer in them; the chains
// that the device takes are built on the C stack. Only numbers are kept in C:
// ids carry a token, not a Go pointer.
//
// # What verbs does not tell
//
// A failed completion has a valid ID, QPN, Status and Vendor and nothing else:
// its Op is 255. A successful one says SEND for every kind of send and
// RDMA_WRITE for a write with immediate.
package verbs

// ProviderName is the provider's name in configuration files.
const ProviderName = "verbs"
