package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/iwarp"
	"github.com/nvmf-go/nvmf/fabric/soft/roce"
	"github.com/nvmf-go/nvmf/fabric/verbs"
	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/providers"
	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/nvme"
)

func (w *world) discoveryCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "discover", Usage: "show the discovery log: what there is to connect to", ArgsUsage: "[DEVICE]",
			Flags: append([]cli.Flag{
				outputFlag(), rawFlag(),
				&cli.BoolFlag{Name: "referrals", Usage: "ask the other services too that the log refers to"},
				&cli.BoolFlag{Name: "watch", Usage: "stay connected, and show the log again whenever it changes"},
			}, connectFlags()...),
			Action: w.discover,
		},
		{
			Name: "connect-all", Aliases: []string{"list-subsys"}, Usage: "connect to every subsystem of the discovery log, show the controllers, and disconnect",
			ArgsUsage: "[DEVICE]", Flags: append([]cli.Flag{outputFlag()}, connectFlags()...), Action: w.connectAll,
		},
		{
			Name: "list", Usage: "list the namespaces of a subsystem, without -n those of all subsystems of the discovery log",
			ArgsUsage: "[DEVICE]", Flags: append([]cli.Flag{outputFlag(), namespaceFlag()}, connectFlags()...), Action: w.list,
		},
		{
			Name: "show-hostnqn", Usage: "print the NQN and the ID that this host goes by",
			Flags:  []cli.Flag{outputFlag()},
			Action: w.showHost,
		},
	}
}

// aimOperand is aim for a command whose operand is the DEVICE.
func (w *world) aimOperand(c *cli.Context) (*session, error) {
	name, err := operand(c)
	if err != nil {
		return nil, err
	}
	return w.aim(c, name, "")
}

func (w *world) discover(c *cli.Context) error {
	s, err := w.aimOperand(c)
	if err != nil {
		return err
	}
	s.cfg.Subsystem = s.dev.nqn // a unique name of the service, or none
	if c.Bool("watch") {
		return w.watch(s)
	}
	s.cfg.KeepAlive = 0
	log, err := w.discoverAll(s, c.Bool("referrals"))
	if err != nil {
		return err
	}
	for _, f := range log.Failures {
		fmt.Fprintln(w.stderr, "nvmf:", f)
	}
	return w.print(s, logDoc(log))
}

// discoverAll reads the discovery log.
func (w *world) discoverAll(s *session, referrals bool) (log *initiator.DiscoveryLog, err error) {
	err = w.either(s, func() (err error) {
		log, err = initiator.Discover(s.ctx, s.provider, s.cfg, initiator.DiscoverOptions{Referrals: referrals})
		return err
	})
	return log, err
}

// watch shows the log at every change until the user has seen enough.
func (w *world) watch(s *session) (err error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	holdOn(s.c, &s.cfg, true)
	sub, err := initiator.NewDiscoverer(s.provider).Watch(ctx, s.cfg, func(log *initiator.DiscoveryLog) {
		if err := w.print(s, logDoc(log)); err != nil {
			cancel(err)
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return errors.Join(err, sub.Close())
}

func logDoc(log *initiator.DiscoveryLog) *show.Doc {
	entries := make([]nvme.DiscoveryEntry, len(log.Records))
	for i := range log.Records {
		entries[i] = log.Records[i].DiscoveryEntry
	}
	return show.Discovery(log.GENCTR, entries)
}

// path is a way to a subsystem.
type path struct {
	provider fabric.Provider
	cfg      initiator.Config
}

// paths asks the discovery service, following referrals, for the ways to all
// NVM subsystems, each once. With a subsystem's name on the command line it is
// that alone.
func (w *world) paths(s *session) ([]path, error) {
	if s.dev.nqn != "" {
		s.cfg.Subsystem = s.dev.nqn
		return []path{{s.provider, s.cfg}}, nil
	}
	log, err := w.discoverAll(s, true)
	if err != nil {
		return nil, err
	}
	for _, f := range log.Failures {
		fmt.Fprintln(w.stderr, "nvmf:", f)
	}
	type way struct {
		provider string
		addr     netip.AddrPort
		nqn      nvme.NQN
	}
	seen := map[way]bool{}
	var list []path
	for i := range log.Records {
		r := &log.Records[i]
		if r.SUBTYPE != nvme.SubsystemNVM {
			continue
		}
		p, err := w.pathOf(s, r)
		if err != nil {
			fmt.Fprintln(w.stderr, "nvmf: left out:", err)
			continue
		}
		if k := (way{p.provider.Name(), p.cfg.Addr, p.cfg.Subsystem}); !seen[k] {
			seen[k] = true
			list = append(list, p)
		}
	}
	return list, nil
}

// pathOf is the way that a record describes. Where the choice is ours the
// software RNIC is the one that speaks the record's language.
func (w *world) pathOf(s *session, r *initiator.DiscoveryRecord) (p path, err error) {
	if p.cfg, err = r.Config(s.cfg); err != nil {
		return p, err
	}
	p.provider = s.provider
	t := r.RDMA()
	if s.c.String("provider") != providers.Auto || s.provider.Name() == verbs.ProviderName {
		return p, nil
	}
	if name, ok := software[t.PRTYPE]; ok {
		p.provider, err = w.providers.Get(name)
	}
	return p, err
}

// software are the software RNICs by what they speak.
var software = map[nvme.RDMAProvider]string{nvme.RDMARoCEv2: roce.Name, nvme.RDMAiWARP: iwarp.Name}

// connectAll connects to everything, one after the other.
func (w *world) connectAll(c *cli.Context) error {
	s, err := w.aimOperand(c)
	if err != nil {
		return err
	}
	holdOn(c, &s.cfg, false)
	s.cfg.IOQueues = c.Int("nr-io-queues")
	paths, err := w.paths(s)
	if err != nil {
		return err
	}
	var items []show.SubsystemItem
	var errs []error
	var host initiator.Status
	for i, to := range paths {
		p, st, err := w.connectPath(s, i, to)
		errs = append(errs, err)
		if err == nil {
			host = st
		}
		items = addPath(items, to.cfg.Subsystem, p)
	}
	if err := w.print(s, show.Subsystems(string(host.HostNQN), host.HostID.String(), items)); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// addPath adds a path to its subsystem.
func addPath(items []show.SubsystemItem, nqn nvme.NQN, p show.Path) []show.SubsystemItem {
	for i := range items {
		if items[i].NQN == string(nqn) {
			items[i].Paths = append(items[i].Paths, p)
			return items
		}
	}
	return append(items, show.SubsystemItem{Name: fmt.Sprintf("nvme-subsys%d", len(items)), NQN: string(nqn), Paths: []show.Path{p}})
}

// connectPath connects to a controller, looks at it and disconnects.
func (w *world) connectPath(s *session, i int, to path) (p show.Path, st initiator.Status, err error) {
	p = show.Path{
		Name: fmt.Sprintf("nvme%d", i), Transport: "rdma",
		TrAddr: to.cfg.Addr.Addr().String(), TrSvcID: fmt.Sprint(to.cfg.Addr.Port()),
	}
	ctrl, err := initiator.Connect(s.ctx, to.provider, to.cfg)
	if err != nil {
		p.State = err.Error()
		return p, st, err
	}
	defer func() { err = errors.Join(err, ctrl.Close()) }()
	st = ctrl.Status()
	p.HostTrAddr, p.State, p.Device = st.Local.Addr().String(), st.State.String(), st.Device
	p.CNTLID, p.Queues, p.Depth = st.CNTLID, st.IOQueues, st.Depth
	p.Namespaces, err = ctrl.ActiveNamespaces(s.ctx)
	return p, st, err
}

func (w *world) list(c *cli.Context) error {
	s, err := w.aimOperand(c)
	if err != nil {
		return err
	}
	holdOn(c, &s.cfg, false)
	paths, err := w.paths(s)
	if err != nil {
		return err
	}
	items := []show.NamespaceItem{}
	var errs []error
	seen := map[string]bool{}
	for _, to := range paths {
		found, err := w.namespacesOf(s, to)
		errs = append(errs, err)
		for _, n := range found {
			// Several paths lead to the same namespace.
			if id := fmt.Sprintf("%s/%d", n.NQN, n.NSID); !seen[id] {
				seen[id] = true
				items = append(items, n)
			}
		}
	}
	if err := w.print(s, show.List(items)); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// namespacesOf connects to a subsystem and looks at its namespaces.
func (w *world) namespacesOf(s *session, to path) (items []show.NamespaceItem, err error) {
	ctrl, err := initiator.Connect(s.ctx, to.provider, to.cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ctrl.Close()) }()
	nsids := []uint32{s.dev.nsid}
	if s.dev.nsid == 0 {
		if nsids, err = ctrl.ActiveNamespaces(s.ctx); err != nil {
			return nil, err
		}
	}
	for _, nsid := range nsids {
		id, err := ctrl.IdentifyNamespace(s.ctx, nsid)
		if err != nil {
			return items, fmt.Errorf("namespace %d of %s: %w", nsid, to.cfg.Subsystem, err)
		}
		items = append(items, namespaceItem(ctrl.Identity(), id, device{
			traddr: to.cfg.Addr.Addr().String(), trsvcid: fmt.Sprint(to.cfg.Addr.Port()), nqn: to.cfg.Subsystem, nsid: nsid,
		}))
	}
	return items, nil
}

func namespaceItem(ctrl *nvme.IdentifyController, id *nvme.IdentifyNamespace, d device) show.NamespaceItem {
	f := id.Format()
	return show.NamespaceItem{
		Node: d.String(), NQN: string(d.nqn), NSID: d.nsid,
		Serial: nvme.Text(ctrl.SN[:]), Model: nvme.Text(ctrl.MN[:]), Firmware: nvme.Text(ctrl.FR[:]),
		BlockSize: int(f.BlockSize()), Metadata: int(f.MS()), Blocks: id.NSZE, UsedBytes: id.NUSE * uint64(f.BlockSize()),
	}
}

func (w *world) showHost(c *cli.Context) error {
	o, err := showOptions(c)
	if err != nil {
		return err
	}
	var cfg initiator.Config
	if err := w.identify(&cfg, true); err != nil {
		return err
	}
	nqn, id := cfg.HostNQN, cfg.HostID
	if o.Format == show.Normal {
		_, err = fmt.Fprintf(w.stdout, "%s\nhostid: %v\n", nqn, id)
		return err
	}
	return show.Pairs(show.Object{{Key: "hostnqn", Value: nqn}, {Key: "hostid", Value: id}}).Write(w.stdout, o.Format)
}
