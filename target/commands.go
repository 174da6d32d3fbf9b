package target

import "github.com/nvmf-go/nvmf/nvme"

// command is how the core runs the commands of one opcode.
type command struct {
	// prepare checks the SQE and says what data moves.
	prepare func(*Queue, *Request) (Transfer, nvme.Status)
	// execute runs it, and ends or leads to Queue.finish.
	execute func(*Queue, *Request)
	// resume goes on after a backend operation that execute or resume has
	// enqueued; nil means that the command ends with the operation's status.
	resume func(*Queue, *Request, nvme.Status)
	// op is what the counters take it for.
	op Op
	// effects is its entry of the Commands Supported and Effects log.
	effects nvme.Effects
	// discovery says that discovery controllers have the command.
	discovery bool
}

// The commands that exist, by opcode and by fabrics command type. Everything
// that Identify and the logs say of supported commands is read from here.
var (
	adminCommands   [256]command
	ioCommands      [256]command
	fabricsCommands [256]command
)

// Entries of the Commands Supported and Effects log. I/O commands report no
// scope, though there is a field for it: Linux warns of any bit there that it
// does not know.
const (
	adminEffects  = nvme.EffectSupported | nvme.EffectScopeController
	readsBlocks   = nvme.EffectSupported
	changesBlocks = nvme.EffectSupported | nvme.EffectContentChange
)

// The tables name functions that read the tables, hence not in their
// declarations.
func init() {
	fabricsCommands[nvme.FabricsConnect] = command{prepare: prepareConnect, execute: executeConnect, op: OpOther}
	fabricsCommands[nvme.FabricsPropertyGet] = command{prepare: prepareProperty, execute: executePropertyGet, op: OpOther}
	fabricsCommands[nvme.FabricsPropertySet] = command{prepare: prepareProperty, execute: executePropertySet, op: OpOther}
	fabricsCommands[nvme.FabricsDisconnect] = command{prepare: prepareDisconnect, execute: executeDisconnect, op: OpOther}

	admin := func(o nvme.Opcode, c command) {
		c.op = OpOther
		c.effects = adminEffects
		adminCommands[o] = c
	}
	admin(nvme.AdminGetLogPage, command{prepare: prepareLogPage, execute: executeLogPage, discovery: true})
	admin(nvme.AdminIdentify, command{prepare: prepareIdentify, execute: executeIdentify, discovery: true})
	admin(nvme.AdminAbort, command{prepare: prepareNoData, execute: executeAbort})
	admin(nvme.AdminSetFeatures, command{prepare: prepareSetFeatures, execute: executeSetFeatures, discovery: true})
	admin(nvme.AdminGetFeatures, command{prepare: prepareGetFeatures, execute: executeGetFeatures, discovery: true})
	admin(nvme.AdminAsyncEvent, command{prepare: prepareNoData, execute: executeAsyncEvent, discovery: true})
	admin(nvme.AdminKeepAlive, command{prepare: prepareKeepAlive, execute: executeNothing, discovery: true})

	ioCommands[nvme.CmdFlush] = command{prepare: prepareFlush, execute: executeFlush, resume: resumeFlush, op: OpFlush, effects: readsBlocks}
	ioCommands[nvme.CmdWrite] = command{prepare: prepareWrite, execute: executeTransfer, op: OpWrite, effects: changesBlocks}
	ioCommands[nvme.CmdRead] = command{prepare: prepareRead, execute: executeTransfer, resume: resumeRead, op: OpRead, effects: readsBlocks}
	ioCommands[nvme.CmdCompare] = command{prepare: prepareCompare, execute: executeScan, resume: resumeCompare, op: OpCompare, effects: readsBlocks}
	ioCommands[nvme.CmdVerify] = command{prepare: prepareVerify, execute: executeScan, resume: resumeVerify, op: OpVerify, effects: readsBlocks}
	ioCommands[nvme.CmdWriteZeroes] = command{prepare: prepareWriteZeroes, execute: executeTransfer, op: OpWriteZeroes, effects: changesBlocks}
	ioCommands[nvme.CmdDatasetManagement] = command{prepare: prepareDSM, execute: executeDSM, resume: resumeDSM, op: OpDSM, effects: changesBlocks}
}

// prepareNoData is of commands whose SQE needs no check.
func prepareNoData(*Queue, *Request) (Transfer, nvme.Status) { return Transfer{}, nvme.Success }

// executeNothing is of commands that have done their work by arriving.
func executeNothing(q *Queue, r *Request) { q.finish(r, nvme.Success) }

// lookupFabrics finds a fabrics command.
//
//	new    Connect
//	admin  Property Get, Property Set; a second Connect is refused by it
//	io     Disconnect; likewise
func (q *Queue) lookupFabrics(r *Request) (*command, nvme.Status) {
	c := &fabricsCommands[r.Cmd.FCType()]
	switch {
	case q.state >= queueDeleted:
		return nil, nvme.AbortedSQDeletion
	case c.prepare == nil:
		return nil, r.bad(nvme.InvalidOpcode, locFCType, 0)
	case q.state == queueNew && r.Cmd.FCType() != nvme.FabricsConnect:
		return nil, nvme.CommandSequenceError | nvme.StatusDNR
	}
	return c, nvme.Success
}
