package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

// Defaults of Options.
const (
	DefaultConnections = 32
	DefaultQueues      = 2
	DefaultGrace       = 5 * time.Second
)

// handshakeTimeout is how long a client may negotiate.
const handshakeTimeout = time.Minute

// Options configure a Server. The zero value is usable.
type Options struct {
	// Name is the name of the export, at most 4096 bytes of UTF-8. Clients that
	// name none get it too. Default "".
	Name string
	// Description is for people. Default "".
	Description string
	// ReadOnly refuses all writes. A namespace that is write protected is
	// exported so in any case.
	ReadOnly bool
	// Connections is how many clients are served at the same time; others are
	// cut off. Default DefaultConnections. Each has at most 10 MiB of memory.
	Connections int
	// Queues is how many of the controller's I/O queues to take, fewer when
	// there are not so many. Clients share them. Default DefaultQueues.
	Queues int
	// Grace is how long clients have to take their replies when the server ends.
	// Default DefaultGrace.
	Grace time.Duration
	// Log gets what a person should know. Default nothing.
	Log *logrus.Logger
}

// volume is what a Server wants of an initiator.Namespace.
type volume interface {
	Size() int64
	BlockSize() int
	MaxTransfer() int
	MaxDiscard() int64
	MaxWriteZeroes() int64
	CanDiscard() bool
	CanWriteZeroes() bool
	Identity() (nvme.IdentifyNamespace, nvme.NSDescriptors)
	open(ctx context.Context) (queue, error)
}

type namespace struct{ *initiator.Namespace }

func (n namespace) open(ctx context.Context) (queue, error) { return n.Queue(ctx) }

// Server exports a namespace. It is made by New and ends with Serve or Close.
type Server struct {
	// Constant.

	vol   volume
	o     Options
	log   *logrus.Logger
	lanes []*lane

	closing atomic.Bool
	served  atomic.Bool
	clients atomic.Int32

	mu         sync.Mutex
	greeting   map[net.Conn]struct{} // in the handshake
	handshakes sync.WaitGroup
}

// New makes a Server of a namespace and takes I/O queues of its controller, which
// wait for the I/O that is on them. The error matches initiator.ErrNoQueue when
// none is left.
func New(ctx context.Context, n *initiator.Namespace, o Options) (*Server, error) {
	return newServer(ctx, namespace{n}, o)
}

func newServer(ctx context.Context, vol volume, o Options) (*Server, error) {
	if len(o.Name) > maxString || len(o.Description) > maxString || !utf8.ValidString(o.Name) || !utf8.ValidString(o.Description) {
		return nil, fmt.Errorf("nbd: name %.64q: expected at most %d bytes of UTF-8", o.Name, maxString)
	}
	if o.Connections < 0 || o.Queues < 0 || o.Grace < 0 {
		return nil, errors.New("nbd: a negative option")
	}
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.Connections, DefaultConnections)
	def(&o.Queues, DefaultQueues)
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.Log == nil {
		o.Log = logrus.New()
		o.Log.SetOutput(io.Discard)
	}
	s := &Server{vol: vol, o: o, log: o.Log, greeting: make(map[net.Conn]struct{})}
	for len(s.lanes) < o.Queues {
		err := s.addLane(ctx)
		if errors.Is(err, initiator.ErrNoQueue) && len(s.lanes) > 0 {
			s.log.Warnf("nbd: %d of %d queues", len(s.lanes), o.Queues)
			break
		}
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

func (s *Server) addLane(ctx context.Context) error {
	q, err := s.vol.open(ctx)
	if err != nil {
		return err
	}
	l, err := newLane(s, q)
	if err != nil {
		return errors.Join(err, q.Close())
	}
	s.lanes = append(s.lanes, l)
	return nil
}

// Queues is how many I/O queues the Server has.
func (s *Server) Queues() int { return len(s.lanes) }

// Clients is how many clients are connected.
func (s *Server) Clients() int { return int(s.clients.Load()) }

// errEnding is why connections are cut at the end.
var errEnding = errors.New("the server ends")

// Serve accepts clients on l until ctx ends; that is nil. Then it refuses what
// comes (NBD_ESHUTDOWN), finishes what is in flight, and ends connections, those
// of clients that do not take their replies after Options.Grace ("Terminating the
// transmission phase"). Commands in flight are waited for, within the time limits
// of the initiator; closing the controller ends them at once. Serve is called
// once, and closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.served.Swap(true) {
		return errors.Join(errors.New("nbd: Serve is called once"), l.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	err := s.accept(l)
	if !stop() {
		err = nil // ctx has ended
	}
	return errors.Join(err, ignoreClosed(l.Close()), s.shutdown())
}

// Close ends a Server that serves nobody: Serve ends the others.
func (s *Server) Close() error {
	if s.served.Swap(true) {
		return nil
	}
	return s.shutdown()
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// accept takes clients until the listener is closed.
func (s *Server) accept(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() && !errors.Is(err, net.ErrClosed) {
				s.log.Warnf("nbd: accept: %v", err)
				time.Sleep(100 * time.Millisecond) // until there are file descriptors again
				continue
			}
			return err
		}
		if n := s.clients.Add(1); int(n) > s.o.Connections {
			s.clients.Add(-1)
			s.log.Warnf("nbd: %s: cut off: %d clients are connected already", name(c), s.o.Connections)
			_ = c.Close()
			continue
		}
		s.mu.Lock()
		s.greeting[c] = struct{}{}
		s.mu.Unlock()
		s.handshakes.Go(func() { s.greet(c) })
	}
}

// name is a client in logs.
func name(c net.Conn) string {
	if a := c.RemoteAddr(); a != nil && a.String() != "" && a.String() != "@" {
		return a.String()
	}
	return "client"
}

// greet negotiates with a client and gives it to a lane.
func (s *Server) greet(c net.Conn) {
	h := &handshake{rw: c, x: s.export(), closing: s.closing.Load}
	err := c.SetDeadline(time.Now().Add(handshakeTimeout))
	if err == nil {
		err = h.run()
	}
	var fd int
	if err == nil {
		fd, err = descriptor(c)
	}
	s.mu.Lock()
	delete(s.greeting, c)
	s.mu.Unlock()
	_ = c.Close() // what is served is a duplicate
	if err != nil {
		s.clients.Add(-1)
		s.ended(name(c), err)
		return
	}
	l := s.lanes[0]
	for _, o := range s.lanes[1:] {
		if o.load.Load() < l.load.Load() {
			l = o
		}
	}
	l.load.Add(1)
	s.log.Infof("nbd: %s: connected", name(c))
	l.adopt(newConn(fd, h, name(c)))
}

// descriptor duplicates the descriptor of a connection, which does not block.
func descriptor(c net.Conn) (fd int, err error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("a connection of type %T", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var derr error
	err = raw.Control(func(own uintptr) { fd, derr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, os.NewSyscallError("fcntl", derr))
}

// export is the export as it is now.
func (s *Server) export() export {
	id, _ := s.vol.Identity()
	block := uint32(s.vol.BlockSize())
	x := export{
		name: s.o.Name, description: s.o.Description, size: uint64(s.vol.Size()),
		flags: flagHasFlags | flagSendFlush | flagSendFUA | flagCanMultiConn,
		block: block, preferred: preferred(&id, block), maximum: MaxPayload,
	}
	if s.o.ReadOnly || id.NSATTR&nvme.NSATTRWriteProtected != 0 {
		x.flags |= flagReadOnly
	}
	if s.vol.CanDiscard() {
		x.flags |= flagSendTrim
	}
	if s.vol.CanWriteZeroes() {
		x.flags |= flagSendWriteZeroes | flagSendFastZero
	}
	return x
}

// preferred is the preferred block size: the namespace's preferred write
// granularity where that is a power of two, at least 4096 ("Size constraints").
func preferred(id *nvme.IdentifyNamespace, block uint32) uint32 {
	size := max(block, 4096)
	if id.NSFEAT&nvme.NSFEATOptimalFields != 0 {
		if g := (uint32(id.NPWG) + 1) * block; bits.OnesCount32(g) == 1 && g <= 1<<20 {
			size = max(size, g)
		}
	}
	return size
}

// limits are those of a command now: they may change when the controller
// reconnects.
func (s *Server) limits() limits {
	return limits{s.vol.BlockSize(), s.vol.MaxTransfer(), s.vol.MaxDiscard(), s.vol.MaxWriteZeroes()}
}

// left is told by a lane of a connection that is over.
func (s *Server) left(l *lane, c *conn, err error) {
	l.load.Add(-1)
	s.clients.Add(-1)
	s.ended(c.name, err)
}

// ended logs the end of a connection.
func (s *Server) ended(name string, err error) {
	if ordinary(err) {
		s.log.Infof("nbd: %s: disconnected", name)
		return
	}
	s.log.Warnf("nbd: %s: %v", name, err)
}

// shutdown ends the handshakes, then the lanes.
func (s *Server) shutdown() error {
	s.closing.Store(true)
	s.mu.Lock()
	for c := range s.greeting {
		_ = c.SetDeadline(time.Now().Add(min(s.o.Grace, time.Second)))
	}
	s.mu.Unlock()
	s.handshakes.Wait()
	for _, l := range s.lanes {
		l.end(false)
	}
	kill := time.AfterFunc(s.o.Grace, func() {
		for _, l := range s.lanes {
			l.end(true)
		}
	})
	defer kill.Stop()
	var errs []error
	for _, l := range s.lanes {
		<-l.ended
	}
	for _, l := range s.lanes {
		errs = append(errs, ignoreClosed(l.close()))
	}
	return errors.Join(errs...)
}
