package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/file"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/backend/null"
	"github.com/nvmf-go/nvmf/internal/config"
)

// backendState is an open backend and the configuration it was opened with.
type backendState struct {
	cfg config.Backend
	dev backend.Device
}

// memHeadroom is how far a mem backend may grow by reload, as a factor: that
// much address space is set aside.
const memHeadroom = 16

func openBackend(b config.Backend) (dev backend.Device, err error) {
	switch b.Type {
	case "file":
		dev, err = file.Open(file.Options{
			Path: b.Path, Size: uint64(b.Size), BlockSize: uint32(b.BlockSize), ReadOnly: b.ReadOnly,
			Create: b.Size > 0 && !b.ReadOnly, Grow: !b.ReadOnly,
			Engine: file.Engine(b.Engine), Direct: file.Direct(b.Direct),
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

// resizer is implemented by devices whose size is their own.
type resizer interface{ Resize(size uint64) error }

// resize brings an open backend to the size of its new configuration. Files
// grow; nothing that holds data is ever cut.
func (b *backendState) resize(to config.Backend) error {
	old := b.cfg.Size
	if to.Size == old {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("backend %s: size %v: %w", to.Name, to.Size, err) }
	if r, ok := b.dev.(resizer); ok {
		if err := r.Resize(uint64(to.Size)); err != nil {
			return fail(err)
		}
		b.cfg = to
		return nil
	}
	info := b.dev.Info()
	now := info.Blocks * uint64(info.BlockSize)
	switch {
	case uint64(to.Size) <= now:
		if uint64(to.Size) < now && to.Size > 0 {
			return fail(fmt.Errorf("%w: the medium has %d bytes and is never cut; shrink it by hand, then reload", backend.ErrSize, now))
		}
	case to.Type != "file" || to.ReadOnly:
		return fail(fmt.Errorf("%w: cannot grow", backend.ErrSize))
	default:
		if err := growFile(to.Path, int64(to.Size)); err != nil {
			return fail(err)
		}
	}
	b.cfg = to
	return nil
}

func growFile(path string, size int64) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%w: a block device cannot be grown from here", backend.ErrSize)
	}
	return os.Truncate(path, size)
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
		dev, err := openBackend(b)
		if err != nil {
			r.fail(err)
			continue
		}
		d.backends[b.Name] = &backendState{b, dev}
		info := dev.Info()
		r.did("backend %s: %s, %d blocks of %d bytes, %s", b.Name, b.Type, info.Blocks, info.BlockSize, info.Engine)
	}
}

// closeBackends closes backends that f has no more or has changed.
func (d *Daemon) closeBackends(ctx context.Context, f *config.File, r *Result) {
	for name, b := range d.backends {
		if want := f.Backend(name); want != nil && sameMedium(b.cfg, *want) {
			continue
		}
		delete(d.backends, name)
		if err := b.dev.Close(); err != nil {
			// Its queues are still ending. The medium stays locked until they have.
			r.fail(fmt.Errorf("backend %s: closing: %w", name, err))
			go closeLater(context.WithoutCancel(ctx), b.dev, d.log)
			continue
		}
		r.did("backend %s: closed", name)
	}
}
