package initiator_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nvmf-go/nvmf/fabric/soft/roce"
	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

// Read and write a namespace like a file.
func ExampleConnect() {
	ctx := context.Background()
	provider, err := roce.New(roce.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	addr, err := initiator.ParseAddr(ctx, "192.168.1.20", "4420")
	if err != nil {
		log.Print(err)
		return
	}
	c, err := initiator.Connect(ctx, provider, initiator.Config{Addr: addr, Subsystem: "nqn.2026-11.io.nvmf:disk0"})
	if err != nil {
		log.Print(err) // says what the target finds fault with
		return
	}
	defer func() { _ = c.Close() }()
	n, err := c.Namespace(ctx, 1)
	if err != nil {
		log.Print(err)
		return
	}
	if _, err := n.WriteAt(make([]byte, n.BlockSize()), 0); err != nil {
		log.Print(err)
		return
	}
	if err := n.Flush(ctx); err != nil {
		log.Print(err)
		return
	}
	fmt.Println(n.Size(), "bytes")
}

// Keep an I/O queue busy without copies.
func ExampleQueue() {
	var (
		ctx = context.Background()
		n   *initiator.Namespace // of Controller.Namespace
	)
	q, err := n.Queue(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = q.Close() }()
	buf, err := initiator.NewBuffer(64 * 4096)
	if err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = buf.Close() }()
	ios := make([]initiator.IO, 64)
	for i := range ios {
		ios[i] = initiator.IO{Op: nvme.CmdRead, LBA: uint64(8 * i), Blocks: 8, Buf: buf, Offset: 4096 * i, Tag: uint64(i)}
	}
	results := make([]initiator.Result, 64)
	for left := len(ios); left > 0; {
		k, err := q.Submit(ios)
		if err != nil {
			log.Print(err)
			return
		}
		ios = ios[k:]
		if err := q.Wait(ctx); err != nil {
			log.Print(err)
			return
		}
		if k, err = q.Reap(results); err != nil {
			log.Print(err)
			return
		}
		for _, r := range results[:k] {
			if !r.OK() {
				log.Print(r.Status, r.Err)
				return
			}
		}
		left -= k
	}
}

// Find out what there is, and connect to it through every portal.
func ExampleConnectMultipath() {
	ctx := context.Background()
	provider, err := roce.New(roce.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	addr, err := initiator.ParseAddr(ctx, "192.168.1.20", "")
	if err != nil {
		log.Print(err)
		return
	}
	base := initiator.Config{Addr: addr, KeepAlive: 2 * time.Second}
	found, err := initiator.Discover(ctx, provider, base, initiator.DiscoverOptions{Referrals: true})
	if err != nil {
		log.Print(err)
		return
	}
	var paths []initiator.PathConfig
	for _, r := range found.Records {
		if r.SUBTYPE != nvme.SubsystemNVM {
			continue
		}
		cfg, err := r.Config(base)
		if err != nil {
			log.Print(err) // another transport
			continue
		}
		paths = append(paths, initiator.PathConfig{Provider: provider, Config: cfg})
	}
	m, err := initiator.ConnectMultipath(ctx, paths, initiator.MultipathConfig{Policy: initiator.QueueDepth})
	if err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = m.Close() }()
}
