//go:build linux && cgo && !nordma

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

// librdmacm opens a context of each device for its ids and keeps it while the
// device is there. We use that context and no other, so that the device opened
// by name and the device of a connection are the same.

// copy_name fills one of the char[64] fields.
static void copy_name(char *to, const char *from)
{
	size_t n = strnlen(from, 63);

	memcpy(to, from, n);
	to[n] = 0;
}

static struct ibv_context *find_context(struct ibv_context **list, const char *name)
{
	for (; list && *list; list++)
		if (!strcmp(vb.ibv_get_device_name_((*list)->device), name))
			return *list;
	return NULL;
}

static int open_errno(struct ibv_device *dev)
{
	struct ibv_context *ctx;

	errno = 0;
	ctx = vb.ibv_open_device_(dev);
	if (!ctx)
		return errno ? errno : EIO;
	vb.ibv_close_device_(ctx);
	return ENODEV; // it opens now: librdmacm gave up on it before
}

// vb_list fills in at most n devices and returns how many there are.
int vb_list(struct vb_entry *e, int n)
{
	struct ibv_context **ctxs;
	struct ibv_device **devs;
	int i, num = 0;

	errno = 0;
	devs = vb.ibv_get_device_list_(&num);
	if (!devs)
		return errno == ENOSYS ? 0 : -errno;
	ctxs = num ? vb.rdma_get_devices_(NULL) : NULL;
	for (i = 0; i < num && i < n; i++) {
		copy_name(e[i].name, vb.ibv_get_device_name_(devs[i]));
		copy_name(e[i].file, devs[i]->dev_name);
		e[i].ctx = find_context(ctxs, e[i].name);
		e[i].err = e[i].ctx ? 0 : open_errno(devs[i]);
	}
	if (ctxs)
		vb.rdma_free_devices_(ctxs);
	vb.ibv_free_device_list_(devs);
	return num;
}

// vb_open finds the context of that name. hold keeps librdmacm from closing
// it when the device goes away, until vb_release.
struct ibv_context *vb_open(const char *name, struct ibv_context ***hold)
{
	struct ibv_context **list = vb.rdma_get_devices_(NULL), *ctx;

	ctx = find_context(list, name);
	if (!ctx) {
		if (list)
			vb.rdma_free_devices_(list);
		errno = ENODEV;
		return NULL;
	}
	*hold = list;
	return ctx;
}

void vb_release(struct ibv_context **hold)
{
	vb.rdma_free_devices_(hold);
}

// query_port is ibv_query_port of verbs.h over the loaded function.
static int query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *a)
{
	struct verbs_context *x = verbs_get_ctx_op(ctx, query_port);

	memset(a, 0, sizeof *a);
	if (x)
		return x->query_port(ctx, port, a, sizeof *a);
	return vb.ibv_query_port_(ctx, port, (struct _compat_ibv_port_attr *)a);
}

static void fill_port(struct ibv_context *ctx, struct vb_info *o, int ports)
{
	struct ibv_port_attr a;

	o->ports = ports;
	for (int p = 1; p <= ports; p++) {
		if (query_port(ctx, p, &a))
			continue;
		if (o->port && a.state != IBV_PORT_ACTIVE)
			continue;
		o->port = p;
		o->port_up = a.state == IBV_PORT_ACTIVE;
		o->link_layer = a.link_layer;
		o->max_message = a.max_msg_sz;
		o->mtu = 128 << a.active_mtu;
		if (o->port_up)
			return;
	}
}

enum { MAX_GIDS = 1024 };

static void fill_interfaces(struct ibv_context *ctx, struct vb_info *o)
{
	struct ibv_gid_entry *g;
	ssize_t n;

	if (!vb._ibv_query_gid_table_ || !(g = calloc(MAX_GIDS, sizeof *g)))
		return;
	n = vb._ibv_query_gid_table_(ctx, g, MAX_GIDS, 0, sizeof *g);
	for (ssize_t i = 0; i < n && o->num_ifindex < 16; i++) {
		int known = !g[i].ndev_ifindex;

		for (int k = 0; k < o->num_ifindex; k++)
			known |= o->ifindex[k] == g[i].ndev_ifindex;
		if (!known)
			o->ifindex[o->num_ifindex++] = g[i].ndev_ifindex;
	}
	free(g);
}

int vb_query(struct ibv_context *ctx, struct vb_info *o)
{
	struct ibv_device_attr a;
	int err;

	memset(o, 0, sizeof *o);
	memset(&a, 0, sizeof a);
	err = vb.ibv_query_device_(ctx, &a);
	if (err)
		return err > 0 ? -err : err;
	o->guid = be64toh(a.node_guid);
	o->max_mr_size = a.max_mr_size;
	copy_name(o->firmware, a.fw_ver);
	o->vendor = a.vendor_id;
	o->transport = ctx->device->transport_type;
	o->max_qp = a.max_qp;
	o->max_cq = a.max_cq;
	o->max_mr = a.max_mr;
	o->max_srq = a.max_srq;
	o->max_qp_wr = a.max_qp_wr;
	o->max_cqe = a.max_cqe;
	o->max_srq_wr = a.max_srq_wr;
	o->max_sge = a.max_sge;
	o->max_sge_rd = a.max_sge_rd;
	o->max_ord = a.max_qp_init_rd_atom;
	o->max_ird = a.max_qp_rd_atom;
	o->atomics = a.atomic_cap != IBV_ATOMIC_NONE;
	o->windows = !!(a.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B));
	o->send_inv = !!(a.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS);
	o->comp_vectors = ctx->num_comp_vectors;
	fill_port(ctx, o, a.phys_port_cnt);
	fill_interfaces(ctx, o);
	return 0;
}

static uint32_t granted_inline(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t want)
{
	struct ibv_qp_init_attr a;
	struct ibv_qp *qp;

	memset(&a, 0, sizeof a);
	a.send_cq = a.recv_cq = cq;
	a.qp_type = IBV_QPT_RC;
	a.cap.max_send_wr = a.cap.max_recv_wr = 1;
	a.cap.max_send_sge = a.cap.max_recv_sge = 1;
	a.cap.max_inline_data = want;
	qp = vb.ibv_create_qp_(pd, &a);
	if (!qp)
		return 0;
	vb.ibv_destroy_qp_(qp);
	return a.cap.max_inline_data;
}

// vb_probe_inline finds what a QP is granted of want inline bytes, by halving:
// no query tells.
uint32_t vb_probe_inline(struct ibv_context *ctx, uint32_t want)
{
	struct ibv_pd *pd = vb.ibv_alloc_pd_(ctx);
	struct ibv_cq *cq;
	uint32_t got = 0;

	if (!pd)
		return 0;
	cq = vb.ibv_create_cq_(ctx, 2, NULL, NULL, 0);
	if (cq) {
		for (; want >= 16 && !got; want /= 2)
			got = granted_inline(pd, cq, want);
		vb.ibv_destroy_cq_(cq);
	}
	vb.ibv_dealloc_pd_(pd);
	return got;
}

struct ibv_pd *vb_alloc_pd(struct ibv_context *ctx)
{
	return vb.ibv_alloc_pd_(ctx);
}

// status turns the libraries' two habits, an errno or -1 with errno set, into
// 0 or -errno.
static int status(int r)
{
	if (r == 0)
		return 0;
	if (r > 0)
		return -r;
	return errno ? -errno : -EIO;
}

int vb_dealloc_pd(struct ibv_pd *pd)
{
	return status(vb.ibv_dealloc_pd_(pd));
}

// vb_async_next takes one event: 1, 0 when there is none, or -errno. It
// acknowledges at once, so that no destroy waits for us.
int vb_async_next(struct ibv_context *ctx, struct vb_async *o)
{
	struct ibv_async_event ev;

	errno = 0;
	if (vb.ibv_get_async_event_(ctx, &ev))
		return errno == EAGAIN || errno == EINTR ? 0 : errno ? -errno : -EIO;
	memset(o, 0, sizeof *o);
	o->type = ev.event_type;
	switch (ev.event_type) {
	case IBV_EVENT_CQ_ERR:
		o->cq = (uintptr_t)ev.element.cq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
	case IBV_EVENT_COMM_EST:
		o->qpn = ev.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_GID_CHANGE:
		o->port = ev.element.port_num;
		break;
	default:
		break;
	}
	vb.ibv_ack_async_event_(&ev);
	return 1;
}

struct ibv_mr *vb_reg_mr(struct ibv_pd *pd, uint64_t addr, size_t n, int access)
{
	return vb.ibv_reg_mr_(pd, (void *)(uintptr_t)addr, n, access);
}

int vb_dereg_mr(struct ibv_mr *mr)
{
	return status(vb.ibv_dereg_mr_(mr));
}

struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd)
{
	return ibv_alloc_mw(pd, IBV_MW_TYPE_2);
}

int vb_dealloc_mw(struct ibv_mw *mw)
{
	return status(ibv_dealloc_mw(mw));
}

struct ibv_comp_channel *vb_comp_channel(struct ibv_context *ctx)
{
	return vb.ibv_create_comp_channel_(ctx);
}

int vb_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	return status(vb.ibv_destroy_comp_channel_(ch));
}

struct vb_cq *vb_create_cq(struct ibv_context *ctx, int depth, struct ibv_comp_channel *ch, int vector)
{
	struct vb_cq *cq = calloc(1, sizeof *cq);

	if (!cq)
		return NULL;
	cq->cq = vb.ibv_create_cq_(ctx, depth, NULL, ch, vector);
	if (!cq->cq) {
		free(cq);
		return NULL;
	}
	return cq;
}

int vb_destroy_cq(struct vb_cq *cq)
{
	int err = status(vb.ibv_destroy_cq_(cq->cq));

	if (!err) {
		vb_open_graves(cq->graves);
		free(cq);
	}
	return err;
}

// vb_cq_events takes the events that are there, most at the most, and returns
// their number; each is to be acknowledged before the CQ is destroyed.
int vb_cq_events(struct ibv_comp_channel *ch, int most)
{
	struct ibv_cq *cq;
	void *context;
	int n = 0;

	while (n < most && !vb.ibv_get_cq_event_(ch, &cq, &context))
		n++;
	return n;
}

void vb_ack_cq_events(struct vb_cq *cq, unsigned int n)
{
	vb.ibv_ack_cq_events_(cq->cq, n);
}

struct ibv_srq *vb_create_srq(struct ibv_pd *pd, uint32_t depth, uint32_t sge)
{
	struct ibv_srq_init_attr a;

	memset(&a, 0, sizeof a);
	a.attr.max_wr = depth;
	a.attr.max_sge = sge;
	return vb.ibv_create_srq_(pd, &a);
}

int vb_destroy_srq(struct ibv_srq *srq)
{
	return status(vb.ibv_destroy_srq_(srq));
}

int vb_qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	int err;

	memset(&a, 0, sizeof a);
	err = vb.ibv_query_qp_(qp, &a, IBV_QP_STATE, &init);
	return err ? status(err) : (int)a.qp_state;
}

int vb_qp_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_ERR;
	return status(vb.ibv_modify_qp_(qp, &a, IBV_QP_STATE));
}

int vb_qp_rnr_timer(struct ibv_qp *qp, uint8_t code)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.min_rnr_timer = code;
	return status(vb.ibv_modify_qp_(qp, &a, IBV_QP_MIN_RNR_TIMER));
}

int vb_destroy_qp(struct ibv_qp *qp)
{
	return status(vb.ibv_destroy_qp_(qp));
}
