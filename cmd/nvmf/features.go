package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/nvme"
)

func (w *world) featureCommands() []*cli.Command {
	id := func() cli.Flag { return &cli.UintFlag{Name: "feature-id", Aliases: []string{"f"}, Usage: "feature"} }
	length := func() cli.Flag {
		return &cli.IntFlag{Name: "data-len", Aliases: []string{"l"}, Usage: "bytes of data, of features that have data"}
	}
	return []*cli.Command{
		w.verb("get-feature", "show a feature, without -f all that the controller has", needs{}, []cli.Flag{
			id(), namespaceFlag(), outputFlag(), humanFlag(), rawFlag(), length(),
			&cli.UintFlag{Name: "sel", Usage: "0 current, 1 default, 2 saved, 3 what can be done with it"},
			&cli.UintFlag{Name: "cdw11", Aliases: []string{"c"}, Usage: "command dword 11, by which few features select"},
		}, w.getFeature),
		w.verb("set-feature", "set a feature", needs{}, []cli.Flag{
			id(), namespaceFlag(), length(),
			&cli.Uint64Flag{Name: "value", Usage: "the value, command dword 11"},
			&cli.UintFlag{Name: "cdw12", Usage: "command dword 12"},
			&cli.StringFlag{Name: "data", Aliases: []string{"d"}, Usage: "file with the data; - is standard input"},
			&cli.BoolFlag{Name: "save", Usage: "have it last"},
		}, w.setFeature, "feature-id", "value"),
		w.verb("show-regs", "show the properties of the controller", needs{}, []cli.Flag{outputFlag(), humanFlag(), rawFlag()}, w.showRegisters),
		w.verb("get-property", "show one property of the controller", needs{}, []cli.Flag{
			&cli.UintFlag{Name: "offset", Usage: "offset of the property"}, outputFlag(), humanFlag(),
		}, w.getProperty, "offset"),
		w.verb("set-property", "write a property of the controller", needs{}, []cli.Flag{
			&cli.UintFlag{Name: "offset", Usage: "offset of the property"},
			&cli.Uint64Flag{Name: "value", Usage: "the value"},
		}, w.setProperty, "offset", "value"),
	}
}

// featureData is the size in bytes of the data that features have.
var featureData = map[nvme.FeatureID]int{
	nvme.FeatLBARangeType: 4096, nvme.FeatAutonomousPower: 256, nvme.FeatTimestamp: nvme.TimestampSize,
	nvme.FeatHostBehavior: nvme.HostBehaviorSize, nvme.FeatHostID: nvme.HostIDSize,
}

func (w *world) getFeature(s *session) error {
	c := s.c
	if err := fits(c, map[string]uint64{"feature-id": math.MaxUint8, "sel": 3, "cdw11": math.MaxUint32}); err != nil {
		return err
	}
	sel := nvme.FeatureSelect(c.Uint("sel"))
	if c.IsSet("feature-id") {
		return w.showFeature(s, nvme.FeatureID(c.Uint("feature-id")), sel)
	}
	return w.allFeatures(s, sel)
}

// allFeatures shows what the controller says it has, else what it answers.
func (w *world) allFeatures(s *session, sel nvme.FeatureSelect) error {
	var status *nvme.StatusError
	has, err := s.ctrl.SupportedFeatures(s.ctx)
	if err != nil && !errors.As(err, &status) {
		return err
	}
	for i := range 256 {
		id := nvme.FeatureID(i)
		if has != nil && has.At(id)&nvme.FeatureSupported == 0 {
			continue
		}
		if err := w.showFeature(s, id, sel); err != nil && !errors.As(err, &status) {
			return err
		}
	}
	return nil
}

func (w *world) showFeature(s *session, id nvme.FeatureID, sel nvme.FeatureSelect) error {
	n, cdw11 := featureData[id], uint32(s.c.Uint("cdw11"))
	if s.c.IsSet("data-len") {
		n = s.c.Int("data-len")
	}
	if n < 0 || n > s.ctrl.MaxTransfer() {
		return usagef("--data-len %d: expected at most %d", n, s.ctrl.MaxTransfer())
	}
	if sel == nvme.SelectSupported {
		n = 0
	}
	if id == nvme.FeatHostID && n == nvme.HostIDSize {
		cdw11 |= nvme.EXHID // fabrics know no other
	}
	data := make([]byte, n)
	v, err := s.ctrl.GetFeature(s.ctx, id, sel, s.dev.nsid, cdw11, data)
	if err != nil {
		return err
	}
	return w.print(s, show.Feature(id, sel, v, data, s.show))
}

func (w *world) setFeature(s *session) error {
	c := s.c
	if err := fits(c, map[string]uint64{"feature-id": math.MaxUint8, "cdw12": math.MaxUint32}); err != nil {
		return err
	}
	v := c.Uint64("value")
	if v > math.MaxUint32 {
		return usagef("--value %d: expected at most %d", v, uint32(math.MaxUint32))
	}
	id := nvme.FeatureID(c.Uint("feature-id"))
	data, err := w.featureInput(c, id)
	if err != nil {
		return err
	}
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Features().InitSet(id, s.dev.nsid, uint32(v), c.Bool("save"))
	cmd.SetCDW(12, uint32(c.Uint("cdw12")))
	result, err := s.ctrl.Admin(s.ctx, cmd, data)
	if err != nil {
		return err
	}
	saved := 0
	if c.Bool("save") {
		saved = 1
	}
	fmt.Fprintf(w.stdout, "set-feature:0x%02x (%v), value:0x%08x, cdw12:0x%08x, save:%d\n", uint8(id), id, v, c.Uint("cdw12"), saved)
	if r := uint32(result); r != 0 {
		fmt.Fprintf(w.stdout, "result: 0x%08x\n", r)
	}
	return nil
}

// featureInput is the data of a feature that has some.
func (w *world) featureInput(c *cli.Context, id nvme.FeatureID) ([]byte, error) {
	n := featureData[id]
	if c.IsSet("data-len") {
		n = c.Int("data-len")
	}
	name := c.String("data")
	switch {
	case n == 0 && name == "":
		return nil, nil
	case name == "":
		return nil, usagef("set-feature: %v has data: --data FILE", id)
	}
	if n <= 0 {
		in, err := w.input(name)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		return io.ReadAll(io.LimitReader(in, 1<<20))
	}
	data := make([]byte, n)
	return data, w.fill(name, data)
}

// fill reads all of data from a file.
func (w *world) fill(name string, data []byte) error {
	in, err := w.input(name)
	if err != nil {
		return err
	}
	defer in.Close()
	if _, err := io.ReadFull(in, data); err != nil {
		return fmt.Errorf("%s: %d bytes wanted: %w", name, len(data), err)
	}
	return nil
}

// input opens a file to read; - is standard input.
func (w *world) input(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(w.stdin), nil
	}
	return os.Open(name)
}

func (w *world) showRegisters(s *session) error {
	props := []nvme.Property{nvme.PropCAP, nvme.PropVS, nvme.PropCC, nvme.PropCSTS}
	if s.ctrl.Capabilities().NSSRS() {
		props = append(props, nvme.PropNSSR)
	}
	if s.ctrl.Capabilities().CRMS() != 0 {
		props = append(props, nvme.PropCRTO)
	}
	var list []show.Register
	for _, p := range props {
		v, err := s.ctrl.PropertyGet(s.ctx, p)
		if err != nil {
			return err
		}
		list = append(list, show.Register{Property: p, Value: v})
	}
	return w.print(s, show.Registers(list, s.show))
}

func (w *world) getProperty(s *session) error {
	if err := fits(s.c, map[string]uint64{"offset": math.MaxUint32}); err != nil {
		return err
	}
	p := nvme.Property(s.c.Uint("offset"))
	v, err := s.ctrl.PropertyGet(s.ctx, p)
	if err != nil {
		return err
	}
	return w.print(s, show.OneRegister(show.Register{Property: p, Value: v}, s.show))
}

func (w *world) setProperty(s *session) error {
	if err := fits(s.c, map[string]uint64{"offset": math.MaxUint32}); err != nil {
		return err
	}
	p := nvme.Property(s.c.Uint("offset"))
	if err := s.ctrl.PropertySet(s.ctx, p, s.c.Uint64("value")); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w.stdout, "set-property: 0x%02x (%v), value: %#x\n", uint32(p), p, s.c.Uint64("value"))
	return err
}
