//go:build !amd64

package icrc

import "hash/crc32"

const foldLeast = 512

// updateLong continues a CRC over p.
func updateLong(crc uint32, p []byte) (uint32, []byte) {
	return crc32.Update(crc, crc32.IEEETable, p), nil
}
