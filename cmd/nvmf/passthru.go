package main

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/nvme"
)

// passthruFlags are the fields of a command. CID, PSDT and SGL are the host's.
func passthruFlags() []cli.Flag {
	flags := []cli.Flag{
		&cli.UintFlag{Name: "opcode", Usage: "opcode"}, namespaceFlag(), outputFlag(), rawFlag(),
		sizeFlag("data-len", "l", 0, "bytes of data"),
		&cli.StringFlag{Name: "input-file", Aliases: []string{"d"}, Usage: "file with the data to send; - is standard input"},
		&cli.BoolFlag{Name: "show-command", Usage: "print the command before it is sent"},
		&cli.BoolFlag{Name: "dry-run", Usage: "print the command, and do not send it"},
	}
	for n := 2; n <= 15; n++ {
		if n <= 3 || n >= 10 {
			flags = append(flags, &cli.UintFlag{Name: fmt.Sprintf("cdw%d", n), Usage: fmt.Sprintf("command dword %d", n)})
		}
	}
	return flags
}

func (w *world) passthruCommands() []*cli.Command {
	return []*cli.Command{
		w.verb("admin-passthru", "send any admin command", needs{}, passthruFlags(), func(s *session) error {
			return w.passthru(s, func(cmd nvme.Command, data []byte) (uint64, error) { return s.ctrl.Admin(s.ctx, cmd, data) })
		}, "opcode"),
		w.verb("io-passthru", "send any I/O command", needs{queues: 1}, passthruFlags(), func(s *session) error {
			return w.passthru(s, func(cmd nvme.Command, data []byte) (uint64, error) { return s.ctrl.IOCommand(s.ctx, cmd, data, true) })
		}, "opcode"),
	}
}

// passthruCommand makes the command of the options.
func passthruCommand(s *session) (nvme.Command, error) {
	op := s.c.Uint("opcode")
	if op > math.MaxUint8 {
		return nil, usagef("--opcode %d: expected at most 255", op)
	}
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Init(nvme.Opcode(op), s.dev.nsid)
	for n := 2; n <= 15; n++ {
		name := fmt.Sprintf("cdw%d", n)
		if !s.c.IsSet(name) {
			continue
		}
		if err := fits(s.c, map[string]uint64{name: math.MaxUint32}); err != nil {
			return nil, err
		}
		cmd.SetCDW(n, uint32(s.c.Uint(name)))
	}
	return cmd, nil
}

// passthruData is the memory for the command's data, filled when it is to be
// sent.
func (w *world) passthruData(s *session, cmd nvme.Command) ([]byte, error) {
	n, err := size(s.c, "data-len")
	if err != nil {
		return nil, err
	}
	if n > int64(s.ctrl.MaxTransfer()) {
		return nil, usagef("--data-len %d: one command moves at most %d", n, s.ctrl.MaxTransfer())
	}
	data := make([]byte, n)
	if n == 0 || cmd.Opcode().Direction()&nvme.DataToController == 0 {
		return data, nil
	}
	name := s.c.String("input-file")
	if name == "" {
		return nil, usagef("%s has data: --input-file FILE", s.c.Command.Name)
	}
	return data, w.fill(name, data)
}

func (w *world) passthru(s *session, send func(nvme.Command, []byte) (uint64, error)) error {
	cmd, err := passthruCommand(s)
	if err != nil {
		return err
	}
	if s.c.Bool("show-command") || s.c.Bool("dry-run") {
		w.showCommand(cmd)
	}
	if s.c.Bool("dry-run") {
		return nil
	}
	data, err := w.passthruData(s, cmd)
	if err != nil {
		return err
	}
	result, err := send(cmd, data)
	if err != nil {
		return err
	}
	title := fmt.Sprintf("command %#02x succeeded, result: 0x%08x", uint8(cmd.Opcode()), uint32(result))
	if len(data) == 0 || cmd.Opcode().Direction()&nvme.DataToHost == 0 {
		_, err = fmt.Fprintln(w.stdout, title)
		return err
	}
	return w.print(s, show.Bytes(title, data))
}

// showCommand prints the fields of a command.
func (w *world) showCommand(cmd nvme.Command) {
	fmt.Fprintf(w.stderr, "opcode       : %02x\nnsid         : %08x\n", uint8(cmd.Opcode()), cmd.NSID())
	for n := 2; n <= 15; n++ {
		if n <= 3 || n >= 10 {
			fmt.Fprintf(w.stderr, "cdw%-10d: %08x\n", n, binary.LittleEndian.Uint32(cmd[4*n:]))
		}
	}
}
