package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/daemon"
	"github.com/nvmf-go/nvmf/internal/providers"
)

// The daemon and the host on one machine, over the software RNICs on loopback:
// what scripts/demo shows.
func TestOverSoftwareRNICs(t *testing.T) {
	addr := fmt.Sprintf("127.%d.%d.%d", 2+rand.IntN(250), 2+rand.IntN(250), 2+rand.IntN(250))
	yaml := strings.Replace(configuration, "listeners: [{name: front, address: 10.0.0.1, provider: roce}]",
		fmt.Sprintf("listeners: [{name: roce, address: %s, provider: roce}, {name: iwarp, address: %s, provider: iwarp}]", addr, addr), 1)
	r := &rig{T: t, dir: t.TempDir()}
	f, err := config.Parse("test.yaml", []byte(yaml))
	r.must(err)
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	d, err := daemon.Start(ctx, f, daemon.Options{Log: log})
	r.must(err)
	defer func() { r.must(d.Close(context.WithoutCancel(ctx))) }()
	for _, provider := range []string{"roce", "iwarp"} {
		on := func(args ...string) string {
			t.Helper()
			var out, errOut strings.Builder
			w := &world{stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, providers: providers.Default()}
			if code := run(ctx, append([]string{"nvmf"}, append(args, "-a", addr, "--provider", provider)...), w); code != exitOK {
				t.Fatalf("%s %q: exit %d: %s", provider, args, code, errOut.String())
			}
			return out.String()
		}
		r.contains(on("discover"), "rdma_prtype: "+map[string]string{"roce": "roce-v2", "iwarp": "iwarp"}[provider], "traddr:  "+addr)
		r.contains(on("ping", "-c", "2", "--interval", "0", "-n", ramNQN), "2 sent, 2 answered", "("+provider+", device")
		r.contains(on("bench", "-n", ramNQN, "--rw", "randrw", "--iodepth", "8", "--runtime", "0", "--size", "1m", "--verify", "crc32c"), "verify:")
	}
	// auto finds both listeners, each with the RNIC that speaks its language.
	var out, errOut strings.Builder
	w := &world{stdout: &out, stderr: &errOut, providers: providers.Default()}
	if code := run(ctx, []string{"nvmf", "connect-all", "-a", addr}, w); code != exitOK || strings.Count(out.String(), " live") != 4 {
		t.Errorf("exit %d: %s%s", code, out.String(), errOut.String())
	}
	r.contains(out.String(), "device roce-lo", "device iwarp-lo")
}
