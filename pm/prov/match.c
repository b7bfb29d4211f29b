/* match.c - messages meet receives: delivery of those that match, keeping of those that nobody asked for so far. */
#include <string.h>

#include "prov.h"

/* A peer told to hold, whose messages go on to this many bytes, does not care: it is more than rings have
 * room for, unless PM_RING_BYTES were set as large, and what is sent until the word is heard. */
#define HELD_LIMIT ((uint64_t)256 << 20)
#define HEADER_BYTES 64 /* what a message without payload counts */

/* Reports the end of a receive. The last one of a multi-receive tells that its buffer is free. */
static void report(struct prov_ep *ep, const struct prov_ended *ended)
{
	uint64_t flags = prov_receive_flags(ended->flags);
	struct prov_receive *multi = ended->multi;

	if (multi && multi->flags & PROV_RETIRED && !multi->children) {
		flags |= FI_MULTI_RECV;
		prov_pool_give(&ep->receives, multi);
	}
	if (unlikely(ended->status || ended->overflow)) {
		struct fi_cq_err_entry error = {
			.op_context = ended->context,
			.flags = flags,
			.len = ended->length,
			.buf = ended->buffer,
			.data = ended->data,
			.tag = ended->tag,
			.olen = ended->overflow,
			.err = ended->status ? -ended->status : FI_ETRUNC,
			.prov_errno = ended->status ? -ended->status : FI_ETRUNC,
		};

		if (ep->rx_cq)
			prov_cq_error(ep->rx_cq, &error, ended->source);
		if (ep->receive_cntr)
			prov_cntr_count(ep->receive_cntr, true);
		return;
	}
	if (ep->rx_cq && (ended->flags & PROV_COMPLETE || flags & FI_MULTI_RECV))
		prov_cq_put(ep->rx_cq, ended->context, flags, ended->length, ended->buffer, ended->data, ended->tag,
			    ended->source);
	if (ep->receive_cntr)
		prov_cntr_count(ep->receive_cntr, false);
}

bool prov_used_up(const struct prov_ep *ep, uint64_t left)
{
	return !left || left < ep->min_multi_receive;
}

/* Takes room of a multi-receive for a message, and retires it when too little is left. */
static struct iovec take_room(struct prov_ep *ep, struct prov_receive *multi, uint64_t length)
{
	struct iovec room = multi->parts[0];

	if (room.iov_len > length)
		room.iov_len = length;
	multi->parts[0].iov_base = (char *)multi->parts[0].iov_base + room.iov_len;
	multi->parts[0].iov_len -= room.iov_len;
	if (prov_used_up(ep, multi->parts[0].iov_len)) {
		TAILQ_REMOVE(&ep->untagged.posted, multi, link);
		multi->flags |= PROV_RETIRED;
	}
	return room;
}

/* Copies a payload into parts; the bytes that found room. */
static uint64_t scatter(const struct iovec *parts, size_t count, const char *payload, uint64_t length)
{
	uint64_t copied = 0;

	for (size_t i = 0; i < count && copied < length; i++) {
		uint64_t step = length - copied < parts[i].iov_len ? length - copied : parts[i].iov_len;

		memcpy(parts[i].iov_base, payload + copied, step);
		copied += step;
	}
	return copied;
}

void prov_deliver(struct prov_ep *ep, struct prov_receive *receive, const struct prov_arrival *arrival)
{
	bool is_multi = receive->flags & PROV_MULTI;
	struct prov_receive *multi = is_multi ? receive : NULL;
	const struct iovec *parts = receive->parts;
	size_t count = receive->part_count;
	struct prov_ended ended = {
		.flags = arrival->flags | (receive->flags & PROV_COMPLETE),
		.context = receive->context,
		.tag = arrival->tag,
		.data = arrival->data,
		.source = arrival->peer->address,
		.multi = multi,
	};
	struct iovec room;

	if (is_multi) {
		room = take_room(ep, receive, arrival->length);
		parts = &room;
		count = 1;
	}
	ended.buffer = count ? parts[0].iov_base : NULL;
	if (arrival->flags & PROV_RTS) {
		if (multi)
			multi->children++;
		prov_rendezvous_read(arrival, parts, count, &ended);
	} else {
		ended.length = scatter(parts, count, arrival->payload, arrival->length);
		ended.overflow = arrival->length - ended.length;
		if (arrival->flags & PROV_CONFIRM)
			prov_answer(arrival->peer, arrival->request, 0);
		report(ep, &ended);
	}
	if (!is_multi)
		prov_pool_give(&ep->receives, receive);
}

void prov_read_ended(struct prov_ep *ep, const struct prov_ended *ended)
{
	if (ended->multi)
		ended->multi->children--;
	report(ep, ended);
}

void prov_fail_receive(struct prov_ep *ep, struct prov_side *side, struct prov_receive *receive, int status)
{
	struct prov_ended ended = {
		.flags = side == &ep->tagged ? PROV_TAGGED : 0,
		.context = receive->context,
		.tag = receive->tag,
		.source = receive->peer ? receive->peer->address : FI_ADDR_NOTAVAIL,
		.buffer = receive->parts[0].iov_base,
		.status = status,
	};

	TAILQ_REMOVE(&side->posted, receive, link);
	if (receive->flags & PROV_MULTI) {
		receive->flags |= PROV_RETIRED;
		ended.multi = receive;
	} else {
		prov_pool_give(&ep->receives, receive);
	}
	report(ep, &ended);
}

/* Senders are told to hold when too much is kept. False: not to be kept at all. */
static bool admit(struct prov_ep *ep, struct prov_peer *peer, uint32_t size, uint32_t payload)
{
	ep->unexpected_bytes += size;
	if (likely(ep->unexpected_bytes <= prov_tunables.unexpected))
		return true;
	if (!peer->holding) {
		peer->holding = true;
		peer->held = 0;
		ep->holding++;
		prov_peer_control(peer, WIRE_HOLD, NULL, 0);
		FI_INFO(&prov_provider, FI_LOG_EP_DATA, "too much has come unexpected: a peer is told to hold\n");
	}
	peer->held += HEADER_BYTES + payload;
	if (peer->held <= HELD_LIMIT)
		return true;
	ep->unexpected_bytes -= size;
	return false;
}

static void resume(struct prov_ep *ep)
{
	struct prov_peer *peer;

	TAILQ_FOREACH(peer, &ep->all_peers, link) {
		if (!peer->holding)
			continue;
		peer->holding = false;
		prov_peer_control(peer, WIRE_RESUME, NULL, 0);
	}
	ep->holding = 0;
}

static void keep(struct prov_ep *ep, struct prov_side *side, const struct prov_arrival *arrival)
{
	uint32_t payload = arrival->flags & PROV_RTS ? 0 : arrival->length;
	uint32_t size = sizeof(struct prov_unexpected) + (payload > PROV_INLINE_PAYLOAD ? PM_MAX_MESSAGE : 0);
	struct prov_unexpected *unexpected;
	void *place;

	if (!admit(ep, arrival->peer, size, payload))
		return prov_drop(ep, "a peer told to hold does not");
	unexpected = prov_pool_take(&ep->unexpecteds);
	if (!unexpected)
		goto no_memory;
	unexpected->arrival = *arrival;
	unexpected->size = size;
	unexpected->buffer = NULL;
	place = unexpected->payload;
	if (payload > PROV_INLINE_PAYLOAD) {
		place = unexpected->buffer = prov_pool_take(&ep->payloads);
		if (!place) {
			prov_pool_give(&ep->unexpecteds, unexpected);
			goto no_memory;
		}
	}
	if (payload)
		memcpy(place, arrival->payload, payload);
	unexpected->arrival.payload = place;
	TAILQ_INSERT_TAIL(&side->unexpected, unexpected, link);
	return;
no_memory:
	ep->unexpected_bytes -= size;
	prov_drop(ep, "no memory");
}

void prov_arrive(struct prov_ep *ep, struct prov_side *side, struct prov_receive *receive,
		 const struct prov_arrival *arrival)
{
	if (!receive)
		return keep(ep, side, arrival);
	if (!(receive->flags & PROV_MULTI))
		TAILQ_REMOVE(&side->posted, receive, link);
	prov_deliver(ep, receive, arrival);
}

struct prov_unexpected *prov_find_unexpected(struct prov_side *side, const struct prov_receive *receive)
{
	struct prov_unexpected *unexpected;

	TAILQ_FOREACH(unexpected, &side->unexpected, link) {
		if (((unexpected->arrival.tag ^ receive->tag) & receive->mask) == 0 &&
		    (!receive->peer || receive->peer == unexpected->arrival.peer))
			break;
	}
	return unexpected;
}

void prov_free_unexpected(struct prov_ep *ep, struct prov_unexpected *unexpected)
{
	ep->unexpected_bytes -= unexpected->size;
	if (unexpected->buffer)
		prov_pool_give(&ep->payloads, unexpected->buffer);
	prov_pool_give(&ep->unexpecteds, unexpected);
	if (unlikely(ep->holding && ep->unexpected_bytes <= prov_tunables.unexpected / 2))
		resume(ep);
}

/* A message that its receiver does not want counts as received with its sender. */
void prov_discard(const struct prov_arrival *arrival)
{
	if (arrival->flags & (PROV_RTS | PROV_CONFIRM))
		prov_answer(arrival->peer, arrival->request, 0);
}

void prov_sides_open(struct prov_ep *ep)
{
	TAILQ_INIT(&ep->tagged.posted);
	TAILQ_INIT(&ep->tagged.unexpected);
	TAILQ_INIT(&ep->untagged.posted);
	TAILQ_INIT(&ep->untagged.unexpected);
	TAILQ_INIT(&ep->claimed);
	prov_pool_open(&ep->receives, sizeof(struct prov_receive), SIZE_MAX);
	prov_pool_open(&ep->unexpecteds, sizeof(struct prov_unexpected), SIZE_MAX);
	prov_pool_open(&ep->payloads, PM_MAX_MESSAGE, SIZE_MAX);
}

void prov_sides_close(struct prov_ep *ep)
{
	prov_pool_close(&ep->receives);
	prov_pool_close(&ep->unexpecteds);
	prov_pool_close(&ep->payloads);
}
