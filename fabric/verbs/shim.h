//go:build linux && cgo && !nordma

// The C half of package verbs: what has to be C because it is a struct, an
// inline function or a macro of verbs.h. It holds no state but the table of
// the loaded functions and calls nothing of Go.
//
// Results: a pointer, NULL with errno set; or an int, 0 or -errno; or for the
// posting and polling functions a count and an error in one int64_t.

#ifndef NVMF_VERBS_SHIM_H
#define NVMF_VERBS_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// Work requests and completions as package fabric lays them out.

struct vb_send_wr {
	uint64_t id;
	uint64_t remote_addr;
	uint32_t rkey;
	uint32_t imm;
	uint32_t first_sge;
	uint8_t num_sge;
	uint8_t op;
	uint8_t flags;
	uint8_t pad;
};

struct vb_recv_wr {
	uint64_t id;
	uint32_t first_sge;
	uint8_t num_sge;
	uint8_t pad[3];
};

struct vb_atomic_wr {
	uint64_t id;
	uint64_t remote_addr;
	uint64_t compare;
	uint64_t swap_add;
	uint32_t rkey;
	uint32_t first_sge;
	uint8_t op;
	uint8_t flags;
	uint8_t pad[6];
};

struct vb_dgram_wr {
	uint64_t id;
	uint32_t handle;
	uint32_t qpn;
	uint32_t qkey;
	uint32_t imm;
	uint32_t first_sge;
	uint8_t num_sge;
	uint8_t op;
	uint8_t flags;
	uint8_t pad;
};

struct vb_wc {
	uint64_t id;
	uint32_t qpn;
	uint32_t byte_len;
	uint32_t imm;
	uint32_t vendor;
	uint8_t status;
	uint8_t op;
	uint8_t flags;
	uint8_t pad;
	uint32_t src_qpn;
};

_Static_assert(sizeof(struct vb_send_wr) == 32, "fabric.SendWR");
_Static_assert(offsetof(struct vb_send_wr, first_sge) == 24, "fabric.SendWR.FirstSGE");
_Static_assert(offsetof(struct vb_send_wr, op) == 29, "fabric.SendWR.Op");
_Static_assert(sizeof(struct vb_recv_wr) == 16, "fabric.RecvWR");
_Static_assert(sizeof(struct vb_atomic_wr) == 48, "fabric.AtomicWR");
_Static_assert(sizeof(struct vb_dgram_wr) == 32, "fabric.DatagramWR");
_Static_assert(sizeof(struct vb_wc) == 32, "fabric.Completion");
_Static_assert(offsetof(struct vb_wc, src_qpn) == 28, "fabric.Completion.SrcQPN");
_Static_assert(offsetof(struct vb_wc, status) == 24, "fabric.Completion.Status");
_Static_assert(sizeof(struct ibv_sge) == 16, "fabric.SGE");
_Static_assert(offsetof(struct ibv_sge, length) == 8, "fabric.SGE.Length");
_Static_assert(offsetof(struct ibv_sge, lkey) == 12, "fabric.SGE.LKey");

// Opcodes of package fabric, in its order.
enum vb_op {
	VB_SEND,
	VB_SEND_IMM,
	VB_SEND_INV,
	VB_WRITE,
	VB_WRITE_IMM,
	VB_READ,
	VB_COMPARE_SWAP,
	VB_FETCH_ADD,
	VB_LOCAL_INV,
	VB_BIND,
	VB_RECV,
	VB_RECV_WRITE_IMM,
};

enum vb_flag { VB_SIGNALED = 1, VB_SOLICITED = 2, VB_INLINE = 4, VB_FENCE = 8 };
enum vb_wc_flag { VB_WC_IMM = 1, VB_WC_INVALIDATED = 2, VB_WC_GRH = 4 };

// vb_queue is a send queue, a receive queue or an SRQ as we count it: a WR has
// a place from its post until its completion is polled. A device may forget
// sooner (rxe frees the place when it has completed the WR), and then more
// would be posted than the CQ holds. The wr_id that the device sees is the
// address of the place, which has the caller's id and the operation: a
// completion does not tell them apart, and a failed one tells nothing.
//
// The places of a send or receive queue are a ring: head moves over those that
// have completed, and over unsignaled WRs before them. Completions of one QP
// come in order, but for siw's READs, which a later SEND may overtake: a
// signaled WR keeps its place until its own completion. The places of an SRQ
// come and go one by one.
//
// The owner of the queue posts and polls. A queue is freed when nothing refers
// to it: its QP or SRQ, and the graves of QPs that used it.
struct vb_slot {
	struct vb_queue *q;
	uint64_t id;
	uint32_t pos; // free-running
	uint8_t op;   // enum vb_op
	uint8_t busy; // a completion is owed
};

// vb_handles are the address handles of a device: a WR names one by a number
// whose low bits are the slot.
enum { VB_HANDLES = 4096 };
struct vb_handles {
	struct {
		uint32_t num; // atomic; 0: none
		struct ibv_ah *ah;
	} slot[VB_HANDLES];
};

// vb_path is where the packets of a QP without a connection go.
struct vb_path {
	uint8_t dgid[16];
	uint8_t port, sgid_index, hop_limit, traffic_class;
};

struct vb_queue {
	int refs;   // atomic
	int dead;   // atomic; completions are dropped
	int shared; // SRQ
	uint32_t depth, mask;
	uint32_t max_sge, max_inline; // not every driver checks them (siw)
	uint32_t max_datagram, qkey;  // of a UD QP's queues, else 0
	const struct vb_handles *handles; // likewise
	uint32_t head, done, tail;    // free, completed and posted so far
	uint32_t unused;              // SRQ: number of entries of unused_slots
	uint32_t *unused_slots;
	struct vb_slot slot[];
};

// vb_cq is a CQ with the graves of QPs that were destroyed: the CQ may still
// hold completions of theirs, so their queues are kept until a poll has found
// it empty.
struct vb_cq {
	struct ibv_cq *cq;
	struct vb_grave *graves; // atomic
};

struct vb_grave {
	struct vb_grave *next;
	struct vb_queue *q;
};

// vb_info is what a device says of itself: its first active port, or port 1.
struct vb_info {
	uint64_t guid;
	uint64_t max_mr_size;
	char firmware[64];
	uint32_t vendor;
	uint32_t max_message;
	uint32_t ifindex[16]; // network interfaces of the GID table, in its order
	int num_ifindex;
	int transport;  // enum ibv_transport_type
	int link_layer; // IBV_LINK_LAYER_*
	int ports, port, port_up, mtu;
	int max_qp, max_cq, max_mr, max_srq;
	int max_qp_wr, max_cqe, max_srq_wr;
	int max_sge, max_sge_rd;
	int max_ord, max_ird;
	int atomics, windows, send_inv;
	int comp_vectors;
};

// vb_entry is a device of the list: ctx is librdmacm's context of it, or NULL
// with the errno that says why it cannot be opened. file is its device file,
// without the folder.
struct vb_entry {
	char name[64];
	char file[64];
	struct ibv_context *ctx;
	int err;
};

struct vb_qp_attr {
	struct ibv_pd *pd;
	struct vb_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	uint32_t send_depth, recv_depth, send_sge, recv_sge;
	uint32_t max_inline; // asked, then granted
};

// vb_cm_event is an event of librdmacm, copied: it is acknowledged already.
// token is the number given to the id with vb_cm_tag; of the listener for a
// connection request, whose own id is in id.
struct vb_cm_event {
	uint64_t token;
	struct rdma_cm_id *id;
	int type;   // enum rdma_cm_event_type
	int status; // -errno, or a reject reason
	uint8_t responder_resources; // what the peer asks of us
	uint8_t initiator_depth;     // what the peer answers of ours
	uint8_t private_len;
	uint8_t private_data[255];
};

// vb_async is an asynchronous event of a device, acknowledged already.
struct vb_async {
	int type;     // enum ibv_event_type
	uint32_t qpn; // of QP events
	uint32_t port;
	uintptr_t cq; // of CQ events
};

// Loading. The message goes to err, at most n bytes with the final zero.
int vb_load(const char *verbs, const char *cm, char *err, size_t n);
int vb_try(const char *verbs, const char *cm, char *err, size_t n);
int vb_fork_safe(void);

// Devices.
int vb_list(struct vb_entry *e, int n);
struct ibv_context *vb_open(const char *name, struct ibv_context ***hold);
void vb_release(struct ibv_context **hold);
int vb_query(struct ibv_context *ctx, struct vb_info *out);
uint32_t vb_probe_inline(struct ibv_context *ctx, uint32_t want);
struct ibv_pd *vb_alloc_pd(struct ibv_context *ctx);
int vb_dealloc_pd(struct ibv_pd *pd);
int vb_async_next(struct ibv_context *ctx, struct vb_async *out);

// Memory.
struct ibv_mr *vb_reg_mr(struct ibv_pd *pd, uint64_t addr, size_t n, int access);
int vb_dereg_mr(struct ibv_mr *mr);
struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd);
int vb_dealloc_mw(struct ibv_mw *mw);

// Queues.
struct ibv_comp_channel *vb_comp_channel(struct ibv_context *ctx);
int vb_destroy_comp_channel(struct ibv_comp_channel *ch);
struct vb_cq *vb_create_cq(struct ibv_context *ctx, int depth, struct ibv_comp_channel *ch, int vector);
int vb_destroy_cq(struct vb_cq *cq);
int vb_cq_events(struct ibv_comp_channel *ch, int most);
void vb_ack_cq_events(struct vb_cq *cq, unsigned int n);
struct vb_queue *vb_new_queue(uint32_t depth, uint32_t max_sge, int shared);
void vb_ref(struct vb_queue *q);
void vb_unref(struct vb_queue *q);
void vb_kill(struct vb_queue *q);
void vb_bury(struct vb_cq *cq, struct vb_queue *q);
void vb_open_graves(struct vb_grave *g);
struct ibv_srq *vb_create_srq(struct ibv_pd *pd, uint32_t depth, uint32_t sge);
int vb_destroy_srq(struct ibv_srq *srq);
int vb_qp_state(struct ibv_qp *qp);
int vb_qp_error(struct ibv_qp *qp);
int vb_qp_rnr_timer(struct ibv_qp *qp, uint8_t code);
int vb_destroy_qp(struct ibv_qp *qp);

// QPs without a connection.
int vb_find_gid(struct ibv_context *ctx, const uint8_t *gid, uint8_t *port);
struct ibv_qp *vb_create_loose_qp(struct vb_qp_attr *a, int datagrams);
int vb_init_uc(struct ibv_qp *qp, uint8_t port);
int vb_connect_uc(struct ibv_qp *qp, const struct vb_path *p, uint32_t qpn, uint32_t send_psn, uint32_t recv_psn, int mtu);
int vb_start_ud(struct ibv_qp *qp, uint8_t port, uint32_t qkey);
int vb_recover_qp(struct ibv_qp *qp);
struct ibv_ah *vb_create_ah(struct ibv_pd *pd, const struct vb_path *p);
int vb_destroy_ah(struct ibv_ah *ah);
struct vb_handles *vb_new_handles(void);
void vb_free_handles(struct vb_handles *h);
void vb_set_handle(struct vb_handles *h, uint32_t slot, uint32_t num, struct ibv_ah *ah);

// Connection manager.
struct rdma_event_channel *vb_cm_channel(void);
void vb_cm_destroy_channel(struct rdma_event_channel *ch);
int vb_cm_next(struct rdma_event_channel *ch, struct vb_cm_event *out);
struct rdma_cm_id *vb_cm_create(struct rdma_event_channel *ch, uint64_t token);
void vb_cm_tag(struct rdma_cm_id *id, uint64_t token);
int vb_cm_destroy(struct rdma_cm_id *id);
void vb_cm_addrs(struct rdma_cm_id *id, void *src, void *dst);
int vb_cm_set_tos(struct rdma_cm_id *id, uint8_t tos);
int vb_cm_bind(struct rdma_cm_id *id, void *addr);
int vb_cm_listen(struct rdma_cm_id *id, int backlog);
int vb_cm_resolve_addr(struct rdma_cm_id *id, void *src, void *dst, int ms);
int vb_cm_resolve_route(struct rdma_cm_id *id, int ms);
struct ibv_qp *vb_cm_create_qp(struct rdma_cm_id *id, struct vb_qp_attr *a);
int vb_cm_connect(struct rdma_cm_id *id, struct rdma_conn_param *p, const void *priv, uint8_t n);
int vb_cm_accept(struct rdma_cm_id *id, struct rdma_conn_param *p, const void *priv, uint8_t n);
int vb_cm_reject(struct rdma_cm_id *id, const void *priv, uint8_t n);
int vb_cm_disconnect(struct rdma_cm_id *id);
int vb_cm_established(struct rdma_cm_id *id);

// The data path. A result is the number posted or polled in the low 32 bits;
// above them the errno that stopped a post, or 1 when a polled completion has
// a status other than success.
int64_t vb_post_send(struct ibv_qp *qp, struct vb_queue *q, const struct vb_send_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge);
int64_t vb_post_atomic(struct ibv_qp *qp, struct vb_queue *q, const struct vb_atomic_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge);
int64_t vb_post_datagram(struct ibv_qp *qp, struct vb_queue *q, const struct vb_dgram_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge);
int64_t vb_post_recv(struct ibv_qp *qp, struct vb_queue *q, const struct vb_recv_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge);
int64_t vb_post_srq(struct ibv_srq *srq, struct vb_queue *q, const struct vb_recv_wr *w, uint32_t n, const struct ibv_sge *sge, uint32_t nsge);
int vb_post_bind(struct ibv_qp *qp, struct vb_queue *q, struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr, uint64_t addr, uint64_t n, int access, uint64_t id, uint8_t flags);
int64_t vb_poll(struct vb_cq *cq, struct vb_wc *out, uint32_t n);
int vb_arm(struct vb_cq *cq);

// The table of what was loaded, for the other C files.

#define VB_VERBS(X)                                                            \
	X(ibv_get_device_list)                                                 \
	X(ibv_free_device_list)                                                \
	X(ibv_get_device_name)                                                 \
	X(ibv_open_device)                                                     \
	X(ibv_close_device)                                                    \
	X(ibv_query_device)                                                    \
	X(ibv_query_port)                                                      \
	X(ibv_alloc_pd)                                                        \
	X(ibv_dealloc_pd)                                                      \
	X(ibv_reg_mr)                                                          \
	X(ibv_dereg_mr)                                                        \
	X(ibv_create_comp_channel)                                             \
	X(ibv_destroy_comp_channel)                                            \
	X(ibv_create_cq)                                                       \
	X(ibv_destroy_cq)                                                      \
	X(ibv_get_cq_event)                                                    \
	X(ibv_ack_cq_events)                                                   \
	X(ibv_create_srq)                                                      \
	X(ibv_destroy_srq)                                                     \
	X(ibv_create_qp)                                                       \
	X(ibv_modify_qp)                                                       \
	X(ibv_query_qp)                                                        \
	X(ibv_destroy_qp)                                                      \
	X(ibv_create_ah)                                                       \
	X(ibv_destroy_ah)                                                      \
	X(ibv_get_async_event)                                                 \
	X(ibv_ack_async_event)

// Absent from older libraries: the pointer may be NULL.
#define VB_OPTIONAL(X)                                                         \
	X(_ibv_query_gid_table)                                                \
	X(ibv_is_fork_initialized)

#define VB_CM(X)                                                               \
	X(rdma_get_devices)                                                    \
	X(rdma_free_devices)                                                   \
	X(rdma_create_event_channel)                                           \
	X(rdma_destroy_event_channel)                                          \
	X(rdma_get_cm_event)                                                   \
	X(rdma_ack_cm_event)                                                   \
	X(rdma_create_id)                                                      \
	X(rdma_destroy_id)                                                     \
	X(rdma_set_option)                                                     \
	X(rdma_bind_addr)                                                      \
	X(rdma_listen)                                                         \
	X(rdma_resolve_addr)                                                   \
	X(rdma_resolve_route)                                                  \
	X(rdma_create_qp)                                                      \
	X(rdma_connect)                                                        \
	X(rdma_accept)                                                         \
	X(rdma_reject)                                                         \
	X(rdma_disconnect)                                                     \
	X(rdma_notify)

// The trailing underscore keeps the names apart from the macros of verbs.h.
#define VB_FIELD(name) __typeof__(name) *name##_;
struct vb_lib {
	VB_VERBS(VB_FIELD)
	VB_OPTIONAL(VB_FIELD)
	VB_CM(VB_FIELD)
};

extern struct vb_lib vb;

#endif
