//go:build linux && cgo && !nordma

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "shim.h"

// Chains of this many WRs are built on the stack and posted at once.
enum { CHUNK = 64, POLL_CHUNK = 32 };

static int64_t result(uint32_t count, int err)
{
	return (int64_t)err << 32 | count;
}

static const uint8_t send_opcode[] = {
	[VB_SEND] = IBV_WR_SEND,
	[VB_SEND_IMM] = IBV_WR_SEND_WITH_IMM,
	[VB_SEND_INV] = IBV_WR_SEND_WITH_INV,
	[VB_WRITE] = IBV_WR_RDMA_WRITE,
	[VB_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
	[VB_READ] = IBV_WR_RDMA_READ,
	[VB_COMPARE_SWAP] = IBV_WR_ATOMIC_CMP_AND_SWP,
	[VB_FETCH_ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD,
	[VB_LOCAL_INV] = IBV_WR_LOCAL_INV,
};

static unsigned int send_flags(uint8_t f)
{
	return (f & VB_SIGNALED ? IBV_SEND_SIGNALED : 0) | (f & VB_SOLICITED ? IBV_SEND_SOLICITED : 0) |
	       (f & VB_INLINE ? IBV_SEND_INLINE : 0) | (f & VB_FENCE ? IBV_SEND_FENCE : 0);
}

static int sges_fit(uint32_t first, uint32_t num, uint32_t nsge)
{
	return first <= nsge && num <= nsge - first;
}

static int build_send(struct ibv_send_wr *o, const struct vb_send_wr *w, const struct ibv_sge *sge, uint32_t nsge)
{
	if (w->op > VB_LOCAL_INV || w->op == VB_COMPARE_SWAP || w->op == VB_FETCH_ADD)
		return EINVAL;
	if (!sges_fit(w->first_sge, w->num_sge, nsge))
		return EINVAL;
	o->wr_id = w->id;
	o->sg_list = w->num_sge ? (struct ibv_sge *)sge + w->first_sge : NULL;
	o->num_sge = w->num_sge;
	o->opcode = send_opcode[w->op];
	o->send_flags = send_flags(w->flags);
	switch (w->op) {
	case VB_SEND_INV:
	case VB_LOCAL_INV:
		o->invalidate_rkey = w->rkey;
		break;
	case VB_SEND_IMM:
	case VB_WRITE_IMM:
		o->imm_data = htonl(w->imm);
		break;
	default:
		o->imm_data = 0;
	}
	o->wr.rdma.remote_addr = w->remote_addr;
	o->wr.rdma.rkey = w->rkey;
	return 0;
}

static int build_atomic(struct ibv_send_wr *o, const struct vb_atomic_wr *w, const struct ibv_sge *sge, uint32_t nsge)
{
	if (w->op != VB_COMPARE_SWAP && w->op != VB_FETCH_ADD)
		return EINVAL;
	if (!sges_fit(w->first_sge, 1, nsge) || w->remote_addr % 8)
		return EINVAL;
	o->wr_id = w->id;
	o->sg_list = (struct ibv_sge *)sge + w->first_sge;
	o->num_sge = 1;
	o->opcode = send_opcode[w->op];
	o->send_flags = send_flags(w->flags);
	o->imm_data = 0;
	o->wr.atomic.remote_addr = w->remote_addr;
	o->wr.atomic.rkey = w->rkey;
	o->wr.atomic.compare_add = w->op == VB_COMPARE_SWAP ? w->compare : w->swap_add;
	o->wr.atomic.swap = w->op == VB_COMPARE_SWAP ? w->swap_add : 0;
	return 0;
}

static int build_recv(struct ibv_recv_wr *o, const struct vb_recv_wr *w, const struct ibv_sge *sge, uint32_t nsge)
{
	if (!sges_fit(w->first_sge, w->num_sge, nsge))
		return EINVAL;
	o->wr_id = w->id;
	o->sg_list = w->num_sge ? (struct ibv_sge *)sge + w->first_sge : NULL;
	o->num_sge = w->num_sge;
	return 0;
}

// POST posts n WRs in chunks: build fills one, post takes a chain. WRs before
// the first that does not build are posted; those before the one the device
// refused count as posted too.
#define POST(wr_type, build, post)                                             \
	do {                                                                   \
		struct wr_type chain[CHUNK], *bad;                             \
		uint32_t done = 0;                                             \
                                                                               \
		while (done < n) {                                             \
			uint32_t k = 0;                                        \
			int invalid = 0, err;                                  \
                                                                               \
			for (; k < CHUNK && k < n - done; k++) {               \
				invalid = build(&chain[k], &w[done + k], sge, nsge); \
				if (invalid)                                   \
					break;                                 \
				chain[k].next = &chain[k + 1];                 \
			}                                                      \
			if (k == 0)                                            \
				return result(done, invalid);                  \
			chain[k - 1].next = NULL;                              \
			bad = NULL;                                            \
			err = post;                                            \
			if (err)                                               \
				return result(done + (bad ? bad - chain : 0), err < 0 ? -err : err); \
			done += k;                                             \
			if (invalid)                                           \
				return result(done, invalid);                  \
		}                                                              \
		return result(done, 0);                                        \
	} while (0)

int64_t vb_post_send(struct ibv_qp *qp, const struct vb_send_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	POST(ibv_send_wr, build_send, ibv_post_send(qp, chain, &bad));
}

int64_t vb_post_atomic(struct ibv_qp *qp, const struct vb_atomic_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	POST(ibv_send_wr, build_atomic, ibv_post_send(qp, chain, &bad));
}

int64_t vb_post_recv(struct ibv_qp *qp, const struct vb_recv_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	POST(ibv_recv_wr, build_recv, ibv_post_recv(qp, chain, &bad));
}

int64_t vb_post_srq(struct ibv_srq *srq, const struct vb_recv_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	POST(ibv_recv_wr, build_recv, ibv_post_srq_recv(srq, chain, &bad));
}

int vb_post_bind(struct ibv_qp *qp, struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr, uint64_t addr, uint64_t n, int access, uint64_t id, uint8_t flags)
{
	struct ibv_send_wr w, *bad;
	int err;

	memset(&w, 0, sizeof w);
	w.wr_id = id;
	w.opcode = IBV_WR_BIND_MW;
	w.send_flags = send_flags(flags);
	w.bind_mw.mw = mw;
	w.bind_mw.rkey = rkey;
	w.bind_mw.bind_info.mr = mr;
	w.bind_mw.bind_info.addr = addr;
	w.bind_mw.bind_info.length = n;
	w.bind_mw.bind_info.mw_access_flags = access;
	err = ibv_post_send(qp, &w, &bad);
	if (!err)
		mw->rkey = rkey; // drivers name the window by its latest key
	return err > 0 ? -err : err;
}

static uint8_t completion_op(const struct ibv_wc *wc)
{
	switch (wc->opcode) {
	case IBV_WC_SEND:
		return VB_SEND;
	case IBV_WC_RDMA_WRITE:
		return VB_WRITE;
	case IBV_WC_RDMA_READ:
		return VB_READ;
	case IBV_WC_COMP_SWAP:
		return VB_COMPARE_SWAP;
	case IBV_WC_FETCH_ADD:
		return VB_FETCH_ADD;
	case IBV_WC_BIND_MW:
		return VB_BIND;
	case IBV_WC_LOCAL_INV:
		return VB_LOCAL_INV;
	case IBV_WC_RECV:
		return VB_RECV;
	case IBV_WC_RECV_RDMA_WITH_IMM:
		return VB_RECV_WRITE_IMM;
	default:
		return VB_UNKNOWN;
	}
}

// Of a failed WR only id, status, QP number and vendor error are valid.
static void convert(struct vb_wc *o, const struct ibv_wc *wc)
{
	memset(o, 0, sizeof *o);
	o->id = wc->wr_id;
	o->qpn = wc->qp_num;
	o->status = wc->status;
	if (wc->status != IBV_WC_SUCCESS) {
		o->vendor = wc->vendor_err;
		o->op = VB_UNKNOWN;
		return;
	}
	o->op = completion_op(wc);
	o->byte_len = wc->byte_len;
	if (o->op < VB_RECV)
		return; // the flags of a send's completion mean nothing to us
	if (wc->wc_flags & IBV_WC_WITH_IMM) {
		o->flags = VB_WC_IMM;
		o->imm = ntohl(wc->imm_data);
	} else if (wc->wc_flags & IBV_WC_WITH_INV) {
		o->flags = VB_WC_INVALIDATED;
		o->imm = wc->invalidated_rkey;
	}
}

int64_t vb_poll(struct ibv_cq *cq, struct vb_wc *out, uint32_t n)
{
	struct ibv_wc wc[POLL_CHUNK];
	uint32_t got = 0;
	int failed = 0;

	while (got < n) {
		uint32_t want = n - got < POLL_CHUNK ? n - got : POLL_CHUNK;
		int r = ibv_poll_cq(cq, want, wc);

		if (r < 0)
			return got ? result(got, failed) : -1;
		for (int i = 0; i < r; i++) {
			convert(&out[got + i], &wc[i]);
			failed |= wc[i].status != IBV_WC_SUCCESS;
		}
		got += r;
		if ((uint32_t)r < want)
			break;
	}
	return result(got, failed);
}

int vb_arm(struct ibv_cq *cq)
{
	int err = ibv_req_notify_cq(cq, 0);

	return err > 0 ? -err : err;
}
