package nvme

import "fmt"

// ANAState is an asymmetric namespace access state (Base 8.1).
type ANAState uint8

// ANA states.
const (
	ANAOptimized           ANAState = 0x01
	ANANonOptimized        ANAState = 0x02
	ANAStateInaccessible   ANAState = 0x03
	ANAStatePersistentLoss ANAState = 0x04
	ANAStateChange         ANAState = 0x0F
)

var anaStateNames = map[ANAState]string{
	ANAOptimized: "optimized", ANANonOptimized: "non-optimized", ANAStateInaccessible: "inaccessible",
	ANAStatePersistentLoss: "persistent-loss", ANAStateChange: "change",
}

func (s ANAState) String() string { return nameOf(anaStateNames, s, "ANA state") }

// Sizes in bytes of log page 0Ch. A group is followed by its NSIDs, 4 bytes each.
const (
	ANAHeaderSize = 16
	ANAGroupSize  = 32
)

// ANALogGroupsOnly is the LSP of Get Log Page that asks for groups without NSIDs
// (RGO).
const ANALogGroupsOnly uint8 = 1

// ANAGroup is a group of log page 0Ch.
type ANAGroup struct {
	ID    uint32
	Count uint64 // change count, 0 when not reported
	State ANAState
	// NSIDs of the group, ascending; none when RGO was asked for.
	NSIDs []uint32
}

// ANALogSize is the size in bytes of a log of the given numbers of groups and of
// namespaces in all of them.
func ANALogSize(groups, namespaces int) int {
	return ANAHeaderSize + ANAGroupSize*groups + 4*namespaces
}

// AppendANALog appends log page 0Ch: the change count and the groups, which
// ascend by ID.
func AppendANALog(b []byte, change uint64, groups []ANAGroup) []byte {
	b = le.AppendUint64(b, change)
	b = le.AppendUint16(b, uint16(len(groups)))
	b = append(b, 0, 0, 0, 0, 0, 0)
	for _, g := range groups {
		b = le.AppendUint32(b, g.ID)
		b = le.AppendUint32(b, uint32(len(g.NSIDs)))
		b = le.AppendUint64(b, g.Count)
		b = append(b, byte(g.State), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		for _, id := range g.NSIDs {
			b = le.AppendUint32(b, id)
		}
	}
	return b
}

// ParseANALog reads log page 0Ch, which may be followed by other bytes. The
// lists that it makes are no longer than b.
func ParseANALog(b []byte) (change uint64, groups []ANAGroup, err error) {
	if len(b) < ANAHeaderSize {
		return 0, nil, &LengthError{"ANA log", len(b), ANAHeaderSize}
	}
	n := int(le.Uint16(b[8:]))
	if n > (len(b)-ANAHeaderSize)/ANAGroupSize {
		return 0, nil, fmt.Errorf("nvme: ANA log of %d bytes cannot hold %d groups", len(b), n)
	}
	change = le.Uint64(b)
	groups = make([]ANAGroup, n)
	rest := b[ANAHeaderSize:]
	for i := range groups {
		if rest, err = groups[i].unmarshal(rest); err != nil {
			return 0, nil, fmt.Errorf("nvme: ANA log, group %d of %d: %w", i, n, err)
		}
	}
	return change, groups, nil
}

func (g *ANAGroup) unmarshal(b []byte) (rest []byte, err error) {
	if len(b) < ANAGroupSize {
		return nil, &LengthError{"descriptor", len(b), ANAGroupSize}
	}
	g.ID, g.Count, g.State = le.Uint32(b), le.Uint64(b[8:]), ANAState(b[16]&0xF)
	n := int64(le.Uint32(b[4:]))
	b = b[ANAGroupSize:]
	if n > int64(len(b)/4) {
		return nil, fmt.Errorf("%d bytes cannot hold %d namespaces", len(b), n)
	}
	g.NSIDs = make([]uint32, n)
	for i := range g.NSIDs {
		g.NSIDs[i] = le.Uint32(b[4*i:])
	}
	return b[4*n:], nil
}
