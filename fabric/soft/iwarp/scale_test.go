package iwarp

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// Ten thousand QPs on one device: both ends of five thousand connections are on
// it; each end has a socket.
func TestManyQPs(t *testing.T) {
	n := min(5000, (fileLimit()-500)/2)
	if n < 5000 {
		t.Logf("only %d connections: the limit of open files is %d", n, fileLimit())
	}
	fabrictest.Scale(t, one(Options{}, "127.0.0.1"), fabrictest.ScaleConfig{Connections: n, HeapPerQP: 32 << 10})
}

// fileLimit is how many files the process may open, after asking for more.
func fileLimit() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	if l.Cur < l.Max {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l) // what there is has to do
		_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	}
	return int(min(l.Cur, 1<<20))
}
