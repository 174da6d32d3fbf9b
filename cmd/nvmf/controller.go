package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/nvme"
)

func (w *world) controllerCommands() []*cli.Command {
	return []*cli.Command{
		w.verb("id-ctrl", "show Identify Controller", needs{}, []cli.Flag{outputFlag(), humanFlag(), rawFlag()}, w.idCtrl),
		w.verb("list-ns", "list the namespaces of the controller", needs{}, []cli.Flag{
			outputFlag(), rawFlag(),
			&cli.UintFlag{Name: "from", Usage: "list namespaces from this ID on"},
			&cli.BoolFlag{Name: "all", Usage: "those too that are not attached to the controller"},
		}, w.listNS),
		w.eventsCommand(),
		w.verb("reset", "reset the controller (CC.EN) and connect it anew", needs{long: true}, nil, w.reset),
	}
}

func (w *world) namespaceCommands() []*cli.Command {
	flags := func() []cli.Flag { return []cli.Flag{namespaceFlag(), outputFlag(), humanFlag(), rawFlag()} }
	return []*cli.Command{
		w.verb("id-ns", "show Identify Namespace", needs{}, flags(), w.idNS),
		w.verb("cmdset-ind-id-ns", "show Identify Namespace, the part that is the same for all command sets", needs{}, flags(), w.idNSIndependent),
		w.verb("ns-descs", "show the identifiers of the namespace", needs{}, flags(), w.nsDescs),
	}
}

func (w *world) idCtrl(s *session) error {
	b, err := s.ctrl.Identify(s.ctx, nvme.CNSController, 0, nvme.CSINVM, 0)
	if err != nil {
		return err
	}
	var id nvme.IdentifyController
	if err := id.Unmarshal(b); err != nil {
		return err
	}
	return w.print(s, show.Controller(&id, b, s.show))
}

func (w *world) listNS(s *session) error {
	cns, from := nvme.CNSActiveList, uint32(0)
	if s.c.Bool("all") {
		cns = nvme.CNSAllocatedList
	}
	if n := s.c.Uint("from"); n > 0 {
		from = uint32(n) - 1 // the list is of greater IDs
	}
	b, err := s.ctrl.Identify(s.ctx, cns, from, nvme.CSINVM, 0)
	if err != nil {
		return err
	}
	list, err := nvme.ParseNSList(b)
	if err != nil {
		return err
	}
	return w.print(s, show.NamespaceList(list))
}

func (w *world) reset(s *session) error {
	start := time.Now()
	if err := s.ctrl.Reset(s.ctx); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w.stdout, "controller %d of %s was reset and is %v again after %v\n",
		s.ctrl.ID(), s.dev.nqn, s.ctrl.State(), time.Since(start).Round(time.Microsecond))
	return err
}

func (w *world) idNS(s *session) error {
	nsid, err := s.nsid()
	if err != nil {
		return err
	}
	b, err := s.ctrl.Identify(s.ctx, nvme.CNSNamespace, nsid, nvme.CSINVM, 0)
	if err != nil {
		return err
	}
	var id nvme.IdentifyNamespace
	if err := id.Unmarshal(b); err != nil {
		return err
	}
	if id == (nvme.IdentifyNamespace{}) {
		return fmt.Errorf("%w: %d is not active", initiator.ErrNoNamespace, nsid)
	}
	return w.print(s, show.Namespace(nsid, &id, b, s.show))
}

func (w *world) idNSIndependent(s *session) error {
	nsid, err := s.nsid()
	if err != nil {
		return err
	}
	b, err := s.ctrl.Identify(s.ctx, nvme.CNSNamespaceIndep, nsid, nvme.CSINVM, 0)
	if err != nil {
		return err
	}
	var id nvme.IdentifyNamespaceIndependent
	if err := id.Unmarshal(b); err != nil {
		return err
	}
	return w.print(s, show.NamespaceIndependent(nsid, &id, b, s.show))
}

func (w *world) nsDescs(s *session) error {
	nsid, err := s.nsid()
	if err != nil {
		return err
	}
	b, err := s.ctrl.Identify(s.ctx, nvme.CNSDescriptors, nsid, nvme.CSINVM, 0)
	if err != nil {
		return err
	}
	return w.print(s, show.Descriptors(nsid, b))
}
