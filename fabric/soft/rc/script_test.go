package rc

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

var rewrite = flag.Bool("rewrite", false, "write the traces that the scripts produce into testdata; commit a difference only if you understand it")

// TestScripts runs testdata/*.txt. A script is a list of commands, each on one
// line, and what they made happen between "----" and an empty line:
//
//	new mtu=256 ord=4 ird=4 psn=100 retry=3 rnr=7 timeout=64ms rnrcode=14 window=0 access=rwa
//	recv b id=1 len=100            post a receive
//	send a id=1 len=100            and write, read, sendimm, sendinv, writeimm, cas, add, inv, bind
//	lose a 2 3                     lose the 2nd and 3rd packet a sends from now on
//	late a 1 5ms                   the 1st takes 5 ms
//	twice a 1                      the 1st arrives twice, 100 us apart
//	cut a                          lose all that a sends from now on; mend a
//	run [limit]                    until nothing happens, or for that time
//	inject b <hex>                 give a packet to b
//	disconnect a                   as another goroutine would
//	closemr b
//
// Lines that begin with # are comments.
func TestScripts(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) < 10 {
		t.Fatalf("%d scripts", len(files))
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { runScript(t, f) })
	}
}

func runScript(t *testing.T, file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t}
	var out strings.Builder
	inTrace := false
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "----":
			inTrace = true
		case inTrace:
			inTrace = line != ""
		case line == "" || line[0] == '#':
			fmt.Fprintln(&out, line)
		default:
			fmt.Fprintln(&out, line)
			if trace := s.command(line); trace != "" {
				fmt.Fprintf(&out, "----\n%s\n", trace)
			}
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got := out.String(); got != string(b) {
		t.Errorf("%s differs, line %s", file, firstDiff(string(b), got))
	}
}

func firstDiff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("%d:\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d: one of them ends", min(len(w), len(g)))
}

type script struct {
	t       *testing.T
	w       *world
	trace   bytes.Buffer
	fates   [2]map[int][]time.Duration // by number of packet
	cut     [2]bool
	windows map[string]fabric.MemoryWindow
}

// args are the key=value words of a command.
type args struct {
	t *testing.T
	m map[string]string
}

func (a args) str(key, def string) string {
	if v, ok := a.m[key]; ok {
		return v
	}
	return def
}

func (a args) num(key string, def int) int {
	n, err := strconv.ParseInt(a.str(key, strconv.Itoa(def)), 0, 64)
	if err != nil {
		a.t.Fatal(err)
	}
	return int(n)
}

func (a args) dur(key string, def time.Duration) time.Duration {
	d, err := time.ParseDuration(a.str(key, def.String()))
	if err != nil {
		a.t.Fatal(err)
	}
	return d
}

func (s *script) command(line string) string {
	s.trace.Reset()
	words := strings.Fields(line)
	a := args{s.t, map[string]string{}}
	var plain []string
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.m[k] = v
		} else {
			plain = append(plain, w)
		}
	}
	side := 0
	if len(plain) > 0 && plain[0] == "b" {
		side = 1
	}
	switch cmd := words[0]; cmd {
	case "new":
		s.newWorld(a)
	case "recv":
		e := s.w.ends[side]
		s.w.recv(side, uint64(a.num("id", 0)), e.sge(a.num("off", 0), a.num("len", 0)))
	case "lose", "late", "twice":
		s.fate(cmd, side, plain[1:])
	case "cut", "mend":
		s.cut[side] = cmd == "cut"
	case "run":
		limit := time.Hour
		if len(plain) > 0 {
			limit, _ = time.ParseDuration(plain[0])
		}
		from := s.w.now
		s.w.run(limit)
		if limit < time.Hour {
			s.w.now = from + limit
		}
	case "inject":
		s.inject(side, plain[1])
	case "disconnect":
		s.w.ends[side].qp.States().Set(fabric.QPError)
		s.w.pump()
	case "closemr":
		s.w.must(s.w.ends[side].mr.Close())
	case "atomicvalue":
		e := s.w.ends[side]
		fmt.Fprintf(&s.trace, "%d\n", e.mem.Bytes()[a.num("off", 0)])
	default:
		s.post(cmd, side, a)
	}
	return s.trace.String()
}

func (s *script) newWorld(a args) {
	c := defaultConfig()
	c.MTU = a.num("mtu", c.MTU)
	c.ORD, c.IRD = a.num("ord", c.ORD), a.num("ird", c.IRD)
	c.psn = psn.New(uint32(a.num("psn", int(c.psn))))
	c.RetryCount, c.RNRRetry = uint8(a.num("retry", 3)), uint8(a.num("rnr", 7))
	c.AckTimeout, c.RNRTimer = a.dur("timeout", c.AckTimeout), uint8(a.num("rnrcode", 14))
	c.Window = a.num("window", 0)
	if v, ok := a.m["access"]; ok {
		c.access = fabric.AccessLocalWrite
		for i, r := range "rwa" {
			if strings.ContainsRune(v, r) {
				c.access |= []fabric.Access{fabric.AccessRemoteRead, fabric.AccessRemoteWrite, fabric.AccessRemoteAtomic}[i]
			}
		}
	}
	s.w = newWorld(s.t, c)
	s.w.trace = &s.trace
	s.w.router = s.route
	s.windows = map[string]fabric.MemoryWindow{}
	s.fates = [2]map[int][]time.Duration{{}, {}}
	s.cut = [2]bool{}
	for i, e := range s.w.ends {
		fill(e.mem.Bytes(), i)
	}
}

func (s *script) fate(cmd string, side int, words []string) {
	for _, word := range words {
		n, err := strconv.Atoi(word)
		if err != nil {
			continue // the time of late
		}
		var f []time.Duration
		switch cmd {
		case "late":
			d, err := time.ParseDuration(words[len(words)-1])
			s.w.must(err)
			f = []time.Duration{d}
		case "twice":
			f = []time.Duration{s.w.delay, s.w.delay + 100*time.Microsecond}
		}
		s.fates[side][s.w.count[side]+n] = f
	}
}

func (s *script) route(from int, _ wire.Opcode, n int) []time.Duration {
	if s.cut[from] {
		return nil
	}
	if f, ok := s.fates[from][n]; ok {
		return f
	}
	return []time.Duration{s.w.delay}
}

var scriptOps = map[string]fabric.Opcode{
	"send": fabric.OpSend, "sendimm": fabric.OpSendImm, "sendinv": fabric.OpSendInv, "write": fabric.OpWrite,
	"writeimm": fabric.OpWriteImm, "read": fabric.OpRead, "cas": fabric.OpCompareSwap, "add": fabric.OpFetchAdd,
	"inv": fabric.OpLocalInv, "bind": fabric.OpBind,
}

// post posts a WR: len, off, roff, id, key (a window of the peer, or bad),
// imm, compare, swap, and flags=s(ignaled) u(nsignaled) f(ence) e(solicited) i(nline).
func (s *script) post(cmd string, side int, a args) {
	op, ok := scriptOps[cmd]
	if !ok {
		s.t.Fatalf("unknown command %q", cmd)
	}
	e, peer := s.w.ends[side], s.w.ends[1-side]
	flags := fabric.FlagSignaled
	for i, r := range "fei" {
		if strings.ContainsRune(a.str("flags", ""), r) {
			flags |= []fabric.SendFlags{fabric.FlagFence, fabric.FlagSolicited, fabric.FlagInline}[i]
		}
	}
	if strings.Contains(a.str("flags", ""), "u") {
		flags &^= fabric.FlagSignaled
	}
	id, n := uint64(a.num("id", 0)), a.num("len", 0)
	remote, rkey := peer.mem.Addr()+uint64(a.num("roff", 0)), peer.mr.RKey()
	switch k := a.str("key", ""); {
	case k == "bad":
		rkey ^= 1
	case k == "own":
		rkey = e.mr.RKey()
	case k != "":
		rkey = s.window(peer, k).RKey()
		if op == fabric.OpLocalInv {
			rkey = s.window(e, k).RKey()
		}
	}
	switch op {
	case fabric.OpBind:
		_, err := e.qp.EnqueueBind(s.window(e, a.str("key", "w")), e.mr, a.num("off", 0), n, fabric.AccessRemoteRead|fabric.AccessRemoteWrite, id, flags)
		s.w.must(err)
	case fabric.OpCompareSwap, fabric.OpFetchAdd:
		wr := fabric.AtomicWR{ID: id, Op: op, Flags: flags, RemoteAddr: remote, RKey: rkey, Compare: uint64(a.num("compare", 0)), SwapAdd: uint64(a.num("swap", 0))}
		_, err := e.qp.EnqueueAtomic([]fabric.AtomicWR{wr}, []fabric.SGE{e.sge(a.num("off", 0), 8)})
		s.w.must(err)
	default:
		sge := e.sge(a.num("off", 0), n)
		if a.str("lkey", "") == "bad" {
			sge.LKey ^= 1
		}
		wr := fabric.SendWR{ID: id, Op: op, Flags: flags, RemoteAddr: remote, RKey: rkey, Imm: uint32(a.num("imm", 0))}
		if op == fabric.OpLocalInv {
			s.w.post(side, wr)
			return
		}
		s.w.post(side, wr, sge)
	}
}

// window is the memory window of that name of an end.
func (s *script) window(e *end, name string) fabric.MemoryWindow {
	key := e.name + name
	if s.windows[key] == nil {
		w, err := e.dev.NewMemoryWindow()
		s.w.must(err)
		s.windows[key] = w
	}
	return s.windows[key]
}

// inject gives a packet of the peer to an end: opcode, sequence number in
// hexadecimal relative to what is next, and the number of payload bytes.
func (s *script) inject(side int, word string) {
	var op, rel, n int
	if _, err := fmt.Sscanf(word, "%x,%d,%d", &op, &rel, &n); err != nil {
		s.t.Fatal(err)
	}
	e := s.w.ends[side]
	b := make([]byte, wire.Opcode(op).Len()+n+wire.PadLen(n)+wire.ICRCLen)
	wire.BTH(b).Put(wire.Opcode(op), wire.AckReq, wire.PadLen(n), e.qp.Num(), e.qp.rsp.epsn.Add(rel))
	var p wire.Packet
	s.w.must(p.Parse(b))
	s.w.printf("to %s: %s", e.name, describe(&p))
	e.qp.Receive(&p, s.w.now)
	s.w.pump()
}
