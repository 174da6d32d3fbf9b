package daemon

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/file"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/backend/null"
	"github.com/nvmf-go/nvmf/internal/config"
)

// backendState is an open backend and the configuration it was opened with.
type backendState struct {
	cfg    config.Backend
	medium backend.Device
	cache  *cacheState    // over the medium; nil when there is none
	dev    backend.Device // what namespaces see: one of the two
}

// openState opens a backend, with its cache.
func (d *Daemon) openState(b config.Backend) (*backendState, error) {
	medium, err := d.open(b)
	if err != nil {
		return nil, err
	}
	s := &backendState{cfg: b, medium: medium, dev: medium}
	if !b.Cache.On() {
		return s, nil
	}
	if s.cache, err = d.addCache(b, medium); err != nil {
		return nil, errors.Join(err, medium.Close())
	}
	s.dev = s.cache.dev
	return s, nil
}

// closeState fails with backend.ErrBusy, and nothing is done, while queues are
// open.
func (d *Daemon) closeState(b *backendState) error {
	err := b.dev.Close()
	if errors.Is(err, backend.ErrBusy) || b.cache == nil {
		return err
	}
	return errors.Join(err, d.drop(b.cache))
}

// memHeadroom is how far a mem backend may grow by reload, as a factor: that
// much address space is set aside.
const memHeadroom = 16

// fileEngines are the engines of a file by their names in the configuration.
var fileEngines = map[string]file.Engine{"auto": file.EngineAuto, "io_uring": file.EngineURing, "threads": file.EnginePool}

func openBackend(b config.Backend) (dev backend.Device, err error) {
	switch b.Type {
	case "file":
		dev, err = file.Open(file.Options{
			Path: b.Path, Size: uint64(b.Size), BlockSize: uint32(b.BlockSize), ReadOnly: b.ReadOnly,
			Create: b.Size > 0 && !b.ReadOnly, Grow: !b.ReadOnly,
			Engine: fileEngines[b.Engine], Direct: file.Direct(b.Direct),
		})
	case "mem":
		dev, err = mem.Open(mem.Options{
			Size: uint64(b.Size), BlockSize: uint32(b.BlockSize), ReadOnly: b.ReadOnly, MaxSize: uint64(b.Size) * memHeadroom,
		})
	case "null":
		dev, err = null.Open(null.Options{Size: uint64(b.Size), BlockSize: uint32(b.BlockSize), ReadOnly: b.ReadOnly})
	default:
		err = fmt.Errorf("type %q: %w", b.Type, errors.ErrUnsupported)
	}
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w", b.Name, err)
	}
	return dev, nil
}

// sameMedium says whether b can become c without being opened again: all but
// the size is the same.
func sameMedium(b, c config.Backend) bool {
	b.Size = c.Size
	return b == c
}

// resizer is implemented by devices whose size is their own, grower by those
// that can be made larger.
type (
	resizer interface{ Resize(size uint64) error }
	grower  interface{ Grow(size uint64) error }
)

// resize brings an open backend to the size of its new configuration. Files
// grow; nothing that holds data is ever cut.
func (b *backendState) resize(to config.Backend) error {
	if err := b.fit(to); err != nil {
		return fmt.Errorf("backend %s: size %v: %w", to.Name, to.Size, err)
	}
	b.cfg = to
	_, err := b.dev.Refresh() // a cache has to learn it
	return err
}

func (b *backendState) fit(to config.Backend) error {
	size := uint64(to.Size)
	if r, ok := b.medium.(resizer); ok {
		return r.Resize(size)
	}
	if _, err := b.medium.Refresh(); err != nil { // somebody may have shrunk it by hand
		return err
	}
	info := b.medium.Info()
	now := info.Blocks * uint64(info.BlockSize)
	g, grows := b.medium.(grower)
	switch {
	case size == 0 || size == now: // as it is
		return nil
	case size < now:
		return fmt.Errorf("%w: the medium has %d bytes and is never cut; shrink it by hand, then reload", backend.ErrSize, now)
	case !grows || to.ReadOnly:
		return fmt.Errorf("%w: cannot grow", backend.ErrSize)
	}
	return g.Grow(size)
}

// openBackends opens what is new and closes what went or changed; the
// namespaces of those are gone by now.
func (d *Daemon) openBackends(f *config.File, r *Result) {
	for _, b := range f.Backends {
		old := d.backends[b.Name]
		if old != nil {
			if b.Size != old.cfg.Size {
				if err := old.resize(b); err != nil {
					r.fail(err)
					continue
				}
				r.did("backend %s: size %v", b.Name, b.Size)
			}
			continue
		}
		s, err := d.openState(b)
		if err != nil {
			r.fail(fmt.Errorf("%w%s", err, without(f, b.Name)))
			continue
		}
		d.backends[b.Name] = s
		info := s.dev.Info()
		r.did("backend %s: %s, %d blocks of %d bytes, %s", b.Name, b.Type, info.Blocks, info.BlockSize, info.Engine)
	}
}

// without says which namespaces there cannot be without a backend.
func without(f *config.File, name string) string {
	var missing []string
	for _, s := range f.Subsystems {
		for _, n := range s.Namespaces {
			if n.Backend == name {
				missing = append(missing, fmt.Sprintf("%s namespace %d", s.NQN, n.NSID))
			}
		}
	}
	if missing == nil {
		return ""
	}
	return " (hence no " + strings.Join(missing, ", ") + ")"
}

// closeBackends closes backends that f has no more or has changed.
func (d *Daemon) closeBackends(f *config.File, r *Result) {
	for name, b := range d.backends {
		if want := f.Backend(name); want != nil && sameMedium(b.cfg, *want) {
			continue
		}
		delete(d.backends, name)
		if err := d.closeState(b); err != nil {
			// Its queues are still ending. The medium stays locked until they have.
			r.fail(fmt.Errorf("backend %s: closing: %w", name, err))
			go d.closeLater(b)
			continue
		}
		r.did("backend %s: closed", name)
	}
}

// closeLater closes a backend once its queues have ended.
func (d *Daemon) closeLater(b *backendState) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-d.life.Done():
			return
		case <-t.C:
		}
		if err := d.closeState(b); !errors.Is(err, backend.ErrBusy) {
			d.log.Infof("backend %s: closed at last (%v)", b.cfg.Name, err)
			return
		}
	}
}
