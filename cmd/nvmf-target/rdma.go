package main

import (
	"github.com/urfave/cli/v2"
)

func rdmaCommand() *cli.Command { return &cli.Command{Name: "rdma"} }
