//go:build linux && cgo && !nordma

#include <errno.h>
#include <stdlib.h>

#include "shim.h"

// vb_new_queue has one reference, the caller's.
struct vb_queue *vb_new_queue(uint32_t depth, uint32_t max_sge, int shared)
{
	struct vb_queue *q;
	uint32_t size = 1;

	while (size < depth)
		size *= 2;
	q = calloc(1, sizeof *q + size * sizeof q->slot[0]);
	if (!q)
		return NULL;
	q->refs = 1;
	q->shared = shared;
	q->depth = depth;
	q->mask = size - 1;
	q->max_sge = max_sge;
	for (uint32_t i = 0; i < size; i++)
		q->slot[i].q = q;
	if (!shared)
		return q;
	q->unused_slots = calloc(depth, sizeof q->unused_slots[0]);
	if (!q->unused_slots) {
		free(q);
		errno = ENOMEM;
		return NULL;
	}
	for (uint32_t i = 0; i < depth; i++)
		q->unused_slots[q->unused++] = depth - 1 - i;
	return q;
}

void vb_ref(struct vb_queue *q)
{
	__atomic_add_fetch(&q->refs, 1, __ATOMIC_RELAXED);
}

void vb_unref(struct vb_queue *q)
{
	if (__atomic_sub_fetch(&q->refs, 1, __ATOMIC_ACQ_REL))
		return;
	free(q->unused_slots);
	free(q);
}

// vb_kill makes later polls drop what completes of the queue.
void vb_kill(struct vb_queue *q)
{
	__atomic_store_n(&q->dead, 1, __ATOMIC_RELEASE);
}

// vb_bury gives the caller's reference to the CQ, once the QP is destroyed. Any
// thread may call it.
void vb_bury(struct vb_cq *cq, struct vb_queue *q)
{
	struct vb_grave *g = malloc(sizeof *g);

	if (!g)
		return; // the queue leaks: better than to free it under a completion
	g->q = q;
	g->next = __atomic_load_n(&cq->graves, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&cq->graves, &g->next, g, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

void vb_open_graves(struct vb_grave *g)
{
	while (g) {
		struct vb_grave *next = g->next;

		vb_unref(g->q);
		free(g);
		g = next;
	}
}
