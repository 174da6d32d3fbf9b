// Package admin is the daemon's front desk: a unix socket that answers status
// and reload in JSON over HTTP, and, where the file asks for it, an address
// with metrics and profiles.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nvmf-go/nvmf/internal/daemon"
)

// Control is what a daemon lets others ask.
type Control interface {
	Status(ctx context.Context) (*daemon.Status, error)
	// Reload fails when the file has mistakes; what could not be applied is in
	// the result.
	Reload(ctx context.Context) (*daemon.Result, error)
}

// statusTimeout bounds how long a stuck poll group can hold an answer back.
const statusTimeout = 2 * time.Second

// Server is the socket and the address.
type Server struct {
	socket, http net.Listener // nil when not wanted
	path         string
	servers      []*http.Server
}

// Listen binds the unix socket at path ("none": no socket) and the address
// ("": none) but answers only after Serve. A socket that a dead daemon left is
// replaced; one that answers is an error.
func Listen(path, address string) (*Server, error) {
	s := &Server{path: path}
	var err error
	if path != "none" {
		if s.socket, err = listenUnix(path); err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
	}
	if address != "" {
		if s.http, err = net.Listen("tcp", address); err != nil {
			s.Close()
			return nil, fmt.Errorf("metrics address: %w", err)
		}
	}
	return s, nil
}

func listenUnix(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("%s: another nvmf-target answers there", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s: exists and is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// Whoever can write to it can reload: the owner alone.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Serve starts answering.
func (s *Server) Serve(c Control) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(c), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	if s.http != nil {
		s.run(s.http, mux)
	}
	if s.socket != nil {
		ctl := http.NewServeMux()
		ctl.Handle("GET /", mux)
		ctl.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) { answerStatus(w, r, c) })
		ctl.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) { answerReload(w, r, c) })
		s.run(s.socket, ctl)
	}
}

func (s *Server) run(l net.Listener, h http.Handler) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	s.servers = append(s.servers, srv)
	go func() { _ = srv.Serve(l) }() // ends with Close, which has the error
}

func answerStatus(w http.ResponseWriter, r *http.Request, c Control) {
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	st, err := c.Status(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	answer(w, st)
}

func answerReload(w http.ResponseWriter, r *http.Request, c Control) {
	// Who asked may go; what was begun goes on.
	res, err := c.Reload(context.WithoutCancel(r.Context()))
	out := Reload{}
	if err != nil {
		out.Errors = []string{err.Error()}
	} else {
		out.Changes, out.Restart = res.Changes, res.Restart
		for _, e := range res.Errors {
			out.Errors = append(out.Errors, e.Error())
		}
	}
	answer(w, out)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the peer has gone when this fails
}

// Close ends both and removes the socket's file. Closing twice is nil.
func (s *Server) Close() error {
	var errs []error
	for _, srv := range s.servers {
		errs = append(errs, srv.Close())
	}
	for _, l := range []net.Listener{s.socket, s.http} {
		if l == nil {
			continue
		}
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	s.servers, s.socket, s.http = nil, nil, nil
	return errors.Join(errs...)
}
