/* prov.h - what the files of the libfabric provider call of each other; objects.h says what they work on. */
#ifndef PROV_H
#define PROV_H

#include "objects.h"

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
extern struct fi_ops_atomic prov_atomic_ops;

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

/* eq.c: as fi_cq_strerror and fi_eq_strerror want it. */
const char *prov_strerror(int number, char *text, size_t length);

/* stubs.c: members of operation tables that nothing is done for. */
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
/* Tells the library of which peers something is awaited: what has been sent or begun waits for their answers, or receives
 * for them alone. */
void prov_peers_await(struct prov_ep *ep);
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

/* Messages taken in one reading, at most; and when there is no room to send, before a second attempt. */
#define PROV_READ_BUDGET 64
#define PROV_SEND_BUDGET 16
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
/* Whether a multi-receive with so much room left, in bytes, is at its end. */
bool prov_used_up(const struct prov_ep *ep, uint64_t left);
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
/* The operation with that peer that it names so, or NULL. */
struct prov_operation *prov_operation_find(const struct prov_peer *peer, uint64_t id);
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

/* atomic_take.c */
void prov_atomic_take(struct prov_ep *ep, struct prov_peer *peer, const struct pm_message *message);

/* atomic.c */
static inline bool prov_atomic_has_operands(enum fi_op op)
{
	return op != FI_ATOMIC_READ;
}
void prov_atomic_result(struct prov_peer *peer, const struct pm_message *message);
void prov_atomic_ended(struct prov_operation *operation, int status);
int prov_query_atomic(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op, struct fi_atomic_attr *attr,
		      uint64_t flags);

/* atomic_apply.c */
/* Bytes of an element; 0: there is no such operation on that datatype. The others are for what there is. */
size_t prov_atomic_size(enum wire_form form, enum fi_datatype datatype, enum fi_op op);
bool prov_atomic_aligned(enum fi_datatype datatype, uint64_t address);
/* Does it to so many bytes at the target. NULL where there are no operands, nothing to compare with, no result wanted. */
void prov_atomic_apply(enum fi_datatype datatype, enum fi_op op, void *target, const char *operand, const char *compare,
		       char *result, size_t bytes);

/* collector.c: what queues and counters have in common; the functions are called with the lock held, but for the first
 * two and the last two. */
int prov_collector_init(struct prov_collector *collector, struct fid_domain *domain, enum fi_wait_obj object);
void prov_collector_close(struct prov_collector *collector);
int prov_collector_bind(struct prov_collector *collector, struct prov_ep *ep);
void prov_collector_unbind(struct prov_collector *collector, struct prov_ep *ep);
/* All those of an endpoint, each as often as it is bound; NULL where there is none. */
void prov_collectors_of(const struct prov_ep *ep, struct prov_collector *collectors[PROV_COLLECTORS]);
/* Makes what is slept on; 0 or -errno. */
int prov_collector_open(struct prov_collector *collector);
/* Sleeps, without the lock, until something may have come: true; false: the time is over, or it was signaled. Then, and
 * when something has come, prov_collector_awake is to be called. */
bool prov_collector_sleep(struct prov_collector *collector, uint64_t deadline);
void prov_collector_awake(struct prov_collector *collector);
/* Wakes who sleeps, because something has been put into it. */
void prov_collector_ring(struct prov_collector *collector);
/* The time by which a call with that timeout, in ms, has to return: ns, UINT64_MAX: never. */
uint64_t prov_deadline(int timeout_ms);
void prov_collector_signal(struct prov_collector *collector);
int prov_collector_control(struct prov_collector *collector, int command, void *argument);
int prov_trywait(struct fid_fabric *fabric, struct fid **fids, int count);
/* Whether the caller has something to read before it sleeps. */
bool prov_cq_has_news(const struct fid *fid);
bool prov_cntr_has_news(const struct fid *fid);
int prov_eq_trywait(struct fid *fid);

/* cq.c */
void prov_cq_grow(struct prov_cq *cq);
void prov_cq_error(struct prov_cq *cq, const struct fi_cq_err_entry *entry, fi_addr_t source);

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
		if (unlikely(cq->collector.armed))
			prov_collector_ring(&cq->collector);
	}
	entry->op_context = context;
	entry->flags = flags;
	entry->len = length;
	entry->buf = buffer;
	entry->data = data;
	entry->tag = tag;
}

static inline void prov_cntr_count(struct prov_cntr *cntr, bool error)
{
	if (unlikely(error))
		cntr->errors++;
	else
		cntr->value++;
	if (unlikely(cntr->collector.armed))
		prov_collector_ring(&cntr->collector);
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

/* What has to be heard from the peer before a send may be reported that is to be as complete as these flags say. On shm
 * what was sent is with the peer at once, but the udp rail still needs this process. */
static inline uint32_t prov_confirmation(uint64_t flags)
{
	if (flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE))
		return PROV_CONFIRM;
	return flags & FI_TRANSMIT_COMPLETE ? PROV_CONFIRM | PROV_ON_ARRIVAL : 0;
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
		prov_cntr_count(ep->send_cntr, false);
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
