/*
 * prov.h - the objects of the libfabric provider "pm", and what its files call of each other.
 *
 * Locking: an endpoint, its queues and its peers belong to one thread at a time, as with FI_THREAD_DOMAIN. Where the
 * caller asked for more, the domain is "locked": each operation that the caller calls takes the domain's mutex
 * (prov_lock, prov_unlock), and nothing inside takes it again.
 */
#ifndef PROV_H
#define PROV_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uthash.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include "pm.h"
#include "pool.h"
#include "wire.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define PROV_NAME "pm"
#define PROV_IOV_LIMIT WIRE_PARTS
#define PROV_SEGMENTS (2 * PROV_IOV_LIMIT - 1) /* pieces when one list of parts is laid over another */
#define PROV_ADDRESS_FORMAT (FI_PROV_SPECIFIC | 0x504d)
#define PROV_EAGER_LIMIT (PM_MAX_MESSAGE - sizeof(struct wire_request)) /* FI_PM_EAGER is at most this */
#define PROV_LEAST_INJECT 512 /* bytes; Intel MPI injects its own headers whatever it was promised */
#define PROV_MESSAGE_LIMIT ((size_t)1 << 40) /* bytes */
#define PROV_QUEUE_SIZE 1024                 /* of a context, as promised; the real ones grow */
#define PROV_QUEUE_LIMIT 65536               /* the most that a caller may ask for */
#define PROV_MR_MODE (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

extern struct fi_provider prov_provider;

/* The tunables, read once when the provider is loaded. */
struct prov_tunables {
	size_t eager;      /* FI_PM_EAGER: bytes of payload sent along with the header */
	size_t inject;     /* bytes that may be injected: as many, but no fewer than callers rely on */
	size_t unexpected; /* FI_PM_UNEXPECTED: bytes of messages kept for receives to come, before senders are told to hold */
};
extern struct prov_tunables prov_tunables;

struct prov_fabric {
	struct fid_fabric fid;
	int users; /* open domains and event queues */
};

struct prov_domain {
	struct fid_domain fid;
	struct prov_fabric *fabric;
	struct pm_context *context;
	bool locked;
	pthread_mutex_t mutex;
	int users; /* what is open in it; atomic */
};

struct prov_mr {
	struct fid_mr fid;
	struct prov_domain *domain;
	struct pm_region *region; /* NULL where nobody else may access it */
};

/* An address known to the caller by its fi_addr_t, the entry's number. Entries stay where they are. */
struct prov_av_entry {
	struct pm_address address;
	uint32_t index;
	bool used;
	UT_hash_handle by_address; /* the first entry of an address only */
};

struct prov_ep;

struct prov_av {
	struct fid_av fid;
	struct prov_domain *domain;
	struct prov_pool entries;
	uint32_t count; /* entries ever used: those above are not */
	struct prov_av_entry *by_address;
	LIST_HEAD(, prov_ep) endpoints; /* bound to it */
};

/* What a completion says; the entries of all formats begin alike. */
struct prov_completion {
	struct fi_cq_tagged_entry entry;
	fi_addr_t source;
};

struct prov_cq_error {
	struct fi_cq_err_entry entry;
	fi_addr_t source;
	STAILQ_ENTRY(prov_cq_error) link;
};

struct prov_cq {
	struct fid_cq fid;
	/* The buffer of the caller who is reading just now: completions go there at once if it takes whole entries. */
	struct fi_cq_tagged_entry *direct, *direct_end;
	struct prov_completion *ring;
	uint32_t head, tail, mask; /* taken, put, entries of the ring less one */
	size_t entry_size;
	struct prov_domain *domain;
	STAILQ_HEAD(, prov_cq_error) errors;
	struct prov_ep **endpoints;
	uint32_t endpoint_count;
	int users; /* bindings */
	uint32_t spin_credit, empty_readings; /* see look_on */
	bool was_empty; /* the last reading found nothing */
	bool signaled;
	struct prov_cq_error *last_error; /* whose data the caller may still look at */
};

struct prov_cntr {
	struct fid_cntr fid;
	struct prov_domain *domain;
	uint64_t value, errors;
	struct prov_ep **endpoints;
	uint32_t endpoint_count;
	int users;
};

/* A control message that found no room. */
struct prov_control {
	STAILQ_ENTRY(prov_control) link;
	uint8_t kind;
	uint8_t length;
	char bytes[sizeof(struct wire_fin)];
};

/* What an endpoint knows of another. Lives as long as the endpoint. */
struct prov_peer {
	struct pm_peer *pm;
	size_t eager_room;  /* payloads must be shorter to go eagerly; 0 on HOLD */
	fi_addr_t address;  /* FI_ADDR_NOTAVAIL as long as the address vector lacks it */
	struct prov_ep *endpoint;
	bool gone;
	bool holding;       /* we said HOLD to it */
	uint64_t held;      /* bytes that came from it since */
	TAILQ_ENTRY(prov_peer) link;    /* all of the endpoint */
	TAILQ_ENTRY(prov_peer) blocked; /* those with controls */
	STAILQ_HEAD(, prov_control) controls;
	TAILQ_HEAD(, prov_operation) operations; /* not ended */
};

/* Bits of prov_receive.flags and prov_arrival.flags; the first two are those of the wire. */
#define PROV_TAGGED WIRE_IS_TAGGED
#define PROV_DATA WIRE_HAS_DATA
#define PROV_RTS 4u      /* arrival: the payload is still with the sender */
#define PROV_CONFIRM 8u  /* arrival: the sender waits for a FIN; send: a FIN is wanted */
#define PROV_COMPLETE 16u /* a completion is wanted */
#define PROV_MULTI 32u   /* receive: takes messages one after the other until it is used up */
#define PROV_RETIRED 64u /* multi-receive: takes no more */
#define PROV_INJECT 128u /* send: the buffer is free at once */

/* A receive that waits for its message. */
struct prov_receive {
	TAILQ_ENTRY(prov_receive) link;
	uint64_t tag, mask; /* those bits of the tag that count */
	struct prov_peer *peer; /* only from it; NULL: from any */
	void *context;
	uint32_t flags;
	uint32_t part_count;
	uint32_t children; /* of a multi-receive: messages being read into it */
	struct iovec parts[PROV_IOV_LIMIT];
};
TAILQ_HEAD(prov_receives, prov_receive);

/* A message as it came, or as it waits for a receive. */
struct prov_arrival {
	struct prov_peer *peer;
	uint64_t tag, data, request;
	uint32_t flags;
	uint32_t part_count;    /* of an RTS */
	uint64_t length;        /* bytes, all of them */
	const void *payload;    /* not of an RTS */
	struct wire_part parts[WIRE_PARTS];
};

#define PROV_INLINE_PAYLOAD 128

/* A message that nobody has asked for so far. */
struct prov_unexpected {
	TAILQ_ENTRY(prov_unexpected) link;
	struct prov_arrival arrival;
	uint32_t size; /* bytes counted against the bound */
	void *buffer;  /* from the pool of large payloads, or NULL */
	char payload[PROV_INLINE_PAYLOAD];
};
TAILQ_HEAD(prov_unexpecteds, prov_unexpected);

/* Messages match receives of the same side only. */
struct prov_side {
	struct prov_receives posted;
	struct prov_unexpecteds unexpected;
};

/* How an operation ended, for its completion. */
struct prov_ended {
	uint32_t flags; /* PROV_TAGGED, PROV_DATA, PROV_COMPLETE */
	int status;     /* 0 or -errno */
	void *context;
	void *buffer;   /* of a receive: where it begins */
	uint64_t length, overflow; /* bytes moved, and those that had no place */
	uint64_t tag, data;
	fi_addr_t source;
	struct prov_receive *multi; /* the multi-receive that it went into */
};

/* What is to be sent. */
struct prov_send {
	const struct iovec *parts;
	size_t count;
	uint64_t length; /* bytes of all parts */
	uint64_t tag, data;
	void *context;
	uint32_t flags;  /* PROV_TAGGED, PROV_DATA, PROV_COMPLETE, PROV_CONFIRM, PROV_INJECT */
};

enum prov_operation_type {
	PROV_FREE = 0,
	PROV_SEND,          /* waits for a FIN */
	PROV_RECEIVE_READ,  /* pm_read of a matched RTS */
	PROV_RMA_READ,
	PROV_RMA_WRITE,
};

/* A piece of memory to be moved by one pm_read or pm_write. */
struct prov_segment {
	void *local;
	uint64_t address, key;
	size_t length;
};

/* Something under way that ends later than the call which began it. */
struct prov_operation {
	TAILQ_ENTRY(prov_operation) link; /* of its peer */
	TAILQ_ENTRY(prov_operation) retry;
	enum prov_operation_type type;
	uint32_t index, generation;
	bool retrying;
	struct prov_peer *peer;
	int status;                     /* the first failure */
	struct prov_ended ended_ok;     /* what to report if there was none */
	uint64_t request;               /* of a receive: the sender's, to be answered */
	void *copy;                     /* of something injected; freed at the end */
	struct pm_region *regions[WIRE_PARTS]; /* registered for it */
	uint32_t region_count;
	uint32_t count, started, ended; /* of the segments */
	struct prov_segment segments[PROV_SEGMENTS];
};
TAILQ_HEAD(prov_operations, prov_operation);

struct prov_ep {
	struct fid_ep fid;
	struct prov_domain *domain;
	struct pm_endpoint *pm;
	struct prov_peer **peers; /* by fi_addr_t, filled on first use */
	uint64_t peer_count;
	uint32_t send_flags, receive_flags; /* what calls without flags mean: PROV_COMPLETE, PROV_CONFIRM, ... */
	uint32_t sends;             /* since the endpoint last took what had arrived */
	struct prov_cq *tx_cq, *rx_cq;
	struct prov_cntr *send_cntr, *receive_cntr, *read_cntr, *write_cntr;
	struct prov_side tagged, untagged;
	struct prov_pool receives, unexpecteds, payloads, operations;
	struct prov_operations retries;     /* waiting for room */
	uint32_t retry_count;
	uint32_t transfers;                 /* pm_reads and pm_writes under way */
	TAILQ_HEAD(prov_peers, prov_peer) all_peers;
	uint32_t known_peers;
	struct prov_peers blocked;
	size_t min_multi_receive;
	uint64_t caps, tx_op_flags, rx_op_flags;
	size_t eager;
	uint64_t unexpected_bytes;
	uint32_t holding;                   /* peers told to hold */
	uint64_t dropped;                   /* messages that made no sense */
	struct prov_unexpecteds claimed;
	struct prov_av *av;
	LIST_ENTRY(prov_ep) av_link;
	bool enabled, tx_selective, rx_selective;
};

static inline void prov_lock(struct prov_domain *domain)
{
	if (unlikely(domain->locked))
		pthread_mutex_lock(&domain->mutex);
}

static inline void prov_unlock(struct prov_domain *domain)
{
	if (unlikely(domain->locked))
		pthread_mutex_unlock(&domain->mutex);
}

/* info.c */
int prov_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
		 struct fi_info **info);
/* hints.c: 0 or -FI_ENODATA. */
int prov_check_hints(uint32_t version, const struct fi_info *hints);
uint64_t prov_capabilities(void);
/* fabric.c, eq.c, domain.c, mr.c, av.c, cq.c, cntr.c, ep.c: what opens each object. */
int prov_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int prov_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context);
int prov_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context);
int prov_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
int prov_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
int prov_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context);
int prov_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
extern struct fi_ops_mr prov_mr_ops;
extern struct fi_ops_msg prov_msg_ops;
extern struct fi_ops_tagged prov_tagged_ops;
extern struct fi_ops_rma prov_rma_ops;

/* send.c: those members of the tables that receive.c does not fill, and the other way round. */
ssize_t prov_recv(struct fid_ep *fid, void *buffer, size_t length, void *descriptor, fi_addr_t source, void *context);
ssize_t prov_recvv(struct fid_ep *fid, const struct iovec *parts, void **descriptors, size_t count, fi_addr_t source,
		   void *context);
ssize_t prov_recvmsg(struct fid_ep *fid, const struct fi_msg *message, uint64_t flags);
ssize_t prov_trecv(struct fid_ep *fid, void *buffer, size_t length, void *descriptor, fi_addr_t source, uint64_t tag,
		   uint64_t ignore, void *context);
ssize_t prov_trecvv(struct fid_ep *fid, const struct iovec *parts, void **descriptors, size_t count, fi_addr_t source,
		    uint64_t tag, uint64_t ignore, void *context);
ssize_t prov_trecvmsg(struct fid_ep *fid, const struct fi_msg_tagged *message, uint64_t flags);
ssize_t prov_cancel(fid_t fid, void *context);

/* stubs.c: members of operation tables that nothing is done for. */
extern struct fi_ops_atomic prov_atomic_stubs;
extern struct fi_ops_collective prov_collective_stubs;
int prov_no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int prov_no_control(struct fid *fid, int command, void *argument);
int prov_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
int prov_no_tostr(const struct fid *fid, char *text, size_t length);
int prov_no_ops_set(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context);
#define PROV_FID_OPS(close_, bind_, control_)                                                                        \
	{                                                                                                             \
		.size = sizeof(struct fi_ops), .close = close_, .bind = bind_, .control = control_,                   \
		.ops_open = prov_no_ops_open, .tostr = prov_no_tostr, .ops_set = prov_no_ops_set,                     \
	}

/* av.c: the address at a fi_addr_t, or NULL; the first fi_addr_t of an address, or FI_ADDR_NOTAVAIL. */
const struct pm_address *prov_av_address(const struct prov_av *av, fi_addr_t address);
fi_addr_t prov_av_find(const struct prov_av *av, const struct pm_address *address);

/* peer.c */
int prov_peer_resolve(struct prov_ep *ep, fi_addr_t address, struct prov_peer **peer);
struct prov_peer *prov_peer_new(struct prov_ep *ep, struct pm_peer *pm);
void prov_peer_inserted(struct prov_ep *ep, const struct pm_address *address, fi_addr_t index);
void prov_peer_removed(struct prov_ep *ep, fi_addr_t index);
/* Sends a control message now or, when there is no room, later. */
void prov_peer_control(struct prov_peer *peer, uint8_t kind, const void *bytes, size_t length);
void prov_peer_unblock(struct prov_ep *ep);
void prov_peer_gone(struct prov_peer *peer, int status);
void prov_peers_free(struct prov_ep *ep);

/* The peer at an address: 0, or -errno. */
static inline int prov_peer_at(struct prov_ep *ep, fi_addr_t address, struct prov_peer **peer)
{
	if (likely(address < ep->peer_count && ep->peers[address])) {
		*peer = ep->peers[address];
		return 0;
	}
	return prov_peer_resolve(ep, address, peer);
}

/* The peer that a message is from; NULL when there is no memory. */
static inline struct prov_peer *prov_peer_of(struct prov_ep *ep, struct pm_peer *pm)
{
	struct prov_peer *peer = pm_peer_data(pm);

	return likely(peer) ? peer : prov_peer_new(ep, pm);
}

/* progress.c: does what is there to do, at most so many messages; how many there were. */
int prov_progress(struct prov_ep *ep, int budget);
/* Counts a message that made no sense. */
void prov_drop(struct prov_ep *ep, const char *why);

/* match.c */
/* Gives a message to the receive that takes it or, if that is NULL, keeps it. */
void prov_arrive(struct prov_ep *ep, struct prov_side *side, struct prov_receive *receive,
		 const struct prov_arrival *arrival);
/* Gives a message to a receive: a multi-receive, posted, or another, in no list, which is given back to its pool. */
void prov_deliver(struct prov_ep *ep, struct prov_receive *receive, const struct prov_arrival *arrival);
/* The reading that prov_deliver began has ended. */
void prov_read_ended(struct prov_ep *ep, const struct prov_ended *ended);
/* Ends a posted receive without a message. */
void prov_fail_receive(struct prov_ep *ep, struct prov_side *side, struct prov_receive *receive, int status);
/* The first unexpected message that such a receive takes, or NULL. */
struct prov_unexpected *prov_find_unexpected(struct prov_side *side, const struct prov_receive *receive);
/* Gives back one that is in no list any more. */
void prov_free_unexpected(struct prov_ep *ep, struct prov_unexpected *unexpected);
void prov_discard(const struct prov_arrival *arrival);
void prov_sides_open(struct prov_ep *ep);
void prov_sides_close(struct prov_ep *ep);

/* The posted receive that takes a message of that tag, or NULL. */
static inline struct prov_receive *prov_match(struct prov_side *side, const struct prov_peer *peer, uint64_t tag)
{
	struct prov_receive *receive;

	TAILQ_FOREACH(receive, &side->posted, link) {
		if (((receive->tag ^ tag) & receive->mask) == 0 && (!receive->peer || receive->peer == peer))
			break;
	}
	return receive;
}

/* operation.c */
struct prov_operation *prov_operation_new(struct prov_peer *peer, enum prov_operation_type type);
void prov_operation_end(struct prov_operation *operation);
uint64_t prov_operation_id(const struct prov_operation *operation);
/* Lays local parts over remote ones: the segments of the operation. */
void prov_operation_lay(struct prov_operation *operation, const struct iovec *local, size_t local_count,
			const struct wire_part *remote, size_t remote_count);
/* Starts what segments there is room for, and ends the operation when all have ended. */
void prov_operation_run(struct prov_operation *operation);
/* Ends an operation whose peer is gone. */
void prov_operation_abandon(struct prov_operation *operation, int status);
void prov_operation_event(const struct pm_event *event);
void prov_operations_retry(struct prov_ep *ep);
void prov_operations_free(struct prov_peer *peer);

/* rendezvous.c */
int prov_rendezvous_send(struct prov_peer *peer, const struct prov_send *send);
int prov_confirm_send(struct prov_peer *peer, const struct prov_send *send);
void prov_send_ended(struct prov_operation *operation, int status);
void prov_answer(struct prov_peer *peer, uint64_t request, int status);
void prov_fin(struct prov_peer *peer, const struct wire_fin *fin);
void prov_rendezvous_read(const struct prov_arrival *arrival, const struct iovec *parts, size_t count,
			  const struct prov_ended *ended);
void prov_rendezvous_ended(struct prov_operation *operation);
/* Reports the end of a send, read or write. */
void prov_report_sent(struct prov_ep *ep, struct prov_cntr *cntr, const struct prov_ended *ended, uint64_t flags);

/* rma.c */
void prov_rma_ended(struct prov_operation *operation);

/* cq.c */
void prov_cq_grow(struct prov_cq *cq);
void prov_cq_error(struct prov_cq *cq, const struct fi_cq_err_entry *entry, fi_addr_t source);
int prov_cq_add_endpoint(struct prov_ep ***list, uint32_t *count, struct prov_ep *ep);
void prov_cq_remove_endpoint(struct prov_ep **list, uint32_t *count, struct prov_ep *ep);

static inline void prov_cq_put(struct prov_cq *cq, void *context, uint64_t flags, size_t length, void *buffer,
			       uint64_t data, uint64_t tag, fi_addr_t source)
{
	struct fi_cq_tagged_entry *entry;

	if (likely(cq->direct != cq->direct_end)) {
		entry = cq->direct++;
	} else {
		if (unlikely(cq->tail - cq->head > cq->mask))
			prov_cq_grow(cq);
		cq->ring[cq->tail & cq->mask].source = source;
		entry = &cq->ring[cq->tail++ & cq->mask].entry;
	}
	entry->op_context = context;
	entry->flags = flags;
	entry->len = length;
	entry->buf = buffer;
	entry->data = data;
	entry->tag = tag;
}

static inline uint64_t prov_receive_flags(uint32_t flags)
{
	return FI_RECV | (flags & PROV_TAGGED ? FI_TAGGED : FI_MSG) | (flags & PROV_DATA ? FI_REMOTE_CQ_DATA : 0);
}

static inline uint64_t prov_send_completion(uint32_t flags)
{
	return FI_SEND | (flags & PROV_TAGGED ? FI_TAGGED : FI_MSG);
}

static inline bool prov_wants_completion(const struct prov_cq *cq, bool selective, uint64_t flags)
{
	return cq && (!selective || flags & FI_COMPLETION);
}

/* The kind of an eager message with those flags. */
static inline uint8_t prov_eager_kind(uint32_t flags)
{
	if (flags & PROV_TAGGED)
		return flags & PROV_DATA ? WIRE_TAGGED_DATA : WIRE_TAGGED;
	return flags & PROV_DATA ? WIRE_MSG_DATA : WIRE_MSG;
}

/* Reports a send that has ended at once. */
static inline void prov_sent(struct prov_ep *ep, uint32_t flags, void *context, size_t length)
{
	if (flags & PROV_COMPLETE)
		prov_cq_put(ep->tx_cq, context, prov_send_completion(flags), length, NULL, 0, 0, FI_ADDR_NOTAVAIL);
	if (unlikely(ep->send_cntr))
		ep->send_cntr->value++;
}

/* memcpy, without a call for what most messages are. */
static inline void prov_copy(void *to, const void *from, size_t length)
{
	if (length == 8)
		__builtin_memcpy(to, from, 8);
	else if (length)
		__builtin_memcpy(to, from, length);
}

#endif
