//go:build linux && cgo && !nordma

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

enum { MAX_GIDS = 1024, GID_TYPE_ROCE_V2 = IBV_GID_TYPE_ROCE_V2 };

static int status(int r)
{
	if (r == 0)
		return 0;
	if (r > 0)
		return -r;
	return errno ? -errno : -EIO;
}

// vb_find_gid finds the RoCEv2 entry of the GID table with that GID: its index,
// and its port. -ENODEV when there is none.
int vb_find_gid(struct ibv_context *ctx, const uint8_t *gid, uint8_t *port)
{
	struct ibv_gid_entry *g;
	int found = -ENODEV;
	ssize_t n;

	if (!vb._ibv_query_gid_table_ || !(g = calloc(MAX_GIDS, sizeof *g)))
		return -ENODEV;
	n = vb._ibv_query_gid_table_(ctx, g, MAX_GIDS, 0, sizeof *g);
	for (ssize_t i = 0; i < n && found < 0; i++)
		if (g[i].gid_type == GID_TYPE_ROCE_V2 && !memcmp(g[i].gid.raw, gid, sizeof g[i].gid.raw)) {
			found = g[i].gid_index;
			*port = g[i].port_num;
		}
	free(g);
	return found;
}

static void set_path(struct ibv_ah_attr *a, const struct vb_path *p)
{
	memset(a, 0, sizeof *a);
	a->is_global = 1;
	a->port_num = p->port;
	a->grh.sgid_index = p->sgid_index;
	a->grh.hop_limit = p->hop_limit;
	a->grh.traffic_class = p->traffic_class;
	memcpy(a->grh.dgid.raw, p->dgid, sizeof p->dgid);
}

static struct ibv_qp *create(struct vb_qp_attr *a, int type, uint32_t max_inline)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp;

	memset(&init, 0, sizeof init);
	init.send_cq = a->send_cq->cq;
	init.recv_cq = a->recv_cq->cq;
	init.srq = a->srq;
	init.qp_type = type;
	init.cap.max_send_wr = a->send_depth;
	init.cap.max_recv_wr = a->recv_depth;
	init.cap.max_send_sge = a->send_sge;
	init.cap.max_recv_sge = a->recv_sge;
	init.cap.max_inline_data = max_inline;
	qp = vb.ibv_create_qp_(a->pd, &init);
	if (qp)
		a->max_inline = init.cap.max_inline_data;
	return qp;
}

// vb_create_loose_qp makes a QP of UC or UD. The inline part gives way as in
// vb_cm_create_qp.
struct ibv_qp *vb_create_loose_qp(struct vb_qp_attr *a, int datagrams)
{
	uint32_t want = a->max_inline;

	for (;;) {
		struct ibv_qp *qp = create(a, datagrams ? IBV_QPT_UD : IBV_QPT_UC, want);

		if (qp || !want)
			return qp;
		want = want >= 32 ? want / 2 : 0;
	}
}

// vb_init_uc takes a UC QP from RESET to INIT, vb_connect_uc from there to RTS.
int vb_init_uc(struct ibv_qp *qp, uint8_t port)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = port;
	a.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	return status(vb.ibv_modify_qp_(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

int vb_connect_uc(struct ibv_qp *qp, const struct vb_path *p, uint32_t qpn, uint32_t send_psn, uint32_t recv_psn, int mtu)
{
	struct ibv_qp_attr a;
	int err;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	set_path(&a.ah_attr, p);
	a.path_mtu = mtu;
	a.dest_qp_num = qpn;
	a.rq_psn = recv_psn;
	err = vb.ibv_modify_qp_(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
	if (err)
		return status(err);
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = send_psn;
	return status(vb.ibv_modify_qp_(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

// vb_start_ud takes a UD QP from RESET to RTS.
int vb_start_ud(struct ibv_qp *qp, uint8_t port, uint32_t qkey)
{
	struct ibv_qp_attr a;
	int err;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = port;
	a.qkey = qkey;
	err = vb.ibv_modify_qp_(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	if (err)
		return status(err);
	a.qp_state = IBV_QPS_RTR;
	err = vb.ibv_modify_qp_(qp, &a, IBV_QP_STATE);
	if (err)
		return status(err);
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = 0;
	return status(vb.ibv_modify_qp_(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

int vb_recover_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	a.cur_qp_state = IBV_QPS_SQE;
	return status(vb.ibv_modify_qp_(qp, &a, IBV_QP_STATE | IBV_QP_CUR_STATE));
}

struct ibv_ah *vb_create_ah(struct ibv_pd *pd, const struct vb_path *p)
{
	struct ibv_ah_attr a;

	set_path(&a, p);
	return vb.ibv_create_ah_(pd, &a);
}

int vb_destroy_ah(struct ibv_ah *ah)
{
	return status(vb.ibv_destroy_ah_(ah));
}

struct vb_handles *vb_new_handles(void)
{
	return calloc(1, sizeof(struct vb_handles));
}

void vb_free_handles(struct vb_handles *h)
{
	free(h);
}

// vb_set_handle puts a handle in its slot, or with num 0 takes it out.
void vb_set_handle(struct vb_handles *h, uint32_t slot, uint32_t num, struct ibv_ah *ah)
{
	__atomic_store_n(&h->slot[slot].num, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&h->slot[slot].ah, ah, __ATOMIC_RELEASE);
	__atomic_store_n(&h->slot[slot].num, num, __ATOMIC_RELEASE);
}
