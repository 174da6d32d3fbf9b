package initiator

import (
	"bytes"
	"testing"
)

func TestReadWrite(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	n := r.namespace(c, memNS)
	if n.Size() != memSize || n.BlockSize() != memBlock {
		t.Fatalf("size %d, block size %d", n.Size(), n.BlockSize())
	}
	for i, size := range []int{512, 4096, 8192, 5 * 512, 64 << 10, 128 << 10, 1 << 20, 3<<20 + 512, 10 << 20} {
		out, in := make([]byte, size), make([]byte, size)
		fill(out, byte(i))
		off := int64(i * 777 * memBlock)
		k, err := n.WriteAt(out, off)
		if err != nil || k != size {
			t.Fatalf("write %d bytes: %d, %v", size, k, err)
		}
		if k, err = n.ReadAt(in, off); err != nil || k != size {
			t.Fatalf("read %d bytes: %d, %v", size, k, err)
		}
		if !bytes.Equal(in, out) {
			t.Errorf("%d bytes: not what was written", size)
		}
	}
}
