package fabrictest

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// Open makes two providers for one test, which may be the same, and two
// addresses: addrA is on a device of a, addrB on one of b, and they reach each
// other. It registers its own cleanup for the providers; the suite closes
// whatever it makes with them before.
type Open func(t *testing.T) (a, b fabric.Provider, addrA, addrB netip.Addr)

// Config tunes Conformance to a provider. The zero value is the strictest.
type Config struct {
	// Timeout bounds each wait; 0 means 10 s.
	Timeout time.Duration
	// Connections is how many connections exist at a time in the scale test; 0
	// means 128.
	Connections int
	// Cycles is how many times the leak test connects and disconnects; 0 means
	// 300.
	Cycles int
	// SoakOps is the number of random operations of the soak test per end; 0
	// means 8000.
	SoakOps int
	// Seed of the soak test; 0 means 1.
	Seed uint64

	// Statuses lists what else a device may end a WR with where the suite
	// expects the key. It is for the known ways of devices, not of providers
	// of ours.
	Statuses map[fabric.Status][]fabric.Status
	// The following exempt a provider from a part and say why.
	Allocates  string // posting and polling allocate
	Overflows  string // a full completion queue loses completions silently
	SlowBearer string // big transfers are cut to a few MiB
	// Ways of hardware and its drivers that no provider can mend.
	KeepsInvalidatedKey string // a receive does not tell the key that it invalidated
	WindowsUnbounded    string // a window reaches as far as its region
	ReadsOutliveKeys    string // a READ in progress does not end when its key does
	NoSQE               string // an error of a send takes a QP of an unreliable service to ERR
	FailsLongMessages   string // an unreliable message too long for its receive ends that in an error
}

func (c *Config) setDefaults() {
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Connections == 0 {
		c.Connections = 128
	}
	if c.Cycles == 0 {
		c.Cycles = 300
	}
	if c.SoakOps == 0 {
		c.SoakOps = 8000
	}
	if c.Seed == 0 {
		c.Seed = 1
	}
}

// logExemptions says what is not tested, or differently, and why.
func (c *Config) logExemptions(t *testing.T) {
	for _, e := range []struct{ what, why string }{
		{"it allocates", c.Allocates}, {"overflow is silent", c.Overflows}, {"it is slow", c.SlowBearer},
		{"invalidated keys are not told", c.KeepsInvalidatedKey}, {"windows have no bounds", c.WindowsUnbounded}, {"READs outlive their key", c.ReadsOutliveKeys},
		{"no state SQE", c.NoSQE}, {"messages that are too long fail", c.FailsLongMessages},
	} {
		if e.why != "" {
			t.Logf("exempt: %s: %s", e.what, e.why)
		}
	}
	for want, also := range c.Statuses {
		t.Logf("where %q is expected, also: %v", want, also)
	}
}

// conformanceTests are the parts of the suite in the order they run.
var conformanceTests = []struct {
	name string
	run  func(*suite)
}{
	{"Device", testDevice},
	{"Registration", testRegistration},

	{"Send/Order", testSendOrder},
	{"Send/Gather", testGather},
	{"Send/Empty", testEmpty},
	{"Send/Immediate", testImmediate},
	{"Send/Inline", testInline},
	{"Send/Unsignaled", testUnsignaled},
	{"Send/BothWays", testBothWays},
	{"Write/Sizes", testWriteSizes},
	{"Write/BeforeSend", testWriteBeforeSend},
	{"Write/Immediate", testWriteImmediate},
	{"Read/Sizes", testReadSizes},
	{"Read/Scatter", testReadScatter},
	{"Read/Fence", testFence},
	{"Read/ORD", testORD},
	{"Read/NoORD", testNoORD},
	{"Atomics", testAtomics},
	{"Atomics/Errors", testAtomicErrors},
	{"Atomics/Contended", testAtomicsContended},
	{"Invalidate/Window", testWindow},
	{"Invalidate/Remote", testSendInvalidate},
	{"Invalidate/Errors", testWindowErrors},

	{"UC/Send", testUnreliableSend},
	{"UC/Write", testUnreliableWrite},
	{"UC/Drops", testUnreliableDrops},
	{"UC/Errors", testUnreliableErrors},
	{"UC/States", testUnreliableStates},
	{"UD/Send", testDatagramSend},
	{"UD/Scatter", testDatagramScatter},
	{"UD/Drops", testDatagramDrops},
	{"UD/Many", testDatagramMany},
	{"UD/Errors", testDatagramErrors},

	{"SRQ", testSRQ},
	{"RNR/Retried", testRNRRetried},
	{"RNR/Exceeded", testRNRExceeded},
	{"RNR/Fatal", testNoReceiveFatal},

	{"Post/Full", testQueueFull},
	{"Post/Invalid", testPostInvalid},
	{"Post/ErrorState", testPostInErrorState},
	{"Protection", testProtection},
	{"Protection/Deregister", testDeregisterUnderTraffic},

	{"CQ/Notify", testNotify},
	{"CQ/NoLostWakeup", testNoLostWakeup},
	{"CQ/Separate", testSeparateCQs},
	{"CQ/Overflow", testOverflow},

	{"CM/PrivateData", testPrivateData},
	{"CM/Request", testRequest},
	{"CM/Reject", testReject},
	{"CM/NobodyListens", testNobodyListens},
	{"CM/ListenErrors", testListenErrors},
	{"CM/ListenerClosed", testListenerClosed},
	{"CM/AcceptEnds", testAcceptEnds},
	{"CM/Backlog", testBacklog},
	{"CM/Simultaneous", testSimultaneous},
	{"CM/SlowAcceptor", testSlowAcceptor},
	{"CM/DialCancelled", testDialCancelled},
	{"CM/SetupFails", testSetupFails},
	{"CM/Config", testConnConfig},

	{"Disconnect", testDisconnect},
	{"Disconnect/UnderLoad", testDisconnectUnderLoad},
	{"Close/Abrupt", testCloseAbrupt},
	{"Close/Busy", testCloseBusy},
	{"Leaks", testLeaks},
	{"Churn", testChurn},
	{"Scale", testScale},
	{"Soak", testSoak},
	{"Allocations", testAllocations},
}

// Conformance holds a provider to the contract of package fabric. A provider
// is done when it passes. A part is skipped only for what the device's own
// limits, or an error wrapping fabric.ErrNotSupported, say it does not have.
func Conformance(t *testing.T, open Open, cfg Config) {
	cfg.setDefaults()
	cfg.logExemptions(t)
	for _, c := range conformanceTests {
		t.Run(c.name, func(t *testing.T) {
			c.run(newSuite(t, open, &cfg))
		})
	}
}

// skipIfUnsupported skips when err says that the device does not have it.
func skipIfUnsupported(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, fabric.ErrNotSupported) {
		t.Skipf("the device says: %v", err)
	}
}

// accepts says whether a WR that should end with want may end with got.
func (c *Config) accepts(got, want fabric.Status) bool {
	return got == want || slices.Contains(c.Statuses[want], got)
}
