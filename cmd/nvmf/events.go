package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/show"
)

// event is what happened to a controller or to one of its namespaces, as a line
// or as a JSON object of a line.
type event struct {
	Time      time.Time `json:"time"`
	NSID      uint32    `json:"nsid,omitempty"` // 0: the controller
	Event     string    `json:"event"`          // of a namespace: present, new, resized, gone; else the controller's state
	Bytes     uint64    `json:"bytes,omitempty"`
	BlockSize uint32    `json:"block_size,omitempty"`
}

func (e *event) String() string {
	at := e.Time.Format("15:04:05.000")
	switch {
	case e.NSID == 0:
		return fmt.Sprintf("%s controller: %s", at, e.Event)
	case e.Event == "gone":
		return fmt.Sprintf("%s namespace %d: gone", at, e.NSID)
	}
	return fmt.Sprintf("%s namespace %d: %s, %s in blocks of %d", at, e.NSID, e.Event, humanize.IBytes(e.Bytes), e.BlockSize)
}

// extent is a namespace as it was seen last.
type extent struct {
	bytes     uint64
	blockSize uint32
}

// watcher tells what the controller's notices mean. Its methods run one after
// another, on the goroutine of the notices.
type watcher struct {
	print func(event) error
	end   context.CancelCauseFunc // of the command
	seen  map[uint32]extent
	begun bool
}

func (w *watcher) tell(e event) {
	e.Time = time.Now()
	if err := w.print(e); err != nil {
		w.end(err)
	}
}

func (w *watcher) handler(ctx context.Context) initiator.Handler {
	look := func(c *initiator.Controller) {
		// A connection that breaks meanwhile is told of as that, and looked over again.
		if err := w.look(ctx, c); err != nil && c.State() == initiator.StateLive {
			w.end(err)
		}
	}
	return initiator.Handler{
		Namespaces: func(c *initiator.Controller, _ []uint32) { look(c) },
		State: func(c *initiator.Controller, s initiator.State) {
			w.tell(event{Event: s.String()})
			switch s {
			case initiator.StateLive:
				look(c)
			case initiator.StateLost:
				w.end(c.Status().LastError)
			}
		},
	}
}

// look compares the namespaces with those that were there last.
func (w *watcher) look(ctx context.Context, c *initiator.Controller) error {
	list, err := c.ActiveNamespaces(ctx)
	if err != nil {
		return err
	}
	now := map[uint32]extent{}
	for _, nsid := range list {
		id, err := c.IdentifyNamespace(ctx, nsid)
		switch {
		case errors.Is(err, initiator.ErrNoNamespace): // removed meanwhile: another notice is coming
		case err != nil:
			return err
		default:
			f := id.Format()
			now[nsid] = extent{id.NSZE << f.LBADS(), 1 << f.LBADS()}
		}
	}
	w.compare(now)
	return nil
}

func (w *watcher) compare(now map[uint32]extent) {
	for _, nsid := range slices.Sorted(maps.Keys(w.seen)) {
		if _, ok := now[nsid]; !ok {
			w.tell(event{NSID: nsid, Event: "gone"})
		}
	}
	for _, nsid := range slices.Sorted(maps.Keys(now)) {
		is := now[nsid]
		e := event{NSID: nsid, Bytes: is.bytes, BlockSize: is.blockSize}
		switch was, ok := w.seen[nsid]; {
		case !w.begun:
			e.Event = "present"
		case !ok:
			e.Event = "new"
		case was != is:
			e.Event = "resized"
		default:
			continue
		}
		w.tell(e)
	}
	w.seen, w.begun = now, true
}

func (w *world) eventsCommand() *cli.Command {
	return &cli.Command{
		Name: "events", Usage: "stay connected and tell when namespaces come, go or change, and when the connection does", ArgsUsage: "[DEVICE]",
		Description: "The namespaces that are present come first. Each line is one event; with -o json\neach is an object. Ends with an interrupt, or when reconnecting was given up.",
		Flags:       append([]cli.Flag{outputFlag()}, connectFlags()...),
		Action:      w.events,
	}
}

func (w *world) events(c *cli.Context) (err error) {
	name, err := operand(c)
	if err != nil {
		return err
	}
	o, err := showOptions(c)
	if err == nil && o.Format == show.Binary {
		err = usagef("events: -o binary: expected normal or json")
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(c.Context)
	defer cancel(nil)
	watch := &watcher{end: cancel, print: func(e event) error { return w.printEvent(&e, o.Format) }}
	s, err := w.open(c, name, needs{long: true, handler: watch.handler(ctx)})
	if err != nil {
		return err
	}
	defer s.close(&err)
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func (w *world) printEvent(e *event, f show.Format) error {
	if f == show.JSON {
		return json.NewEncoder(w.stdout).Encode(e)
	}
	_, err := fmt.Fprintln(w.stdout, e)
	return err
}
