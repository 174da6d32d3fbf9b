package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/nvmf-go/nvmf/internal/daemon"
)

// Reload is the answer to a reload.
type Reload struct {
	Changes []string `json:"changes"`
	Errors  []string `json:"errors"`
	Restart []string `json:"restart"` // keys that wait for a restart
}

// Client asks a running daemon over its socket.
type Client struct {
	path string
	http *http.Client
}

// NewClient makes a client of the socket at path.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return &Client{path, &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Status asks for the daemon's state.
func (c *Client) Status(ctx context.Context) (*daemon.Status, error) {
	st := new(daemon.Status)
	return st, c.ask(ctx, http.MethodGet, "/v1/status", st)
}

// Reload makes the daemon read its file again.
func (c *Client) Reload(ctx context.Context) (*Reload, error) {
	r := new(Reload)
	return r, c.ask(ctx, http.MethodPost, "/v1/reload", r)
}

func (c *Client) ask(ctx context.Context, method, path string, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://nvmf-target"+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var asked *url.Error // which names an URL that nobody knows
		if errors.As(err, &asked) {
			err = asked.Err
		}
		return fmt.Errorf("no daemon answers on %s: %w", c.path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // the status says enough without it
		return fmt.Errorf("%s: %s: %s", c.path, resp.Status, strings.TrimSpace(string(b)))
	}
	return json.NewDecoder(resp.Body).Decode(v)
}
