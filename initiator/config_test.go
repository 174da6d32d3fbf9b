package initiator

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

const (
	uuidText  = "6f3c0000-0000-4000-8000-000000000001"
	otherUUID = "6f3c0000-0000-4000-8000-000000000002"
)

func goodConfig() Config {
	return Config{Addr: netip.MustParseAddrPort("10.0.0.1:4420"), Subsystem: testNQN, HostNQN: hostNQN}
}

// The settings in effect, for every way to set them.
func TestConfigDefaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(*Config)
		check func(*Config) bool
	}{
		{"port", func(c *Config) { c.Addr = netip.AddrPortFrom(c.Addr.Addr(), 0) }, func(c *Config) bool { return c.Addr.Port() == DefaultPort }},
		{"mapped address", func(c *Config) { c.Addr = netip.MustParseAddrPort("[::ffff:10.0.0.1]:1") }, func(c *Config) bool { return c.Addr.Addr().Is4() }},
		{"ctrl-loss of default", func(*Config) {}, func(c *Config) bool { return c.CtrlLossTimeout == DefaultCtrlLossTimeout }},
		{"ctrl-loss never", func(c *Config) { c.CtrlLossTimeout = -1 }, func(c *Config) bool { return c.CtrlLossTimeout < 0 }},
		{"ctrl-loss 1 s", func(c *Config) { c.CtrlLossTimeout = time.Second }, func(c *Config) bool { return c.CtrlLossTimeout == time.Second }},
		{"keep alive of default", func(*Config) {}, func(c *Config) bool { return c.katoMillis() == 5000 }},
		{"keep alive none", func(c *Config) { c.KeepAlive = -1 }, func(c *Config) bool { return c.katoMillis() == 0 }},
		{"keep alive rounded up", func(c *Config) { c.KeepAlive = 1500 * time.Microsecond }, func(c *Config) bool { return c.katoMillis() == 2 }},
		{"fast fail of default", func(*Config) {}, func(c *Config) bool { return c.FastIOFail == DefaultFastIOFail }},
		{"no I/O queues", func(c *Config) { c.IOQueues = -1 }, func(c *Config) bool { return c.IOQueues == 0 }},
		{"I/O queues", func(*Config) {}, func(c *Config) bool { return c.IOQueues >= 1 && c.IOQueues <= 4 }},
		{"discovery", func(c *Config) { c.discovery = true }, func(c *Config) bool { return c.IOQueues == 0 }},
		{"no spinning", func(c *Config) { c.Spin = -5 }, func(c *Config) bool { return c.Spin == 0 }},
		{"long reconnect delay", func(c *Config) { c.ReconnectDelay = time.Minute }, func(c *Config) bool { return c.MaxReconnectDelay == time.Minute }},
		{"host ID of the NQN", func(*Config) {}, func(c *Config) bool { return c.HostID.String() == uuidText }},
		{"NQN of the host ID", func(c *Config) { c.HostNQN, c.HostID = "", nvme.HostID{1} },
			func(c *Config) bool { return c.HostNQN == nvme.UUIDNQN(nvme.UUID{1}) }},
		{"both, apart", func(c *Config) { c.HostID = nvme.HostID{9} }, func(c *Config) bool { return c.HostNQN == hostNQN && c.HostID == nvme.HostID{9} }},
		{"replay delay", func(*Config) {}, func(c *Config) bool {
			return c.replayDelay(false) == DefaultKeepAlive && c.replayDelay(true) == 2*DefaultKeepAlive
		}},
		{"replay delay without keep alive", func(c *Config) { c.KeepAlive = -1 }, func(c *Config) bool { return c.replayDelay(true) == DefaultReplayDelay }},
		{"replay delay set", func(c *Config) { c.ReplayDelay = 3 }, func(c *Config) bool { return c.replayDelay(true) == 3 }},
		{"replay delay off", func(c *Config) { c.ReplayDelay = -1 }, func(c *Config) bool { return c.replayDelay(true) == 0 }},
	} {
		c := goodConfig()
		tt.set(&c)
		full, err := c.withDefaults()
		if err != nil || !tt.check(&full) {
			t.Errorf("%s: %v, %+v", tt.name, err, full)
		}
	}
}

// Mistakes are told apart, by name, and all at once.
func TestConfigMistakes(t *testing.T) {
	for _, tt := range []struct {
		set  func(*Config)
		text string
	}{
		{func(c *Config) { c.Addr = netip.AddrPort{} }, "expected the address of a target"},
		{func(c *Config) { c.Addr = netip.MustParseAddrPort("0.0.0.0:4420") }, "expected the address of a target"},
		{func(c *Config) { c.Addr = netip.MustParseAddrPort("[ff02::1]:4420") }, "expected the address of a target"},
		{func(c *Config) { c.Addr = netip.MustParseAddrPort("[fe80::1]:4420") }, "fe80::1%eth0"},
		{func(c *Config) { c.Subsystem = "" }, "NQN is empty"},
		{func(c *Config) { c.Subsystem = nvme.NQN(strings.Repeat("x", 224)) }, "longer than 223"},
		{func(c *Config) { c.IOQueues = 1025 }, "1025 I/O queues"},
		{func(c *Config) { c.QueueDepth = -1 }, "queue depth -1"},
		{func(c *Config) { c.QueueDepth = 4096 }, "queue depth 4096"},
		{func(c *Config) { c.Invalidate = 9 }, "Invalidate"},
		{func(c *Config) { c.KeepAlive = time.Microsecond }, "keep alive"},
		{func(c *Config) { c.KeepAlive = 50 * 24 * time.Hour }, "keep alive"},
		{func(c *Config) { c.BounceMemory = 1000 }, "bounce memory"},
		{func(c *Config) { c.IOTimeout = -1 }, "IOTimeout"},
		{func(c *Config) { c.ConnectTimeout = -1 }, "ConnectTimeout"},
		{func(c *Config) { c.ReconnectDelay, c.MaxReconnectDelay = 2, 1 }, "MaxReconnectDelay"},
		{func(c *Config) { c.HostNQN = "nqn.2014-08.org.example:me" }, "needs a host ID"},
		{func(c *Config) { c.HostNQN = nvme.NQN(strings.Repeat("x", 300)) }, "host NQN"},
	} {
		c := goodConfig()
		tt.set(&c)
		if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%v: does not say %q", err, tt.text)
		}
	}
	c := goodConfig()
	c.Subsystem, c.QueueDepth = "", -1
	if _, err := c.withDefaults(); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("two mistakes: %v", err)
	}
	if _, err := Connect(context.Background(), nil, Config{}); err == nil {
		t.Error("an empty Config was taken")
	}
}

func TestParseAddr(t *testing.T) {
	for _, tt := range []struct{ traddr, trsvcid, want string }{
		{"10.0.0.1", "", "10.0.0.1:4420"}, {"10.0.0.1", "8009", "10.0.0.1:8009"}, {"fe80::1%eth0", "4420", "[fe80::1%eth0]:4420"},
		{"[fe80::1%eth0]", "1", "[fe80::1%eth0]:1"}, {" ::1 ", "", "[::1]:4420"}, {"::ffff:10.0.0.1", "", "10.0.0.1:4420"}, {"localhost", "5", "127.0.0.1:5"},
		{"", "", ""}, {"[]", "", ""}, {"10.0.0.1", "0", ""}, {"10.0.0.1", "65536", ""}, {"10.0.0.1", "x", ""}, {"10.0.0.1", "-1", ""},
		{"no such name.invalid", "", ""},
	} {
		got, err := ParseAddr(t.Context(), tt.traddr, tt.trsvcid)
		if (err == nil) != (tt.want != "") || err == nil && got.String() != tt.want {
			t.Errorf("%q, %q: %v, %v, want %q", tt.traddr, tt.trsvcid, got, err, tt.want)
		}
	}
}

// The two files, whatever is in them.
func TestIdentityFiles(t *testing.T) {
	uuidNQN := "nqn.2014-08.org.nvmexpress:uuid:" + uuidText
	for _, tt := range []struct {
		name, nqn, id string // "-": no file
		wantNQN       string // "": an error
		is            error
	}{
		{"both", uuidNQN, uuidText + "\n", uuidNQN, nil},
		{"NQN alone", uuidNQN + "\n", "-", uuidNQN, nil},
		{"ID alone", "-", uuidText, uuidNQN, nil},
		{"another form of NQN", "nqn.2026-01.org.example:me", otherUUID, "nqn.2026-01.org.example:me", nil},
		{"none", "-", "-", "", os.ErrNotExist},
		{"empty", "", "\n", "", os.ErrNotExist},
		{"an ID of another", uuidNQN, otherUUID, uuidNQN, nil},
		{"another form without ID", "nqn.2026-01.org.example:me", "-", "", ErrIdentity},
		{"no NQN", "something", uuidText, "", nil},
		{"no ID", uuidNQN, "42", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{nqnFile: tt.nqn, idFile: tt.id} {
				if text != "-" {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			nqn, id, err := readIdentity(dir)
			if (err == nil) != (tt.wantNQN != "") || string(nqn) != tt.wantNQN || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%s, %v, %v", nqn, id, err)
			}
			if err != nil && !strings.Contains(err.Error(), dir) {
				t.Errorf("%v: does not name the file", err)
			}
			if err == nil && id.IsZero() {
				t.Error("no ID")
			}
		})
	}
}

// Many processes that ask at once, for the first time, are one host.
func TestIdentityMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config", "nvmf")
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[nvme.NQN]nvme.HostID{}
	for range 16 {
		wg.Go(func() {
			nqn, id, err := userIdentity(dir)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[nqn] = id
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Errorf("%d hosts", len(got))
	}
	for nqn, id := range got {
		if u, ok := nqn.UUID(); !ok || nvme.HostID(u) != id || u[6]>>4 != 4 || u[8]>>6 != 2 {
			t.Errorf("%s, %v", nqn, id)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
}

// The system's files come first, as they are; without them a user's own are
// made, where XDG has them, and must agree.
func TestHostIdentity(t *testing.T) {
	system, user := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", user)
	write := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nqn, id, err := hostIdentity(system)
	if err != nil {
		t.Fatal(err)
	}
	again, idAgain, err := hostIdentity(system)
	if err != nil || again != nqn || idAgain != id || !matching(nqn, id) {
		t.Errorf("%s, %v, then %s, %v, %v", nqn, id, again, idAgain, err)
	}
	own := filepath.Join(user, "nvmf")
	if _, err := os.Stat(filepath.Join(own, nqnFile)); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(filepath.Join(own, idFile), 0o600); err != nil {
		t.Fatal(err)
	}
	write(own, idFile, otherUUID)
	if _, _, err := hostIdentity(system); !errors.Is(err, ErrIdentity) {
		t.Errorf("a user's files that contradict each other: %v", err)
	}
	write(system, nqnFile, string(hostNQN))
	write(system, idFile, otherUUID)
	if nqn, id, err = hostIdentity(system); err != nil || nqn != hostNQN || id.String() != otherUUID {
		t.Errorf("the system's files: %s, %v, %v", nqn, id, err)
	}
	log := &logBuffer{}
	c := goodConfig()
	c.HostID, c.Log = id, log.logger()
	if _, err := c.withDefaults(); err != nil || !log.has("is not the UUID in the host NQN") {
		t.Errorf("%v, or nobody was told", err)
	}
	write(system, idFile, "junk")
	if _, _, err := hostIdentity(system); err == nil || !strings.Contains(err.Error(), idFile) {
		t.Errorf("junk in a file of the system: %v", err)
	}
}
