package curves

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/internal/admin"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/daemon"
)

// The test's program is daemon and host too, so that points can be measured as
// they are, with real processes.
func TestMain(m *testing.M) {
	if len(os.Args) == 1 || os.Args[1] != "serve" && os.Args[1] != HostArgument {
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	var err error
	if os.Args[1] == HostArgument {
		err = Host(ctx, os.Stdin, os.Stdout)
	} else {
		err = serve(ctx, os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// control is a daemon for the socket.
type control struct{ *daemon.Daemon }

func (control) Reload(context.Context) (*daemon.Result, error) { return &daemon.Result{}, nil }

func serve(ctx context.Context, file string) error {
	f, err := config.Load(file)
	if err != nil {
		return err
	}
	s, err := admin.Listen(f.Admin.Socket, "")
	if err != nil {
		return err
	}
	defer s.Close()
	log := logrus.New()
	log.SetOutput(os.Stderr)
	d, err := daemon.Start(ctx, f, daemon.Options{Log: log})
	if err != nil {
		return err
	}
	s.Serve(control{d})
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return d.Close(end)
}
