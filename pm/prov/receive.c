/* receive.c - posting of receives, looking at what has come (peek, claim, discard), cancelling. */
#include <string.h>

#include "prov.h"

#define PEEK_BUDGET 64 /* messages taken before a look */

static struct prov_receive *new_receive(struct prov_ep *ep, const struct iovec *parts, size_t count, uint64_t tag,
					uint64_t ignore, void *context, uint32_t flags)
{
	struct prov_receive *receive = prov_pool_take(&ep->receives);

	if (unlikely(!receive))
		return NULL;
	receive->tag = tag;
	receive->mask = ~ignore;
	receive->peer = NULL;
	receive->context = context;
	receive->flags = flags;
	receive->children = 0;
	receive->part_count = count;
	if (likely(count == 1)) {
		receive->parts[0] = parts[0];
	} else {
		receive->parts[0].iov_base = NULL;
		memcpy(receive->parts, parts, count * sizeof(*parts));
	}
	return receive;
}

static int set_source(struct prov_ep *ep, struct prov_receive *receive, fi_addr_t source)
{
	if (source == FI_ADDR_UNSPEC || !(ep->caps & FI_DIRECTED_RECV))
		return 0;
	return prov_peer_at(ep, source, &receive->peer);
}

/* A multi-receive takes all that has come so far and that it has room for. */
static void post_multi(struct prov_ep *ep, struct prov_side *side, struct prov_receive *receive)
{
	struct prov_unexpected *unexpected;
	bool retired = false;

	TAILQ_INSERT_TAIL(&side->posted, receive, link);
	while (!retired && (unexpected = prov_find_unexpected(side, receive))) {
		uint64_t left = receive->parts[0].iov_len, length = unexpected->arrival.length;

		/* After its last message the receive may be gone. */
		retired = prov_used_up(ep, left > length ? left - length : 0);
		TAILQ_REMOVE(&side->unexpected, unexpected, link);
		prov_deliver(ep, receive, &unexpected->arrival);
		prov_free_unexpected(ep, unexpected);
	}
}

/* Called with the lock held; the receive goes to a message that waits, or waits itself. */
static inline ssize_t post(struct prov_ep *ep, struct prov_side *side, struct prov_receive *receive, fi_addr_t source)
{
	struct prov_unexpected *unexpected;
	int status;

	if (unlikely(!receive))
		return -FI_EAGAIN;
	status = set_source(ep, receive, source);
	if (unlikely(status)) {
		prov_pool_give(&ep->receives, receive);
		return status;
	}
	if (unlikely(receive->flags & PROV_MULTI)) {
		post_multi(ep, side, receive);
		return 0;
	}
	if (likely(TAILQ_EMPTY(&side->unexpected)) || !(unexpected = prov_find_unexpected(side, receive))) {
		TAILQ_INSERT_TAIL(&side->posted, receive, link);
		if (unlikely(receive->peer && receive->peer->gone))
			prov_fail_receive(ep, side, receive, -FI_EHOSTDOWN);
		return 0;
	}
	TAILQ_REMOVE(&side->unexpected, unexpected, link);
	prov_deliver(ep, receive, &unexpected->arrival);
	prov_free_unexpected(ep, unexpected);
	return 0;
}

static ssize_t post_parts(struct prov_ep *ep, struct prov_side *side, const struct iovec *parts, size_t count,
			  fi_addr_t source, uint64_t tag, uint64_t ignore, void *context, uint32_t flags)
{
	ssize_t status;

	if (unlikely(count > PROV_IOV_LIMIT || (flags & PROV_MULTI && (count != 1 || side == &ep->tagged))))
		return -FI_EINVAL;
	prov_lock(ep->domain);
	status = post(ep, side, new_receive(ep, parts, count, tag, ignore, context, flags), source);
	prov_unlock(ep->domain);
	return status;
}

ssize_t prov_recv(struct fid_ep *fid, void *buffer, size_t length, void *descriptor, fi_addr_t source, void *context)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	struct iovec part = { .iov_base = buffer, .iov_len = length };

	(void)descriptor;
	return post_parts(ep, &ep->untagged, &part, 1, source, 0, 0, context, ep->receive_flags);
}

ssize_t prov_recvv(struct fid_ep *fid, const struct iovec *parts, void **descriptors, size_t count, fi_addr_t source,
		   void *context)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);

	(void)descriptors;
	return post_parts(ep, &ep->untagged, parts, count, source, 0, 0, context, ep->receive_flags);
}

ssize_t prov_recvmsg(struct fid_ep *fid, const struct fi_msg *message, uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	uint32_t own = prov_wants_completion(ep->rx_cq, ep->rx_selective, flags) ? PROV_COMPLETE : 0;

	if (flags & (FI_PEEK | FI_CLAIM | FI_DISCARD))
		return -FI_EBADFLAGS;
	if (flags & FI_MULTI_RECV)
		own |= PROV_MULTI;
	return post_parts(ep, &ep->untagged, message->msg_iov, message->iov_count, message->addr, 0, 0,
			  message->context, own);
}

ssize_t prov_trecv(struct fid_ep *fid, void *buffer, size_t length, void *descriptor, fi_addr_t source, uint64_t tag,
		   uint64_t ignore, void *context)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	struct iovec part = { .iov_base = buffer, .iov_len = length };
	ssize_t status;

	(void)descriptor;
	prov_lock(ep->domain);
	status = post(ep, &ep->tagged,
		      new_receive(ep, &part, 1, tag, ignore, context, ep->receive_flags & ~PROV_MULTI), source);
	prov_unlock(ep->domain);
	return status;
}

ssize_t prov_trecvv(struct fid_ep *fid, const struct iovec *parts, void **descriptors, size_t count, fi_addr_t source,
		    uint64_t tag, uint64_t ignore, void *context)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);

	(void)descriptors;
	return post_parts(ep, &ep->tagged, parts, count, source, tag, ignore, context, ep->receive_flags & ~PROV_MULTI);
}

/* Reports on a message that stays where it is, or is thrown away. */
static void report_found(struct prov_ep *ep, const struct prov_arrival *arrival, void *context)
{
	if (ep->rx_cq)
		prov_cq_put(ep->rx_cq, context, prov_receive_flags(arrival->flags), arrival->length, NULL,
			    arrival->data, arrival->tag, arrival->peer->address);
}

static void report_none(struct prov_ep *ep, const struct fi_msg_tagged *message)
{
	struct fi_cq_err_entry error = {
		.op_context = message->context,
		.flags = FI_RECV | FI_TAGGED,
		.tag = message->tag,
		.err = FI_ENOMSG,
		.prov_errno = FI_ENOMSG,
	};

	if (ep->rx_cq)
		prov_cq_error(ep->rx_cq, &error, FI_ADDR_NOTAVAIL);
}

static void throw_away(struct prov_ep *ep, struct prov_unexpected *unexpected)
{
	prov_discard(&unexpected->arrival);
	prov_free_unexpected(ep, unexpected);
}

static int peek(struct prov_ep *ep, const struct fi_msg_tagged *message, uint64_t flags)
{
	struct prov_receive wanted = { .tag = message->tag, .mask = ~message->ignore };
	struct prov_unexpected *unexpected;
	int status = set_source(ep, &wanted, message->addr);

	if (status)
		return status;
	unexpected = prov_find_unexpected(&ep->tagged, &wanted);
	if (!unexpected) {
		prov_progress(ep, PEEK_BUDGET);
		unexpected = prov_find_unexpected(&ep->tagged, &wanted);
	}
	if (!unexpected) {
		report_none(ep, message);
		return 0;
	}
	report_found(ep, &unexpected->arrival, message->context);
	if (!(flags & (FI_CLAIM | FI_DISCARD)))
		return 0;
	TAILQ_REMOVE(&ep->tagged.unexpected, unexpected, link);
	if (flags & FI_DISCARD) {
		throw_away(ep, unexpected);
	} else {
		TAILQ_INSERT_TAIL(&ep->claimed, unexpected, link);
		((struct fi_context *)message->context)->internal[0] = unexpected;
	}
	return 0;
}

static int claim(struct prov_ep *ep, const struct fi_msg_tagged *message, uint64_t flags, uint32_t own)
{
	struct fi_context *context = message->context;
	struct prov_unexpected *unexpected = context ? context->internal[0] : NULL;
	struct prov_receive *receive;

	if (!unexpected)
		return -FI_EINVAL;
	if (flags & FI_DISCARD) {
		TAILQ_REMOVE(&ep->claimed, unexpected, link);
		report_found(ep, &unexpected->arrival, context);
		throw_away(ep, unexpected);
		return 0;
	}
	receive = new_receive(ep, message->msg_iov, message->iov_count, message->tag, message->ignore, context, own);
	if (!receive)
		return -FI_EAGAIN;
	TAILQ_REMOVE(&ep->claimed, unexpected, link);
	prov_deliver(ep, receive, &unexpected->arrival);
	prov_free_unexpected(ep, unexpected);
	return 0;
}

ssize_t prov_trecvmsg(struct fid_ep *fid, const struct fi_msg_tagged *message, uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	uint32_t own = prov_wants_completion(ep->rx_cq, ep->rx_selective, flags) ? PROV_COMPLETE : 0;
	ssize_t status;

	if (!(flags & (FI_PEEK | FI_CLAIM)))
		return flags & FI_DISCARD ? -FI_EBADFLAGS :
					    post_parts(ep, &ep->tagged, message->msg_iov, message->iov_count,
						       message->addr, message->tag, message->ignore, message->context,
						       own);
	if (message->iov_count > PROV_IOV_LIMIT || (flags & FI_CLAIM && !message->context))
		return -FI_EINVAL;
	prov_lock(ep->domain);
	status = flags & FI_PEEK ? peek(ep, message, flags) : claim(ep, message, flags, own);
	prov_unlock(ep->domain);
	return status;
}

static bool cancel(struct prov_ep *ep, struct prov_side *side, void *context)
{
	struct prov_receive *receive;

	TAILQ_FOREACH(receive, &side->posted, link) {
		if (receive->context == context) {
			prov_fail_receive(ep, side, receive, -FI_ECANCELED);
			return true;
		}
	}
	return false;
}

/* What is under way already goes on to its end. */
ssize_t prov_cancel(fid_t fid, void *context)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid.fid);
	bool found;

	prov_lock(ep->domain);
	found = cancel(ep, &ep->tagged, context) || cancel(ep, &ep->untagged, context);
	prov_unlock(ep->domain);
	return found ? 0 : -FI_ENOENT;
}
