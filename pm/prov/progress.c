/* progress.c - takes what has arrived at an endpoint, checks it, and hands it on. */
#include <string.h>
#include <time.h>

#include "prov.h"

#define RETRY_EVENTS 16 /* events taken at once, at most */
#define CLOCK_LOOKS 64  /* looks that found nothing, after which one looks at the clock */

void prov_drop(struct prov_ep *ep, const char *why)
{
	if (!ep->dropped++)
		FI_WARN(&prov_provider, FI_LOG_EP_DATA, "a message was dropped: %s; others will be counted only\n",
			why);
}

/* An eager message: straight into the receive's buffer if there is one with room for it. */
static inline void take_eager(struct prov_ep *ep, struct prov_side *side, struct prov_peer *peer, uint64_t tag,
			      uint64_t data, uint32_t flags, const char *payload, uint32_t length)
{
	struct prov_receive *receive = prov_match(side, peer, tag);
	struct prov_arrival arrival;

	if (likely(receive && !(receive->flags & PROV_MULTI) && receive->part_count == 1 &&
		   length <= receive->parts[0].iov_len)) {
		TAILQ_REMOVE(&side->posted, receive, link);
		prov_copy(receive->parts[0].iov_base, payload, length);
		if (likely(receive->flags & PROV_COMPLETE))
			prov_cq_put(ep->rx_cq, receive->context, prov_receive_flags(flags), length,
				    receive->parts[0].iov_base, data, tag, peer->address);
		if (ep->receive_cntr)
			prov_cntr_count(ep->receive_cntr, false);
		prov_pool_give(&ep->receives, receive);
		return;
	}
	arrival.peer = peer;
	arrival.tag = tag;
	arrival.data = data;
	arrival.request = 0;
	arrival.flags = flags;
	arrival.part_count = 0;
	arrival.length = length;
	arrival.payload = payload;
	prov_arrive(ep, side, receive, &arrival);
}

/* CONFIRM and RTS. */
static void take_request(struct prov_ep *ep, struct prov_peer *peer, const struct pm_message *message)
{
	bool rts = message->kind == WIRE_RTS;
	struct prov_arrival arrival = { .peer = peer };
	struct wire_request request;
	struct prov_side *side;
	uint32_t rest;

	if (message->length < sizeof(request))
		return prov_drop(ep, "too short");
	memcpy(&request, message->data, sizeof(request));
	rest = message->length - sizeof(request);
	arrival.tag = request.flags & WIRE_IS_TAGGED ? request.tag : 0;
	arrival.data = request.flags & WIRE_HAS_DATA ? request.data : 0;
	arrival.request = request.request;
	arrival.flags = (request.flags & (WIRE_IS_TAGGED | WIRE_HAS_DATA)) | (rts ? PROV_RTS : PROV_CONFIRM);
	arrival.payload = (const char *)message->data + sizeof(request);
	arrival.length = rest;
	if (rts) {
		if (request.parts > WIRE_PARTS || rest != request.parts * sizeof(struct wire_part))
			return prov_drop(ep, "announcement of a wrong length");
		memcpy(arrival.parts, arrival.payload, rest);
		arrival.part_count = request.parts;
		arrival.payload = NULL;
		arrival.length = 0;
		for (uint32_t i = 0; i < arrival.part_count; i++) {
			if (arrival.parts[i].length > PROV_MESSAGE_LIMIT - arrival.length)
				return prov_drop(ep, "announcement of too many bytes");
			arrival.length += arrival.parts[i].length;
		}
	}
	if (!rts && request.flags & WIRE_ON_ARRIVAL) {
		prov_answer(peer, request.request, 0);
		arrival.flags &= ~PROV_CONFIRM;
	}
	side = arrival.flags & PROV_TAGGED ? &ep->tagged : &ep->untagged;
	prov_arrive(ep, side, prov_match(side, peer, arrival.tag), &arrival);
}

static void take_rma_data(struct prov_ep *ep, struct prov_peer *peer, const struct pm_message *message)
{
	struct wire_rma_data header;

	if (message->length != sizeof(header))
		return prov_drop(ep, "completion data of a wrong length");
	memcpy(&header, message->data, sizeof(header));
	if (ep->rx_cq)
		prov_cq_put(ep->rx_cq, NULL, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, header.length, NULL,
			    header.data, 0, peer->address);
}

static void take_fin(struct prov_ep *ep, struct prov_peer *peer, const struct pm_message *message)
{
	struct wire_fin fin;

	if (message->length != sizeof(fin))
		return prov_drop(ep, "answer of a wrong length");
	memcpy(&fin, message->data, sizeof(fin));
	prov_fin(peer, &fin);
}

static void take_rare(struct prov_ep *ep, struct prov_peer *peer, const struct pm_message *message)
{
	switch (message->kind) {
	case WIRE_CONFIRM:
	case WIRE_RTS:
		return take_request(ep, peer, message);
	case WIRE_FIN:
		return take_fin(ep, peer, message);
	case WIRE_RMA_DATA:
		return take_rma_data(ep, peer, message);
	case WIRE_ATOMIC:
		return prov_atomic_take(ep, peer, message);
	case WIRE_RESULT:
		return prov_atomic_result(peer, message);
	case WIRE_HOLD:
		peer->eager_room = 0;
		return;
	case WIRE_RESUME:
		if (!peer->gone)
			peer->eager_room = ep->eager + 1;
		return;
	default:
		prov_drop(ep, "of an unknown kind");
	}
}

/* A word of a message, which a hostile sender may still change: it is read once. */
static inline uint64_t word(const struct pm_message *message, unsigned index)
{
	return ((const volatile uint64_t *)message->data)[index];
}

static inline void take(struct prov_ep *ep, const struct pm_message *message)
{
	struct prov_peer *peer = prov_peer_of(ep, message->peer);
	const char *bytes = message->data;
	uint32_t length = message->length;

	if (unlikely(!peer))
		return prov_drop(ep, "no memory for its sender");
	switch (message->kind) {
	case WIRE_TAGGED:
		if (unlikely(length < 8))
			return prov_drop(ep, "too short");
		return take_eager(ep, &ep->tagged, peer, word(message, 0), 0, PROV_TAGGED, bytes + 8, length - 8);
	case WIRE_TAGGED_DATA:
		if (unlikely(length < 16))
			return prov_drop(ep, "too short");
		return take_eager(ep, &ep->tagged, peer, word(message, 0), word(message, 1), PROV_TAGGED | PROV_DATA,
				  bytes + 16, length - 16);
	case WIRE_MSG:
		return take_eager(ep, &ep->untagged, peer, 0, 0, 0, bytes, length);
	case WIRE_MSG_DATA:
		if (unlikely(length < 8))
			return prov_drop(ep, "too short");
		return take_eager(ep, &ep->untagged, peer, 0, word(message, 0), PROV_DATA, bytes + 8, length - 8);
	default:
		take_rare(ep, peer, message);
	}
}

static void take_event(struct prov_ep *ep, const struct pm_event *event)
{
	struct prov_peer *peer;

	switch (event->type) {
	case PM_READ_DONE:
	case PM_WRITE_DONE:
		return prov_operation_event(event);
	case PM_PEER_GONE:
		peer = prov_peer_of(ep, event->peer);
		if (peer)
			prov_peer_gone(peer, event->status ? event->status : -FI_EHOSTDOWN);
	}
}

/* What is not done for each message: ends of reads and writes, of peers, and what waits for room. */
static void progress_rest(struct prov_ep *ep)
{
	struct pm_event event;

	for (int i = 0; i < RETRY_EVENTS && pm_next_event(ep->pm, &event) > 0; i++)
		take_event(ep, &event);
	if (unlikely(!TAILQ_EMPTY(&ep->blocked)))
		prov_peer_unblock(ep);
	if (unlikely(!TAILQ_EMPTY(&ep->retries)))
		prov_operations_retry(ep);
}

/* Whom is waited for is looked at once a second, while nothing comes: a peer's end need not be known sooner. */
static void await_peers(struct prov_ep *ep)
{
	struct timespec now;

	if (++ep->empty_looks % CLOCK_LOOKS)
		return;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec == ep->awaited_s)
		return;
	ep->awaited_s = now.tv_sec;
	prov_peers_await(ep);
}

int prov_progress(struct prov_ep *ep, int budget)
{
	struct pm_message message;
	int taken = 0;

	ep->sends = 0;
	while (taken < budget && pm_receive(ep->pm, &message) > 0) {
		take(ep, &message);
		pm_release(ep->pm, &message);
		taken++;
	}
	if (!taken || ep->transfers || taken == budget)
		progress_rest(ep);
	if (!taken)
		await_peers(ep);
	return taken;
}
