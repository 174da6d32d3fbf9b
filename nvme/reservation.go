package nvme

// ReservationType is RTYPE (Base 7.2).
type ReservationType uint8

// Reservation types.
const (
	ReservationNone                           ReservationType = 0
	ReservationWriteExclusive                 ReservationType = 1
	ReservationExclusiveAccess                ReservationType = 2
	ReservationWriteExclusiveRegistrantsOnly  ReservationType = 3
	ReservationExclusiveAccessRegistrantsOnly ReservationType = 4
	ReservationWriteExclusiveAllRegistrants   ReservationType = 5
	ReservationExclusiveAccessAllRegistrants  ReservationType = 6
)

var reservationTypeNames = map[ReservationType]string{
	ReservationNone: "none", ReservationWriteExclusive: "write exclusive",
	ReservationExclusiveAccess:                "exclusive access",
	ReservationWriteExclusiveRegistrantsOnly:  "write exclusive - registrants only",
	ReservationExclusiveAccessRegistrantsOnly: "exclusive access - registrants only",
	ReservationWriteExclusiveAllRegistrants:   "write exclusive - all registrants",
	ReservationExclusiveAccessAllRegistrants:  "exclusive access - all registrants",
}

func (t ReservationType) String() string { return nameOf(reservationTypeNames, t, "reservation type") }

// Actions of Reservation Register (RREGA), Acquire (RACQA) and Release (RRELA).
const (
	RegisterKey     uint8 = 0
	UnregisterKey   uint8 = 1
	ReplaceKey      uint8 = 2
	Acquire         uint8 = 0
	Preempt         uint8 = 1
	PreemptAndAbort uint8 = 2
	Release         uint8 = 0
	ClearKeys       uint8 = 1
)

// Values of CPTPL, how Register changes persistence through power loss.
const (
	PersistNoChange uint8 = 0
	PersistClear    uint8 = 2
	PersistSet      uint8 = 3
)

// Sizes in bytes of the data of the reservation commands.
const (
	ReservationRegisterSize = 16
	ReservationAcquireSize  = 16
	ReservationReleaseSize  = 8
)

// ReservationCommand is the SQE of the reservation commands (Base 7.2 to 7.5).
type ReservationCommand struct{ Command }

// Reservation views c as a reservation command.
func (c Command) Reservation() ReservationCommand { return ReservationCommand{c} }

// Action is RREGA, RACQA or RRELA.
func (c ReservationCommand) Action() uint8 { return c.Command[40] & 7 }

// IEKEY says that the current key is not checked.
func (c ReservationCommand) IEKEY() bool { return c.Command[40]&8 != 0 }

// Type is RTYPE of Acquire and Release.
func (c ReservationCommand) Type() ReservationType { return ReservationType(c.Command[41]) }

// CPTPL is the change of persistence of Register.
func (c ReservationCommand) CPTPL() uint8 { return c.Command[43] >> 6 }

// ReportLength is the number of bytes Reservation Report wants (NUMD).
func (c ReservationCommand) ReportLength() uint64 { return 4 * (uint64(c.CDW(10)) + 1) }

// EDS says that Reservation Report shall use the extended data structure, which
// has 128-bit host identifiers.
func (c ReservationCommand) EDS() bool { return c.CDW(11)&1 != 0 }

// InitRegister makes the SQE a Reservation Register.
func (c ReservationCommand) InitRegister(nsid uint32, action uint8, iekey bool, cptpl uint8) {
	c.init(CmdResvRegister, nsid, action, iekey)
	c.Command[43] = cptpl & 3 << 6
}

// InitAcquire makes the SQE a Reservation Acquire.
func (c ReservationCommand) InitAcquire(nsid uint32, action uint8, iekey bool, t ReservationType) {
	c.init(CmdResvAcquire, nsid, action, iekey)
	c.Command[41] = byte(t)
}

// InitRelease makes the SQE a Reservation Release.
func (c ReservationCommand) InitRelease(nsid uint32, action uint8, iekey bool, t ReservationType) {
	c.init(CmdResvRelease, nsid, action, iekey)
	c.Command[41] = byte(t)
}

// InitReport makes the SQE a Reservation Report of n bytes, a multiple of 4
// from 4 on.
func (c ReservationCommand) InitReport(nsid uint32, n uint32, eds bool) {
	c.Command.Init(CmdResvReport, nsid)
	c.SetCDW(10, n/4-1)
	c.SetCDW(11, withBit(uint32(0), 0, eds))
}

func (c ReservationCommand) init(o Opcode, nsid uint32, action uint8, iekey bool) {
	c.Command.Init(o, nsid)
	c.SetCDW(10, withBit(uint32(action&7), 3, iekey))
}

// ReservationKeys is a view of the data of a reservation command: CRKEY, and
// then NRKEY of Register or PRKEY of Acquire.
type ReservationKeys []byte

// Current is CRKEY.
func (k ReservationKeys) Current() uint64 { return le.Uint64(k) }

// Other is NRKEY or PRKEY; Release has none.
func (k ReservationKeys) Other() uint64 { return le.Uint64(k[8:]) }

// SetCurrent sets CRKEY.
func (k ReservationKeys) SetCurrent(v uint64) { le.PutUint64(k, v) }

// SetOther sets NRKEY or PRKEY.
func (k ReservationKeys) SetOther(v uint64) { le.PutUint64(k[8:], v) }
