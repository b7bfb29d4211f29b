/* stub.h - a software RDMA device for tests, in the place of libibverbs.so.1: what its parts share. verbs.c has the device
 * and its memory, completion.c completions, qp.c queue pairs, queue.c what is posted to them, wire.c, requester.c and
 * responder.c the device proper, a thread for each opened context. Contexts are found over abstract Unix sockets: a queue
 * pair's number is 12 bits for the context (its slot) and 12 bits within it.
 *
 * Where devices differ, this one does what is least convenient for a program:
 *  - data is placed from its end to its start, and read from its source as late as may be,
 *  - a slot of a send queue is free only when a later completion has been polled,
 *  - nothing is larger than was asked for; a completion queue that overflows ends the process,
 *  - a completion with an error has garbage in the fields that mean nothing then,
 *  - completions of a destroyed queue pair stay in their queue.
 *
 * To the thread sanitizer, what others do to a process's memory its device's thread does: after what the process did before
 * its last call of verbs, and at the same time as all it does until it has polled a completion that says more.
 *
 * Unlike real ones it tells a process that is slow from one that has ended, and never takes the first for the second.
 *
 * Environment, read when a device is opened:
 *  STUB_VERBS_NONE       there is no device
 *  STUB_VERBS_ADDRESS    the IPv4 address of GID 1, 127.0.0.1 by default
 *  STUB_VERBS_DELAY_US   what arrives is handled after a random time of up to so many microseconds
 *  STUB_VERBS_BREAK      one in so many posted sends breaks its queue pair, as exceeded retries would; in half of the
 *                        cases the message has arrived, and only its acknowledgement was lost
 *  STUB_VERBS_SEED       seed of what is random */
#ifndef STUB_H
#define STUB_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

enum {
	SLOTS = 4096,        /* contexts of one machine; 0 is not used */
	QPS = 4096,          /* queue pairs of one context */
	MRS = 65536,         /* memory regions of one context; 0 is not used */
	GIDS = 2,            /* filled entries of the GID table */
	GID_TABLE = 4,       /* its entries */
	MAX_SGE = 8,
	MAX_INLINE = 256,
	MAX_WR = 16384,      /* of one queue */
	MAX_CQE = 1 << 20,
	MAX_RD_ATOMIC = 16,
	MAX_MESSAGE = 1 << 23,
	PIECE = 64 << 10,    /* bytes of a message that go over the wire at once */
	WINDOW = 64,         /* requests under way, of one queue pair */
	PATIENCE_MS = 300,   /* how long a peer that can't be reached is tried: stands for timeout and retry count */
	TICK_MS = 10,        /* how often */
};

/* What can be destroyed. */
struct object {
	LIST_ENTRY(object) link;
	unsigned users; /* other objects that need this one */
};

struct stub_context {
	struct verbs_context verbs;
	struct object object;
	pthread_mutex_t lock; /* of all below, and of what belongs to the context's objects */
	LIST_ENTRY(stub_context) link;
	pthread_t thread;
	pid_t owner; /* the process that has the thread, which a forked child is not */
	int slot, listener, epoll, wake;
	bool stopping;
	struct stub_qp *qps[QPS];
	struct stub_mr *mrs[MRS];
	unsigned last_qp, last_mr;
	LIST_HEAD(, stub_qp) all_qps;
	LIST_HEAD(, connection) connections;
	union ibv_gid gids[GIDS];
	uint64_t random;
	unsigned delay_us, break_one_in;
};

struct stub_pd {
	struct ibv_pd ibv;
	struct object object;
};

struct stub_mr {
	struct ibv_mr ibv;
	struct object object;
	int access;
};

struct stub_channel {
	struct ibv_comp_channel ibv;
	struct object object;
	LIST_HEAD(, stub_cq) cqs;
};

struct completion {
	struct ibv_wc wc;
	struct stub_qp *qp; /* whose send queue has slots freed when this is polled; NULL: none */
	uint64_t head;      /* the head of its send queue from then on */
};

struct stub_cq {
	struct ibv_cq ibv;
	struct object object;
	LIST_ENTRY(stub_cq) link;
	struct completion *completions;
	uint64_t head, tail;
	enum { UNARMED, SOLICITED, ARMED } armed;
	unsigned events;  /* in the channel */
	unsigned unacked; /* taken from the channel */
};

struct receive {
	uint64_t wr_id;
	int num_sge;
	struct ibv_sge sges[MAX_SGE];
};

struct receive_queue {
	struct receive *receives;
	uint32_t capacity, max_sge;
	uint64_t head, tail;
};

struct stub_srq {
	struct ibv_srq ibv;
	struct object object;
	struct receive_queue queue;
};

struct request {
	uint64_t wr_id, remote;
	enum ibv_wr_opcode opcode;
	unsigned flags;
	uint32_t imm, rkey;
	uint32_t length, left; /* bytes, and those that have not been sent */
	int num_sge;
	enum { WELL, BREAKS_BEFORE, BREAKS_AFTER } fate;
	struct ibv_sge sges[MAX_SGE];
	uint8_t inlined[MAX_INLINE];
};

struct stub_qp {
	struct ibv_qp ibv;
	struct object object;
	LIST_ENTRY(stub_qp) link;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	/* Ever growing counts of requests: head..done are done but in their slots still, ..next are under way, ..tail wait. */
	struct request *requests;
	uint64_t head, done, next, tail;
	struct receive_queue own; /* without an SRQ */
	bool receiving;           /* a part of a SEND has come for this receive */
	struct receive receive;
	struct connection *outbound, *inbound;
	bool lost;            /* outbound was, and is not made again */
	uint64_t redial_ms;   /* not before */
	uint64_t deadline_ms; /* when the peer is given up; 0: no reason to */
	unsigned rnr_left;
};

/* verbs.c */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void object_add(struct object *object);
int object_remove(struct object *object, const char *name);
void object_use(struct object *object, int change);
struct stub_mr *find_mr(struct stub_context *context, struct ibv_pd *pd, uint32_t key, uint64_t address, uint64_t length,
			int access);
uint64_t random_number(struct stub_context *context);

/* completion.c; the last two under the context's lock */
int poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *ibv, int solicited_only);
void push_completion(struct ibv_cq *cq, const struct completion *completion, bool solicited);
void orphan_completions(struct ibv_cq *cq, struct stub_qp *qp);

/* queue.c; those without ibv under the context's lock */
int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
bool make_receives(struct receive_queue *queue, uint32_t capacity, uint32_t max_sge);
void complete_request(struct stub_qp *qp, enum ibv_wc_status status);
void break_qp(struct stub_qp *qp);

/* wire.c */
void *device_thread(void *context);
int open_slot(struct stub_context *context);
void wake(struct stub_context *context);
void disconnect(struct stub_qp *qp);
void close_wire(struct stub_context *context);

static inline struct stub_context *stub_context(struct ibv_context *context)
{
	return (struct stub_context *)((char *)context - offsetof(struct stub_context, verbs.context));
}

static inline struct receive_queue *receives_of(struct stub_qp *qp)
{
	return qp->ibv.srq ? &((struct stub_srq *)qp->ibv.srq)->queue : &qp->own;
}

#endif
