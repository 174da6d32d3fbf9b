//go:build linux && cgo && !nordma

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
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

static int sges_fit(const struct vb_queue *q, uint32_t first, uint32_t num, uint32_t nsge)
{
	return num <= q->max_sge && first <= nsge && num <= nsge - first;
}

static int inline_fits(const struct vb_queue *q, const struct ibv_sge *sge, uint32_t n)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += sge[i].length;
	return sum <= q->max_inline;
}

static int build_send(struct ibv_send_wr *o, struct vb_slot *slot, const void *wr, const struct ibv_sge *sge, uint32_t nsge)
{
	const struct vb_send_wr *w = wr;

	if (w->op > VB_LOCAL_INV || w->op == VB_COMPARE_SWAP || w->op == VB_FETCH_ADD)
		return EINVAL;
	if (!sges_fit(slot->q, w->first_sge, w->num_sge, nsge))
		return EINVAL;
	if (w->flags & VB_INLINE && !inline_fits(slot->q, sge + w->first_sge, w->num_sge))
		return EINVAL;
	slot->id = w->id;
	slot->op = w->op;
	slot->busy = w->flags & VB_SIGNALED;
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

static int build_atomic(struct ibv_send_wr *o, struct vb_slot *slot, const void *wr, const struct ibv_sge *sge, uint32_t nsge)
{
	const struct vb_atomic_wr *w = wr;

	if (w->op != VB_COMPARE_SWAP && w->op != VB_FETCH_ADD)
		return EINVAL;
	if (!sges_fit(slot->q, w->first_sge, 1, nsge))
		return EINVAL;
	slot->id = w->id;
	slot->op = w->op;
	slot->busy = w->flags & VB_SIGNALED;
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

static struct ibv_ah *find_handle(const struct vb_handles *h, uint32_t num)
{
	uint32_t i = num % VB_HANDLES;

	if (!num || __atomic_load_n(&h->slot[i].num, __ATOMIC_ACQUIRE) != num)
		return NULL;
	return __atomic_load_n(&h->slot[i].ah, __ATOMIC_ACQUIRE);
}

static int build_datagram(struct ibv_send_wr *o, struct vb_slot *slot, const void *wr, const struct ibv_sge *sge, uint32_t nsge)
{
	const struct vb_dgram_wr *w = wr;
	const struct vb_queue *q = slot->q;
	uint64_t sum = 0;

	if (w->op != VB_SEND && w->op != VB_SEND_IMM)
		return EINVAL;
	if (!sges_fit(q, w->first_sge, w->num_sge, nsge))
		return EINVAL;
	for (uint32_t i = 0; i < w->num_sge; i++)
		sum += sge[w->first_sge + i].length;
	if (sum > q->max_datagram || (w->flags & VB_INLINE && sum > q->max_inline))
		return EINVAL;
	o->wr.ud.ah = find_handle(q->handles, w->handle);
	if (!o->wr.ud.ah || w->qpn < 2 || w->qpn > 0xfffffe)
		return EINVAL;
	slot->id = w->id;
	slot->op = w->op;
	slot->busy = w->flags & VB_SIGNALED;
	o->sg_list = w->num_sge ? (struct ibv_sge *)sge + w->first_sge : NULL;
	o->num_sge = w->num_sge;
	o->opcode = send_opcode[w->op];
	o->send_flags = send_flags(w->flags);
	o->imm_data = w->op == VB_SEND_IMM ? htonl(w->imm) : 0;
	o->wr.ud.remote_qpn = w->qpn;
	o->wr.ud.remote_qkey = w->qkey >> 31 ? q->qkey : w->qkey; // rxe would send it as it is
	return 0;
}

// room is how many WRs a send or receive queue takes.
static uint32_t room(const struct vb_queue *q)
{
	return q->depth - (q->tail - q->head);
}

// posted is the part of a chain of k that the device took. A driver that fails
// without naming a WR has taken them all (rxe: only its doorbell failed).
static uint32_t posted(int err, ptrdiff_t bad, int named, uint32_t k)
{
	return err && named ? (uint32_t)bad : k;
}

typedef int send_builder(struct ibv_send_wr *, struct vb_slot *, const void *, const struct ibv_sge *, uint32_t);

// post_sends posts n WRs of stride bytes in chunks. Those before the first that
// does not build, has no room or is refused by the device are posted.
static inline __attribute__((always_inline)) int64_t post_sends(struct ibv_qp *qp, struct vb_queue *q, send_builder *build, const void *w, size_t stride, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	struct ibv_send_wr chain[CHUNK], *bad;
	uint32_t done = 0, space = room(q);
	int stop = 0;

	while (done < n && !stop) {
		uint32_t k = 0;
		int err;

		for (; k < CHUNK && done + k < n; k++) {
			struct vb_slot *slot = &q->slot[(q->tail + k) & q->mask];

			stop = done + k < space ? build(&chain[k], slot, (const char *)w + (done + k) * stride, sge, nsge) : ENOMEM;
			if (stop)
				break;
			slot->pos = q->tail + k;
			chain[k].wr_id = (uintptr_t)slot;
			chain[k].next = &chain[k + 1];
		}
		if (!k)
			break;
		chain[k - 1].next = NULL;
		bad = NULL;
		err = ibv_post_send(qp, chain, &bad);
		k = posted(err, bad - chain, bad != NULL, k);
		q->tail += k;
		done += k;
		if (err && bad)
			stop = err < 0 ? -err : err;
	}
	return result(done, stop);
}

int64_t vb_post_send(struct ibv_qp *qp, struct vb_queue *q, const struct vb_send_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	return post_sends(qp, q, build_send, w, sizeof *w, n, sge, nsge);
}

int64_t vb_post_atomic(struct ibv_qp *qp, struct vb_queue *q, const struct vb_atomic_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	return post_sends(qp, q, build_atomic, w, sizeof *w, n, sge, nsge);
}

int64_t vb_post_datagram(struct ibv_qp *qp, struct vb_queue *q, const struct vb_dgram_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	return post_sends(qp, q, build_datagram, w, sizeof *w, n, sge, nsge);
}

// take_slot finds a place for the kth receive of a chain, which is taken only
// by keep_slots.
static struct vb_slot *take_slot(struct vb_queue *q, uint32_t k)
{
	if (!q->shared)
		return k < room(q) ? &q->slot[(q->tail + k) & q->mask] : NULL;
	return k < q->unused ? &q->slot[q->unused_slots[q->unused - 1 - k]] : NULL;
}

static void keep_slots(struct vb_queue *q, uint32_t k)
{
	if (q->shared)
		q->unused -= k;
	else
		q->tail += k;
}

static int build_recv(struct ibv_recv_wr *o, struct vb_slot *slot, const struct vb_recv_wr *w, const struct ibv_sge *sge, uint32_t nsge)
{
	if (!slot)
		return ENOMEM;
	if (!sges_fit(slot->q, w->first_sge, w->num_sge, nsge))
		return EINVAL;
	slot->id = w->id;
	slot->op = VB_RECV;
	slot->busy = 1;
	o->wr_id = (uintptr_t)slot;
	o->sg_list = w->num_sge ? (struct ibv_sge *)sge + w->first_sge : NULL;
	o->num_sge = w->num_sge;
	return 0;
}

// post_recvs posts to the QP, or to the SRQ when there is none.
static inline __attribute__((always_inline)) int64_t post_recvs(struct ibv_qp *qp, struct ibv_srq *srq, struct vb_queue *q, const struct vb_recv_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	struct ibv_recv_wr chain[CHUNK], *bad;
	uint32_t done = 0;
	int stop = 0;

	while (done < n && !stop) {
		uint32_t k = 0;
		int err;

		for (; k < CHUNK && done + k < n; k++) {
			struct vb_slot *slot = take_slot(q, k);

			stop = build_recv(&chain[k], slot, &w[done + k], sge, nsge);
			if (stop)
				break;
			slot->pos = q->tail + k;
			chain[k].next = &chain[k + 1];
		}
		if (!k)
			break;
		chain[k - 1].next = NULL;
		bad = NULL;
		err = qp ? ibv_post_recv(qp, chain, &bad) : ibv_post_srq_recv(srq, chain, &bad);
		k = posted(err, bad - chain, bad != NULL, k);
		keep_slots(q, k);
		done += k;
		if (err && bad)
			stop = err < 0 ? -err : err;
	}
	return result(done, stop);
}

int64_t vb_post_recv(struct ibv_qp *qp, struct vb_queue *q, const struct vb_recv_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	return post_recvs(qp, NULL, q, w, n, sge, nsge);
}

int64_t vb_post_srq(struct ibv_srq *srq, struct vb_queue *q, const struct vb_recv_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge)
{
	return post_recvs(NULL, srq, q, w, n, sge, nsge);
}

int vb_post_bind(struct ibv_qp *qp, struct vb_queue *q, struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr, uint64_t addr, uint64_t n, int access, uint64_t id, uint8_t flags)
{
	struct vb_slot *slot = &q->slot[q->tail & q->mask];
	struct ibv_send_wr w, *bad;
	int err;

	if (!room(q))
		return -ENOMEM;
	slot->id = id;
	slot->op = VB_BIND;
	slot->busy = flags & VB_SIGNALED;
	slot->pos = q->tail;
	memset(&w, 0, sizeof w);
	w.wr_id = (uintptr_t)slot;
	w.opcode = IBV_WR_BIND_MW;
	w.send_flags = send_flags(flags);
	w.bind_mw.mw = mw;
	w.bind_mw.rkey = rkey;
	w.bind_mw.bind_info.mr = mr;
	w.bind_mw.bind_info.addr = addr;
	w.bind_mw.bind_info.length = n;
	w.bind_mw.bind_info.mw_access_flags = access;
	bad = NULL;
	err = ibv_post_send(qp, &w, &bad);
	if (err && bad)
		return err > 0 ? -err : err;
	q->tail++;
	mw->rkey = rkey; // drivers name the window by its latest key
	return 0;
}

// free_slot gives the place of a completed WR back, and those of the unsignaled
// ones before it.
static void free_slot(struct vb_slot *slot)
{
	struct vb_queue *q = slot->q;

	if (q->shared) {
		q->unused_slots[q->unused++] = slot - q->slot;
		return;
	}
	slot->busy = 0;
	if ((int32_t)(slot->pos + 1 - q->done) > 0)
		q->done = slot->pos + 1;
	while (q->head != q->done && !q->slot[q->head & q->mask].busy)
		q->head++;
}

// convert fills in o, or returns 0 for the completion of a queue that is gone.
// Of a failed WR only wr_id, status, QP number and vendor error are valid.
static int convert(struct vb_wc *o, const struct ibv_wc *wc)
{
	struct vb_slot *slot = (struct vb_slot *)(uintptr_t)wc->wr_id;
	int datagram;

	if (__atomic_load_n(&slot->q->dead, __ATOMIC_ACQUIRE))
		return 0;
	memset(o, 0, sizeof *o);
	o->id = slot->id;
	o->op = slot->op;
	datagram = slot->q->max_datagram != 0;
	free_slot(slot);
	o->qpn = wc->qp_num;
	o->status = wc->status;
	if (wc->status != IBV_WC_SUCCESS) {
		o->vendor = wc->vendor_err;
		return 1;
	}
	o->byte_len = wc->byte_len;
	if (o->op != VB_RECV)
		return 1;
	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
		o->op = VB_RECV_WRITE_IMM;
	if (wc->wc_flags & IBV_WC_WITH_IMM) {
		o->flags = VB_WC_IMM;
		o->imm = ntohl(wc->imm_data);
	} else if (wc->wc_flags & IBV_WC_WITH_INV) {
		o->flags = VB_WC_INVALIDATED;
		o->imm = wc->invalidated_rkey;
	}
	if (datagram) {
		o->flags |= VB_WC_GRH;
		o->src_qpn = wc->src_qp;
	}
	return 1;
}

// poll is vb_poll but for the graves; drained says that the CQ was found empty.
static int64_t poll(struct vb_cq *cq, struct vb_wc *out, uint32_t n, int *drained)
{
	struct ibv_wc wc[POLL_CHUNK];
	uint32_t got = 0;
	int failed = 0;

	while (got < n) {
		uint32_t want = n - got < POLL_CHUNK ? n - got : POLL_CHUNK;
		int r = ibv_poll_cq(cq->cq, want, wc);

		if (r < 0)
			return got ? result(got, failed) : -1;
		for (int i = 0; i < r; i++) {
			if (!convert(&out[got], &wc[i]))
				continue;
			failed |= out[got].status != IBV_WC_SUCCESS;
			got++;
		}
		if ((uint32_t)r < want) {
			*drained = 1;
			break;
		}
	}
	return result(got, failed);
}

int64_t vb_poll(struct vb_cq *cq, struct vb_wc *out, uint32_t n)
{
	struct vb_grave *graves, *g;
	int drained = 0;
	int64_t r;

	if (!__atomic_load_n(&cq->graves, __ATOMIC_RELAXED))
		return poll(cq, out, n, &drained);
	graves = __atomic_exchange_n(&cq->graves, NULL, __ATOMIC_ACQUIRE);
	r = poll(cq, out, n, &drained);
	if (drained) {
		vb_open_graves(graves);
		return r;
	}
	while ((g = graves)) {
		graves = g->next;
		vb_bury(cq, g->q);
		free(g);
	}
	return r;
}

// vb_arm asks for an event at the next completion. Hardware gives none for what
// is there already.
int vb_arm(struct vb_cq *cq)
{
	int err = ibv_req_notify_cq(cq->cq, 0);

	return err > 0 ? -err : err;
}
