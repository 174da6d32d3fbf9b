package icrc

import (
	"encoding/binary"
	"hash/crc32"
)

// tables[k][v] is what byte v changes in the register k bytes later: eight
// bytes are looked up at once. Package hash/crc32 does the same, but takes
// what is shorter than 16 bytes one by one, and a BTH has 12.
var tables = func() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for v := range t[0] {
		for k := 1; k < len(t); k++ {
			t[k][v] = t[k-1][v]>>8 ^ t[0][t[k-1][v]&0xff]
		}
	}
	return t
}()

// updateShort continues a CRC over some tens of bytes.
func updateShort(crc uint32, p []byte) uint32 {
	crc = ^crc
	for ; len(p) >= 8; p = p[8:] {
		v := binary.LittleEndian.Uint64(p) ^ uint64(crc)
		crc = tables[7][v&0xff] ^ tables[6][v>>8&0xff] ^ tables[5][v>>16&0xff] ^ tables[4][v>>24&0xff] ^
			tables[3][v>>32&0xff] ^ tables[2][v>>40&0xff] ^ tables[1][v>>48&0xff] ^ tables[0][v>>56]
	}
	if len(p) >= 4 {
		v := binary.LittleEndian.Uint32(p) ^ crc
		crc = tables[3][v&0xff] ^ tables[2][v>>8&0xff] ^ tables[1][v>>16&0xff] ^ tables[0][v>>24]
		p = p[4:]
	}
	for _, b := range p {
		crc = tables[0][byte(crc)^b] ^ crc>>8
	}
	return ^crc
}
