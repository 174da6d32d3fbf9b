//go:build linux && cgo && !nordma

#include <errno.h>
#include <string.h>

#include "shim.h"

// librdmacm returns 0, or -1 with errno set.
static int cm_status(int r)
{
	if (r == 0)
		return 0;
	return errno ? -errno : -EIO;
}

struct rdma_event_channel *vb_cm_channel(void)
{
	return vb.rdma_create_event_channel_();
}

void vb_cm_destroy_channel(struct rdma_event_channel *ch)
{
	vb.rdma_destroy_event_channel_(ch);
}

static void copy_conn_param(struct vb_cm_event *o, const struct rdma_conn_param *p)
{
	o->responder_resources = p->responder_resources;
	o->initiator_depth = p->initiator_depth;
	if (p->private_data && p->private_data_len) {
		o->private_len = p->private_data_len;
		memcpy(o->private_data, p->private_data, p->private_data_len);
	}
}

// vb_cm_next takes one event: 1, 0 when there is none, or -errno. The event is
// copied and acknowledged, so that rdma_destroy_id never waits for Go. The
// token of a connection request is the listener's: ids inherit the context.
int vb_cm_next(struct rdma_event_channel *ch, struct vb_cm_event *o)
{
	struct rdma_cm_event *ev;

	errno = 0;
	if (vb.rdma_get_cm_event_(ch, &ev))
		return errno == EAGAIN || errno == EINTR ? 0 : errno ? -errno : -EIO;
	memset(o, 0, sizeof *o);
	o->token = (uintptr_t)ev->id->context;
	o->id = ev->id;
	o->type = ev->event;
	o->status = ev->status == -1 && errno ? -errno : ev->status;
	switch (ev->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
		copy_conn_param(o, &ev->param.conn);
		break;
	default:
		break;
	}
	vb.rdma_ack_cm_event_(ev);
	return 1;
}

struct rdma_cm_id *vb_cm_create(struct rdma_event_channel *ch, uint64_t token)
{
	struct rdma_cm_id *id;

	return vb.rdma_create_id_(ch, &id, (void *)(uintptr_t)token, RDMA_PS_TCP) ? NULL : id;
}

void vb_cm_tag(struct rdma_cm_id *id, uint64_t token)
{
	id->context = (void *)(uintptr_t)token;
}

int vb_cm_destroy(struct rdma_cm_id *id)
{
	return cm_status(vb.rdma_destroy_id_(id));
}

// vb_cm_addrs copies both addresses as struct sockaddr_in6, 28 bytes.
void vb_cm_addrs(struct rdma_cm_id *id, void *src, void *dst)
{
	memcpy(src, &id->route.addr.src_storage, sizeof(struct sockaddr_in6));
	memcpy(dst, &id->route.addr.dst_storage, sizeof(struct sockaddr_in6));
}

int vb_cm_set_tos(struct rdma_cm_id *id, uint8_t tos)
{
	return cm_status(vb.rdma_set_option_(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos));
}

int vb_cm_bind(struct rdma_cm_id *id, void *addr)
{
	return cm_status(vb.rdma_bind_addr_(id, addr));
}

int vb_cm_listen(struct rdma_cm_id *id, int backlog)
{
	return cm_status(vb.rdma_listen_(id, backlog));
}

int vb_cm_resolve_addr(struct rdma_cm_id *id, void *src, void *dst, int ms)
{
	return cm_status(vb.rdma_resolve_addr_(id, src, dst, ms));
}

int vb_cm_resolve_route(struct rdma_cm_id *id, int ms)
{
	return cm_status(vb.rdma_resolve_route_(id, ms));
}

static int create_qp(struct rdma_cm_id *id, struct vb_qp_attr *a, uint32_t max_inline)
{
	struct ibv_qp_init_attr init;

	memset(&init, 0, sizeof init);
	init.send_cq = a->send_cq->cq;
	init.recv_cq = a->recv_cq->cq;
	init.srq = a->srq;
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = a->send_depth;
	init.cap.max_recv_wr = a->recv_depth;
	init.cap.max_send_sge = a->send_sge;
	init.cap.max_recv_sge = a->recv_sge;
	init.cap.max_inline_data = max_inline;
	if (vb.rdma_create_qp_(id, a->pd, &init))
		return cm_status(-1);
	a->max_inline = init.cap.max_inline_data;
	return 0;
}

// vb_cm_create_qp makes a QP in the INIT state. Depth, SGEs and inline bytes
// share one work queue entry: when the device refuses the sum it is the inline
// part that gives way.
struct ibv_qp *vb_cm_create_qp(struct rdma_cm_id *id, struct vb_qp_attr *a)
{
	uint32_t want = a->max_inline;

	for (;;) {
		int err = create_qp(id, a, want);

		if (!err)
			return id->qp;
		if (!want) {
			errno = -err;
			return NULL;
		}
		want = want >= 32 ? want / 2 : 0;
	}
}

static void set_private(struct rdma_conn_param *p, const void *priv, uint8_t n)
{
	p->private_data = n ? priv : NULL;
	p->private_data_len = n;
}

int vb_cm_connect(struct rdma_cm_id *id, struct rdma_conn_param *p, const void *priv, uint8_t n)
{
	struct rdma_conn_param q = *p;

	set_private(&q, priv, n);
	return cm_status(vb.rdma_connect_(id, &q));
}

int vb_cm_accept(struct rdma_cm_id *id, struct rdma_conn_param *p, const void *priv, uint8_t n)
{
	struct rdma_conn_param q = *p;

	set_private(&q, priv, n);
	return cm_status(vb.rdma_accept_(id, &q));
}

int vb_cm_reject(struct rdma_cm_id *id, const void *priv, uint8_t n)
{
	return cm_status(vb.rdma_reject_(id, n ? priv : NULL, n));
}

int vb_cm_disconnect(struct rdma_cm_id *id)
{
	return cm_status(vb.rdma_disconnect_(id));
}

// vb_cm_established tells the CM that the QP has received: the peer's RTU may
// be lost or late.
int vb_cm_established(struct rdma_cm_id *id)
{
	return cm_status(vb.rdma_notify_(id, IBV_EVENT_COMM_EST));
}
