/* send.c - sending: short messages are written at once where the peer will read them, the rest is announced. */
#include <string.h>

#include "prov.h"

#define SENDS_LIMIT 256 /* sends in a row after which a look is taken whether the peer says HOLD */

static int send_eager(struct prov_ep *ep, struct prov_peer *peer, const struct prov_send *send)
{
	uint32_t header = (send->flags & PROV_TAGGED ? 8 : 0) + (send->flags & PROV_DATA ? 8 : 0);
	char *to;
	void *room;
	int status = pm_reserve(peer->pm, header + send->length, &room);

	if (status)
		return status;
	to = room;
	if (send->flags & PROV_TAGGED) {
		memcpy(to, &send->tag, 8);
		to += 8;
	}
	if (send->flags & PROV_DATA) {
		memcpy(to, &send->data, 8);
		to += 8;
	}
	for (size_t i = 0; i < send->count; i++) {
		prov_copy(to, send->parts[i].iov_base, send->parts[i].iov_len);
		to += send->parts[i].iov_len;
	}
	pm_commit(peer->pm, prov_eager_kind(send->flags));
	prov_sent(ep, send->flags, send->context, send->length);
	return 0;
}

static int send_once(struct prov_ep *ep, struct prov_peer *peer, const struct prov_send *send)
{
	if (peer->gone)
		return -FI_EHOSTDOWN;
	if (send->length >= peer->eager_room)
		return prov_rendezvous_send(peer, send);
	if (send->flags & PROV_CONFIRM)
		return prov_confirm_send(peer, send);
	return send_eager(ep, peer, send);
}

/* Sends in all cases; called with the lock held. Not inlined: the cases that hurry have been tried before. */
static __attribute__((noinline)) ssize_t send_any(struct prov_ep *ep, fi_addr_t target, const struct prov_send *send)
{
	struct prov_peer *peer;
	int status = prov_peer_at(ep, target, &peer);

	if (status)
		return status;
	if (ep->sends >= SENDS_LIMIT)
		prov_progress(ep, PROV_SEND_BUDGET);
	if (send->length > PROV_MESSAGE_LIMIT || (send->flags & PROV_INJECT && send->length > prov_tunables.inject))
		return -FI_EMSGSIZE;
	ep->sends++;
	status = send_once(ep, peer, send);
	if (status == -FI_EAGAIN) {
		prov_progress(ep, PROV_SEND_BUDGET);
		status = send_once(ep, peer, send);
	}
	return status;
}

/* A buffer of one part. fixed: those flags that the caller of this is made for, so that the compiler can drop what
 * does not apply; flags: all of them. */
static inline __attribute__((always_inline)) ssize_t send_part(struct fid_ep *fid, const void *buffer, size_t length,
								fi_addr_t target, uint64_t tag, uint64_t data,
								void *context, const uint32_t fixed, uint32_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	const uint32_t header = (fixed & PROV_TAGGED ? 8 : 0) + (fixed & PROV_DATA ? 8 : 0);
	struct prov_peer *peer;
	ssize_t status = 0;
	void *room;

	prov_lock(ep->domain);
	if (likely(target < ep->peer_count && (peer = ep->peers[target]) && length < peer->eager_room &&
		   !(flags & PROV_CONFIRM) && ep->sends++ < SENDS_LIMIT &&
		   !pm_reserve(peer->pm, header + length, &room))) {
		if (fixed & PROV_TAGGED)
			*(uint64_t *)room = tag;
		if (fixed & PROV_DATA)
			((uint64_t *)room)[fixed & PROV_TAGGED ? 1 : 0] = data;
		prov_copy((char *)room + header, buffer, length);
		pm_commit(peer->pm, prov_eager_kind(fixed));
		prov_sent(ep, flags, context, length);
	} else {
		struct iovec part = { .iov_base = (void *)buffer, .iov_len = length };
		struct prov_send send = {
			.parts = &part,
			.count = 1,
			.length = length,
			.tag = tag,
			.data = data,
			.context = context,
			.flags = flags,
		};

		status = send_any(ep, target, &send);
	}
	prov_unlock(ep->domain);
	return status;
}

static ssize_t send_parts(struct fid_ep *fid, fi_addr_t target, struct prov_send *send)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	ssize_t status;

	if (send->count > PROV_IOV_LIMIT)
		return -FI_EINVAL;
	for (size_t i = 0; i < send->count; i++)
		send->length += send->parts[i].iov_len;
	prov_lock(ep->domain);
	status = send_any(ep, target, send);
	prov_unlock(ep->domain);
	return status;
}

static uint32_t default_flags(struct fid_ep *fid)
{
	return container_of(fid, struct prov_ep, fid)->send_flags;
}

static uint32_t message_flags(struct fid_ep *fid, uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	uint32_t own = 0;

	if (prov_wants_completion(ep->tx_cq, ep->tx_selective, flags))
		own |= PROV_COMPLETE;
	if (own & PROV_COMPLETE || ep->send_cntr)
		own |= prov_confirmation(flags);
	if (flags & FI_INJECT)
		own |= PROV_INJECT;
	if (flags & FI_REMOTE_CQ_DATA)
		own |= PROV_DATA;
	return own;
}

static ssize_t msg_send(struct fid_ep *ep, const void *buffer, size_t length, void *descriptor, fi_addr_t target,
			void *context)
{
	(void)descriptor;
	return send_part(ep, buffer, length, target, 0, 0, context, 0, default_flags(ep));
}

static ssize_t msg_sendv(struct fid_ep *ep, const struct iovec *parts, void **descriptors, size_t count,
			 fi_addr_t target, void *context)
{
	struct prov_send send = { .parts = parts, .count = count, .context = context, .flags = default_flags(ep) };

	(void)descriptors;
	return send_parts(ep, target, &send);
}

static ssize_t msg_sendmsg(struct fid_ep *ep, const struct fi_msg *message, uint64_t flags)
{
	struct prov_send send = {
		.parts = message->msg_iov,
		.count = message->iov_count,
		.data = message->data,
		.context = message->context,
		.flags = message_flags(ep, flags),
	};

	return send_parts(ep, message->addr, &send);
}

static ssize_t msg_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t target)
{
	return send_part(ep, buffer, length, target, 0, 0, NULL, 0, PROV_INJECT);
}

static ssize_t msg_senddata(struct fid_ep *ep, const void *buffer, size_t length, void *descriptor, uint64_t data,
			    fi_addr_t target, void *context)
{
	(void)descriptor;
	return send_part(ep, buffer, length, target, 0, data, context, PROV_DATA, default_flags(ep) | PROV_DATA);
}

static ssize_t msg_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t target)
{
	return send_part(ep, buffer, length, target, 0, data, NULL, PROV_DATA, PROV_INJECT | PROV_DATA);
}

struct fi_ops_msg prov_msg_ops = {
	.size = sizeof(struct fi_ops_msg),
	.recv = prov_recv,
	.recvv = prov_recvv,
	.recvmsg = prov_recvmsg,
	.send = msg_send,
	.sendv = msg_sendv,
	.sendmsg = msg_sendmsg,
	.inject = msg_inject,
	.senddata = msg_senddata,
	.injectdata = msg_injectdata,
};

static ssize_t tagged_send(struct fid_ep *ep, const void *buffer, size_t length, void *descriptor, fi_addr_t target,
			   uint64_t tag, void *context)
{
	(void)descriptor;
	return send_part(ep, buffer, length, target, tag, 0, context, PROV_TAGGED, default_flags(ep) | PROV_TAGGED);
}

static ssize_t tagged_sendv(struct fid_ep *ep, const struct iovec *parts, void **descriptors, size_t count,
			    fi_addr_t target, uint64_t tag, void *context)
{
	struct prov_send send = {
		.parts = parts,
		.count = count,
		.tag = tag,
		.context = context,
		.flags = default_flags(ep) | PROV_TAGGED,
	};

	(void)descriptors;
	return send_parts(ep, target, &send);
}

static ssize_t tagged_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *message, uint64_t flags)
{
	struct prov_send send = {
		.parts = message->msg_iov,
		.count = message->iov_count,
		.tag = message->tag,
		.data = message->data,
		.context = message->context,
		.flags = message_flags(ep, flags) | PROV_TAGGED,
	};

	return send_parts(ep, message->addr, &send);
}

static ssize_t tagged_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t target, uint64_t tag)
{
	return send_part(ep, buffer, length, target, tag, 0, NULL, PROV_TAGGED, PROV_INJECT | PROV_TAGGED);
}

static ssize_t tagged_senddata(struct fid_ep *ep, const void *buffer, size_t length, void *descriptor, uint64_t data,
			       fi_addr_t target, uint64_t tag, void *context)
{
	(void)descriptor;
	return send_part(ep, buffer, length, target, tag, data, context, PROV_TAGGED | PROV_DATA,
			 default_flags(ep) | PROV_TAGGED | PROV_DATA);
}

static ssize_t tagged_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data,
				 fi_addr_t target, uint64_t tag)
{
	return send_part(ep, buffer, length, target, tag, data, NULL, PROV_TAGGED | PROV_DATA,
			 PROV_INJECT | PROV_TAGGED | PROV_DATA);
}

struct fi_ops_tagged prov_tagged_ops = {
	.size = sizeof(struct fi_ops_tagged),
	.recv = prov_trecv,
	.recvv = prov_trecvv,
	.recvmsg = prov_trecvmsg,
	.send = tagged_send,
	.sendv = tagged_sendv,
	.sendmsg = tagged_sendmsg,
	.inject = tagged_inject,
	.senddata = tagged_senddata,
	.injectdata = tagged_injectdata,
};
