//go:build linux && cgo && !nordma

package verbs

// The data path's calls neither keep their arguments nor call back, so the
// slices given to them stay where they are and no stack is prepared for Go.

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Wno-unused-parameter
#cgo LDFLAGS: -ldl
#cgo noescape vb_post_send
#cgo noescape vb_post_atomic
#cgo noescape vb_post_datagram
#cgo noescape vb_post_recv
#cgo noescape vb_post_srq
#cgo noescape vb_post_bind
#cgo noescape vb_poll
#cgo noescape vb_arm
#cgo noescape vb_cq_events
#cgo nocallback vb_post_send
#cgo nocallback vb_post_atomic
#cgo nocallback vb_post_datagram
#cgo nocallback vb_post_recv
#cgo nocallback vb_post_srq
#cgo nocallback vb_post_bind
#cgo nocallback vb_poll
#cgo nocallback vb_arm
#cgo nocallback vb_cq_events
#include "shim.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// The layouts and numbers that Go and C share. A difference does not compile;
// shim.h asserts the same in C.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(fabric.SGE{})-uintptr(C.sizeof_struct_ibv_sge)]
	_ = [1]struct{}{}[unsafe.Sizeof(fabric.SendWR{})-uintptr(C.sizeof_struct_vb_send_wr)]
	_ = [1]struct{}{}[unsafe.Sizeof(fabric.RecvWR{})-uintptr(C.sizeof_struct_vb_recv_wr)]
	_ = [1]struct{}{}[unsafe.Sizeof(fabric.AtomicWR{})-uintptr(C.sizeof_struct_vb_atomic_wr)]
	_ = [1]struct{}{}[unsafe.Sizeof(fabric.Completion{})-uintptr(C.sizeof_struct_vb_wc)]

	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SendWR{}.ID)-unsafe.Offsetof(C.struct_vb_send_wr{}.id)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SendWR{}.RemoteAddr)-unsafe.Offsetof(C.struct_vb_send_wr{}.remote_addr)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SendWR{}.RKey)-unsafe.Offsetof(C.struct_vb_send_wr{}.rkey)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SendWR{}.Imm)-unsafe.Offsetof(C.struct_vb_send_wr{}.imm)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SendWR{}.FirstSGE)-unsafe.Offsetof(C.struct_vb_send_wr{}.first_sge)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SendWR{}.NumSGE)-unsafe.Offsetof(C.struct_vb_send_wr{}.num_sge)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SendWR{}.Op)-unsafe.Offsetof(C.struct_vb_send_wr{}.op)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SendWR{}.Flags)-unsafe.Offsetof(C.struct_vb_send_wr{}.flags)]

	_ = [1]struct{}{}[unsafe.Offsetof(fabric.RecvWR{}.ID)-unsafe.Offsetof(C.struct_vb_recv_wr{}.id)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.RecvWR{}.FirstSGE)-unsafe.Offsetof(C.struct_vb_recv_wr{}.first_sge)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.RecvWR{}.NumSGE)-unsafe.Offsetof(C.struct_vb_recv_wr{}.num_sge)]

	_ = [1]struct{}{}[unsafe.Offsetof(fabric.AtomicWR{}.ID)-unsafe.Offsetof(C.struct_vb_atomic_wr{}.id)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.AtomicWR{}.RemoteAddr)-unsafe.Offsetof(C.struct_vb_atomic_wr{}.remote_addr)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.AtomicWR{}.Compare)-unsafe.Offsetof(C.struct_vb_atomic_wr{}.compare)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.AtomicWR{}.SwapAdd)-unsafe.Offsetof(C.struct_vb_atomic_wr{}.swap_add)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.AtomicWR{}.RKey)-unsafe.Offsetof(C.struct_vb_atomic_wr{}.rkey)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.AtomicWR{}.FirstSGE)-unsafe.Offsetof(C.struct_vb_atomic_wr{}.first_sge)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.AtomicWR{}.Op)-unsafe.Offsetof(C.struct_vb_atomic_wr{}.op)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.AtomicWR{}.Flags)-unsafe.Offsetof(C.struct_vb_atomic_wr{}.flags)]

	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.ID)-unsafe.Offsetof(C.struct_vb_wc{}.id)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.QPN)-unsafe.Offsetof(C.struct_vb_wc{}.qpn)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.ByteLen)-unsafe.Offsetof(C.struct_vb_wc{}.byte_len)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.Imm)-unsafe.Offsetof(C.struct_vb_wc{}.imm)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.Vendor)-unsafe.Offsetof(C.struct_vb_wc{}.vendor)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.Status)-unsafe.Offsetof(C.struct_vb_wc{}.status)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.Op)-unsafe.Offsetof(C.struct_vb_wc{}.op)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.Flags)-unsafe.Offsetof(C.struct_vb_wc{}.flags)]

	_ = [1]struct{}{}[unsafe.Offsetof(fabric.Completion{}.SrcQPN)-unsafe.Offsetof(C.struct_vb_wc{}.src_qpn)]

	_ = [1]struct{}{}[unsafe.Sizeof(fabric.DatagramWR{})-uintptr(C.sizeof_struct_vb_dgram_wr)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.DatagramWR{}.Handle)-unsafe.Offsetof(C.struct_vb_dgram_wr{}.handle)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.DatagramWR{}.QPN)-unsafe.Offsetof(C.struct_vb_dgram_wr{}.qpn)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.DatagramWR{}.QKey)-unsafe.Offsetof(C.struct_vb_dgram_wr{}.qkey)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.DatagramWR{}.Imm)-unsafe.Offsetof(C.struct_vb_dgram_wr{}.imm)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.DatagramWR{}.FirstSGE)-unsafe.Offsetof(C.struct_vb_dgram_wr{}.first_sge)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.DatagramWR{}.NumSGE)-unsafe.Offsetof(C.struct_vb_dgram_wr{}.num_sge)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.DatagramWR{}.Op)-unsafe.Offsetof(C.struct_vb_dgram_wr{}.op)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.DatagramWR{}.Flags)-unsafe.Offsetof(C.struct_vb_dgram_wr{}.flags)]

	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SGE{}.Addr)-unsafe.Offsetof(C.struct_ibv_sge{}.addr)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SGE{}.Length)-unsafe.Offsetof(C.struct_ibv_sge{}.length)]
	_ = [1]struct{}{}[unsafe.Offsetof(fabric.SGE{}.LKey)-unsafe.Offsetof(C.struct_ibv_sge{}.lkey)]

	_ = [1]struct{}{}[fabric.OpSend-C.VB_SEND]
	_ = [1]struct{}{}[fabric.OpSendImm-C.VB_SEND_IMM]
	_ = [1]struct{}{}[fabric.OpSendInv-C.VB_SEND_INV]
	_ = [1]struct{}{}[fabric.OpWrite-C.VB_WRITE]
	_ = [1]struct{}{}[fabric.OpWriteImm-C.VB_WRITE_IMM]
	_ = [1]struct{}{}[fabric.OpRead-C.VB_READ]
	_ = [1]struct{}{}[fabric.OpCompareSwap-C.VB_COMPARE_SWAP]
	_ = [1]struct{}{}[fabric.OpFetchAdd-C.VB_FETCH_ADD]
	_ = [1]struct{}{}[fabric.OpLocalInv-C.VB_LOCAL_INV]
	_ = [1]struct{}{}[fabric.OpBind-C.VB_BIND]
	_ = [1]struct{}{}[fabric.OpRecv-C.VB_RECV]
	_ = [1]struct{}{}[fabric.OpRecvWriteImm-C.VB_RECV_WRITE_IMM]

	_ = [1]struct{}{}[fabric.FlagSignaled-C.VB_SIGNALED]
	_ = [1]struct{}{}[fabric.FlagSolicited-C.VB_SOLICITED]
	_ = [1]struct{}{}[fabric.FlagInline-C.VB_INLINE]
	_ = [1]struct{}{}[fabric.FlagFence-C.VB_FENCE]
	_ = [1]struct{}{}[fabric.CompletionImm-C.VB_WC_IMM]
	_ = [1]struct{}{}[fabric.CompletionInvalidated-C.VB_WC_INVALIDATED]
	_ = [1]struct{}{}[fabric.CompletionGRH-C.VB_WC_GRH]

	_ = [1]struct{}{}[fabric.StatusLocalLength-C.IBV_WC_LOC_LEN_ERR]
	_ = [1]struct{}{}[fabric.StatusLocalQPOp-C.IBV_WC_LOC_QP_OP_ERR]
	_ = [1]struct{}{}[fabric.StatusLocalProtection-C.IBV_WC_LOC_PROT_ERR]
	_ = [1]struct{}{}[fabric.StatusFlushed-C.IBV_WC_WR_FLUSH_ERR]
	_ = [1]struct{}{}[fabric.StatusWindowBind-C.IBV_WC_MW_BIND_ERR]
	_ = [1]struct{}{}[fabric.StatusBadResponse-C.IBV_WC_BAD_RESP_ERR]
	_ = [1]struct{}{}[fabric.StatusLocalAccess-C.IBV_WC_LOC_ACCESS_ERR]
	_ = [1]struct{}{}[fabric.StatusRemoteInvalidReq-C.IBV_WC_REM_INV_REQ_ERR]
	_ = [1]struct{}{}[fabric.StatusRemoteAccess-C.IBV_WC_REM_ACCESS_ERR]
	_ = [1]struct{}{}[fabric.StatusRemoteOp-C.IBV_WC_REM_OP_ERR]
	_ = [1]struct{}{}[fabric.StatusRetryExceeded-C.IBV_WC_RETRY_EXC_ERR]
	_ = [1]struct{}{}[fabric.StatusRNRRetryExceeded-C.IBV_WC_RNR_RETRY_EXC_ERR]
	_ = [1]struct{}{}[fabric.StatusRemoteAbort-C.IBV_WC_REM_ABORT_ERR]
	_ = [1]struct{}{}[fabric.StatusFatal-C.IBV_WC_FATAL_ERR]
	_ = [1]struct{}{}[fabric.StatusResponseTimeout-C.IBV_WC_RESP_TIMEOUT_ERR]
	_ = [1]struct{}{}[fabric.StatusGeneral-C.IBV_WC_GENERAL_ERR]

	_ = [1]struct{}{}[fabric.QPReset-C.IBV_QPS_RESET]
	_ = [1]struct{}{}[fabric.QPInit-C.IBV_QPS_INIT]
	_ = [1]struct{}{}[fabric.QPReadyToReceive-C.IBV_QPS_RTR]
	_ = [1]struct{}{}[fabric.QPReadyToSend-C.IBV_QPS_RTS]
	_ = [1]struct{}{}[fabric.QPSendQueueDrain-C.IBV_QPS_SQD]
	_ = [1]struct{}{}[fabric.QPSendQueueError-C.IBV_QPS_SQE]
	_ = [1]struct{}{}[fabric.QPError-C.IBV_QPS_ERR]
)

const (
	verbsLibrary = "libibverbs.so.1"
	cmLibrary    = "librdmacm.so.1"
)

// load loads the libraries once for the process.
var load = sync.OnceValue(func() error {
	return callLoad(verbsLibrary, cmLibrary, true)
})

// callLoad loads the two libraries, into the table that every call uses when
// keep is true.
func callLoad(verbs, cm string, keep bool) error {
	msg := make([]byte, 512)
	v, c := append([]byte(verbs), 0), append([]byte(cm), 0)
	pv, pc := (*C.char)(unsafe.Pointer(&v[0])), (*C.char)(unsafe.Pointer(&c[0]))
	pm, n := (*C.char)(unsafe.Pointer(&msg[0])), C.size_t(len(msg))
	r := C.int(0)
	if keep {
		r = C.vb_load(pv, pc, pm, n)
	} else {
		r = C.vb_try(pv, pc, pm, n)
	}
	if r == 0 {
		return nil
	}
	return unavailable(C.GoString(pm))
}
