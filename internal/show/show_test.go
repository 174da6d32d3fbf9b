package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nvmf-go/nvmf/nvme"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with testdata/name.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func write(t *testing.T, d *Doc, f Format) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := d.Write(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Every document in text and JSON, as it was compared with nvme-cli's.
func TestGolden(t *testing.T) {
	for name, doc := range documents() {
		t.Run(name, func(t *testing.T) {
			golden(t, name+".txt", write(t, doc(Options{Device: "nvme0"}), Normal))
			golden(t, name+".json", write(t, doc(Options{Device: "nvme0"}), JSON))
		})
	}
}

// What bits mean, for those documents that say it.
func TestGoldenHuman(t *testing.T) {
	docs := documents()
	for _, name := range []string{"id-ctrl", "id-ns", "smart-log", "effects-log", "show-regs", "fid-support-effects-log", "cmdset-ind-id-ns", "get-property"} {
		golden(t, name+"-H.txt", write(t, docs[name](Options{Device: "nvme0", Human: true}), Normal))
	}
}

func TestFeatures(t *testing.T) {
	var b bytes.Buffer
	stamp := make([]byte, nvme.TimestampSize)
	(&nvme.Timestamp{Milliseconds: 1_700_000_000_000, Origin: nvme.TimestampSet}).MarshalTo(stamp)
	behavior := make([]byte, nvme.HostBehaviorSize)
	(&nvme.HostBehavior{ACRE: 1, LBAFEE: 1}).MarshalTo(behavior)
	for _, f := range []struct {
		id    nvme.FeatureID
		sel   nvme.FeatureSelect
		value uint32
		data  []byte
	}{
		{nvme.FeatArbitration, nvme.SelectCurrent, 0x01020307, nil},
		{nvme.FeatPowerManagement, nvme.SelectCurrent, 0x21, nil},
		{nvme.FeatTemperature, nvme.SelectDefault, 0x0010_0155, nil},
		{nvme.FeatErrorRecovery, nvme.SelectCurrent, 0x1_0007, nil},
		{nvme.FeatWriteCache, nvme.SelectSaved, 1, nil},
		{nvme.FeatNumQueues, nvme.SelectCurrent, 0x30007, nil},
		{nvme.FeatIRQCoalescing, nvme.SelectCurrent, 0x0203, nil},
		{nvme.FeatIRQConfig, nvme.SelectCurrent, 0x1_0004, nil},
		{nvme.FeatWriteAtomicity, nvme.SelectCurrent, 1, nil},
		{nvme.FeatAsyncEvent, nvme.SelectCurrent, 0x80000901, nil},
		{nvme.FeatTimestamp, nvme.SelectCurrent, 0, stamp},
		{nvme.FeatKeepAlive, nvme.SelectCurrent, 5000, nil},
		{nvme.FeatHostThermal, nvme.SelectCurrent, 0x0150_0160, nil},
		{nvme.FeatHostBehavior, nvme.SelectCurrent, 0, behavior},
		{nvme.FeatHostID, nvme.SelectCurrent, 1, bytes.Repeat([]byte{0xab}, 16)},
		{nvme.FeatHostID, nvme.SelectCurrent, 0, bytes.Repeat([]byte{0xab}, 8)},
		{nvme.FeatReservationMask, nvme.SelectCurrent, 2, nil},
		{nvme.FeatReservationPersist, nvme.SelectCurrent, 1, nil},
		{nvme.FeatWriteProtect, nvme.SelectCurrent, 1, nil},
		{nvme.FeatKeepAlive, nvme.SelectSupported, 4, nil},
		{0xC0, nvme.SelectCurrent, 7, nil},
	} {
		for _, human := range []bool{false, true} {
			b.Write(write(t, Feature(f.id, f.sel, f.value, f.data, Options{Human: human}), Normal))
		}
		b.Write(write(t, Feature(f.id, f.sel, f.value, f.data, Options{}), JSON))
	}
	golden(t, "get-feature.txt", b.Bytes())
}

// Keys of objects come in the order they were added in, and a JSON reader takes
// all of it.
func TestJSONIsJSON(t *testing.T) {
	for name, doc := range documents() {
		var v any
		if err := json.Unmarshal(write(t, doc(Options{Device: "nvme0"}), JSON), &v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	b, err := json.Marshal(Object{{"z", 1}, {"a", Object{}}, {"<", "\x00"}})
	if want := `{"z":1,"a":{},"\u003c":"\u0000"}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	if _, err := json.Marshal(Object{{"f", func() {}}}); err == nil {
		t.Error("a function became JSON")
	}
}

func TestFormats(t *testing.T) {
	for s, want := range map[string]Format{"normal": Normal, "": Normal, "json": JSON, "binary": Binary} {
		if f, err := ParseFormat(s); f != want || err != nil {
			t.Errorf("%q: %d, %v", s, f, err)
		}
	}
	if _, err := ParseFormat("yaml"); !errors.Is(err, ErrFormat) {
		t.Errorf("%v", err)
	}
	if err := List(nil).Write(&bytes.Buffer{}, Binary); !errors.Is(err, ErrFormat) {
		t.Errorf("a list in binary: %v", err)
	}
	if got := write(t, Bytes("title", []byte("abc")), Binary); string(got) != "abc" {
		t.Errorf("%q", got)
	}
	if err := Bytes("t", nil).Write(failing{}, Normal); err == nil {
		t.Error("a writer that fails was not noticed")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no room") }

// A controller's bytes do not reach the terminal as they are.
func TestHostileText(t *testing.T) {
	id := exampleController()
	copy(id.SN[:], "\x1b[2J\x07evil")
	copy(id.MN[:], bytes.Repeat([]byte{0xff}, 40))
	for i := range id.SUBNQN {
		id.SUBNQN[i] = 'x' // no end
	}
	id.NPSS = 255
	for _, f := range []Format{Normal, JSON} {
		out := string(write(t, Controller(id, nil, Options{Human: true}), f))
		if i := strings.IndexFunc(out, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0xfffd }); i >= 0 {
			t.Errorf("%q", out[i:i+10])
		}
	}
}

// Lists of descriptors end where their bytes do.
func TestHostileDescriptors(t *testing.T) {
	b := make([]byte, nvme.IdentifySize)
	for i := 0; i < len(b); i += 4 {
		b[i], b[i+1] = 3, 255
	}
	if n := len(descriptors(b)); n == 0 || n > len(b)/4 {
		t.Errorf("%d descriptors", n)
	}
	write(t, Descriptors(1, b), Normal)
	if got := descriptors([]byte{1, 8, 0, 0, 1, 2}); got != nil {
		t.Errorf("half a descriptor: %v", got)
	}
}

func FuzzDescriptors(f *testing.F) {
	f.Add([]byte{1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, d := range descriptors(b) {
			if d.loc+4+len(d.nid) > len(b) {
				t.Errorf("%d bytes at %d of %d", len(d.nid), d.loc, len(b))
			}
		}
		write(t, Descriptors(1, b), JSON)
	})
}

func TestDump(t *testing.T) {
	var b bytes.Buffer
	Dump(&b, append([]byte("0123456789abcdef\x00"), 0xff))
	want := "       0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f\n" +
		"0000: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66 \"0123456789abcdef\"\n" +
		"0010: 00 ff                                           \"..\"\n"
	if b.String() != want {
		t.Errorf("%s", cmp.Diff(want, b.String()))
	}
}
