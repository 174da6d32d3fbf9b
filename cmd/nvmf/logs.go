package main

import (
	"fmt"
	"math"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/nvme"
)

func (w *world) logCommands() []*cli.Command {
	out := func(more ...cli.Flag) []cli.Flag { return append([]cli.Flag{outputFlag(), rawFlag()}, more...) }
	csi := &cli.UintFlag{Name: "csi", Usage: "command set"}
	return []*cli.Command{
		w.verb("smart-log", "show the SMART / health log", needs{}, out(humanFlag(), namespaceFlag()), w.smartLog),
		w.verb("error-log", "show the error log: the entries that are used", needs{},
			out(&cli.IntFlag{Name: "log-entries", Aliases: []string{"e"}, Value: 64, Usage: "how many of the newest entries"}), w.errorLog),
		w.verb("fw-log", "show the firmware slot log", needs{}, out(), w.firmwareLog),
		w.verb("effects-log", "show which commands there are and what they affect", needs{}, out(humanFlag(), csi), w.effectsLog),
		w.verb("ana-log", "show the asymmetric namespace access log", needs{}, out(), w.anaLog),
		w.verb("changed-ns-list-log", "show which namespaces have changed since the log was read last", needs{}, out(), w.changedLog),
		w.verb("supported-log-pages", "show which log pages there are", needs{}, out(), w.supportedLogs),
		w.verb("fid-support-effects-log", "show which features there are", needs{}, out(humanFlag()), w.featureEffects),
		w.verb("get-log", "read any log page", needs{}, out(
			&cli.UintFlag{Name: "log-id", Usage: "log page identifier"},
			&cli.Uint64Flag{Name: "log-len", Aliases: []string{"l"}, Usage: "how many bytes, a multiple of 4", Value: 512},
			&cli.Uint64Flag{Name: "lpo", Usage: "offset of the first byte, or index with --ot"},
			&cli.UintFlag{Name: "lsp", Usage: "log specific field"}, &cli.UintFlag{Name: "lsi", Usage: "log specific identifier"},
			&cli.BoolFlag{Name: "rae", Usage: "retain the asynchronous event"}, &cli.BoolFlag{Name: "ot", Usage: "--lpo is the index of an entry"},
			&cli.UintFlag{Name: "uuid-index", Usage: "UUID index"}, csi, namespaceFlag(),
		), w.getLog, "log-id"),
	}
}

// logNSID is the namespace of a log: that of the whole controller unless the
// user names one.
func (s *session) logNSID() uint32 {
	if s.dev.nsid != 0 {
		return s.dev.nsid
	}
	return nvme.NSIDBroadcast
}

// page reads the log page lid, n bytes.
func (s *session) page(nsid uint32, lid nvme.LogPage, n int) ([]byte, error) {
	return s.ctrl.LogPage(s.ctx, nsid, nvme.LogRequest{LID: lid, Length: uint64(n)})
}

func (w *world) smartLog(s *session) error {
	b, err := s.page(s.logNSID(), nvme.LogSMART, nvme.SMARTLogSize)
	if err != nil {
		return err
	}
	var l nvme.SMARTLog
	if err := l.Unmarshal(b); err != nil {
		return err
	}
	return w.print(s, show.SMART(s.logNSID(), &l, b, s.show))
}

func (w *world) errorLog(s *session) error {
	n, most := s.c.Int("log-entries"), int(s.ctrl.Identity().ELPE)+1
	if n < 1 {
		return usagef("--log-entries %d: expected 1 or more", n)
	}
	b, err := s.page(nvme.NSIDBroadcast, nvme.LogError, min(n, most)*nvme.ErrorEntrySize)
	if err != nil {
		return err
	}
	var list []nvme.ErrorEntry
	for rest := b; len(rest) > 0; rest = rest[nvme.ErrorEntrySize:] {
		var e nvme.ErrorEntry
		if err := e.Unmarshal(rest[:nvme.ErrorEntrySize]); err != nil {
			return err
		}
		if e.Count != 0 {
			list = append(list, e)
		}
	}
	return w.print(s, show.ErrorLog(list, b, s.show))
}

func (w *world) firmwareLog(s *session) error {
	b, err := s.page(nvme.NSIDBroadcast, nvme.LogFirmware, nvme.FirmwareLogSize)
	if err != nil {
		return err
	}
	var l nvme.FirmwareLog
	if err := l.Unmarshal(b); err != nil {
		return err
	}
	return w.print(s, show.Firmware(&l, b, s.show))
}

func (w *world) effectsLog(s *session) error {
	csi := s.c.Uint("csi")
	if csi > math.MaxUint8 {
		return usagef("--csi %d: expected at most 255", csi)
	}
	l, err := s.ctrl.EffectsLog(s.ctx, nvme.CSI(csi))
	if err != nil {
		return err
	}
	return w.print(s, show.Effects(nvme.CSI(csi), l, s.show))
}

func (w *world) anaLog(s *session) error {
	change, groups, err := s.ctrl.ANALog(s.ctx)
	if err != nil {
		return err
	}
	return w.print(s, show.ANA(change, groups, nvme.AppendANALog(nil, change, groups), s.show))
}

func (w *world) changedLog(s *session) error {
	l, err := s.ctrl.ChangedNamespaces(s.ctx)
	if err != nil {
		return err
	}
	return w.print(s, show.ChangedNamespaces(l, s.show))
}

func (w *world) supportedLogs(s *session) error {
	l, err := s.ctrl.SupportedLogs(s.ctx)
	if err != nil {
		return err
	}
	return w.print(s, show.SupportedLogs(l, s.show))
}

func (w *world) featureEffects(s *session) error {
	l, err := s.ctrl.SupportedFeatures(s.ctx)
	if err != nil {
		return err
	}
	return w.print(s, show.SupportedFeatures(l, s.show))
}

func (w *world) getLog(s *session) error {
	c := s.c
	if err := fits(c, map[string]uint64{"log-id": math.MaxUint8, "lsp": 0x7f, "lsi": math.MaxUint16, "uuid-index": 0x7f, "csi": math.MaxUint8}); err != nil {
		return err
	}
	r := nvme.LogRequest{
		LID: nvme.LogPage(c.Uint("log-id")), LSP: uint8(c.Uint("lsp")), RAE: c.Bool("rae"), Length: c.Uint64("log-len"),
		Offset: c.Uint64("lpo"), OT: c.Bool("ot"), LSI: uint16(c.Uint("lsi")), UUIDIndex: uint8(c.Uint("uuid-index")), CSI: nvme.CSI(c.Uint("csi")),
	}
	const most = 1 << 30
	if r.Length == 0 || r.Length%4 != 0 || r.Length > most {
		return usagef("--log-len %d: expected a multiple of 4 up to %d", r.Length, most)
	}
	b, err := s.ctrl.LogPage(s.ctx, s.logNSID(), r)
	if err != nil {
		return err
	}
	title := fmt.Sprintf("Device:%s log-id:%d namespace-id:%#x", s.show.Device, r.LID, s.logNSID())
	return w.print(s, show.Bytes(title, b))
}

// fits checks that options fit their fields.
func fits(c *cli.Context, most map[string]uint64) error {
	for name, m := range most {
		if v := uint64(c.Uint(name)); v > m {
			return usagef("--%s %d: expected at most %d", name, v, m)
		}
	}
	return nil
}
