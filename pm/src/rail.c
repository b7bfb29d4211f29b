/*
 * rail.c - leaving a rail and coming back to it while messages flow. The udp rail is where peers always meet: what they
 * say about rings, they say in its streams, in order with the messages.
 *
 * A ring is left by both of its sides, whichever begins. Its reader looks how far the messages in it reach, keeps a copy
 * of them, and tells the writer that place (RING_CLOSED); its writer, if it begins, asks for that (RING_END). Either
 * can then give the memory back at once, whatever the other does: the writer keeps a copy of what it has not seen to be
 * taken, too, and sends again by udp what the reader has not found. Until it knows that, it sends nothing. The reader
 * takes what comes by udp only after what it has kept.
 *
 * A ring is come back to by its writer, when both sides allow the rail: it makes a new one, says that what follows comes
 * by it (RING_OPEN), and the reader looks into it when it has found that.
 *
 * So each message is in one place, and the places are read in the order in which they were written to. Checked for all
 * interleavings by model/rail.pml, and by model/offer.pml where the reader offers the ring. The writer's side is
 * rail_write.c, the reader's rail_read.c.
 */
#include "rail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[RAILS] = {[RAIL_SHM] = "shm", [RAIL_IVSHMEM] = "ivshmem", [RAIL_VERBS] = "verbs", [RAIL_UDP] = "udp"};

/* The rail of that name, or -EINVAL. */
int rail_find(const char *name, size_t length, enum rail *rail)
{
	for (unsigned i = 0; i < RAILS; i++) {
		if (strlen(names[i]) != length || memcmp(names[i], name, length))
			continue;
		*rail = i;
		return 0;
	}
	return -EINVAL;
}

/* Who has been put aside gives memory back, and says so when it is taken up again. */
static bool may_say(const struct pm_peer *peer)
{
	return !atomic_load(&peer->endpoint->held);
}

/* False: there is no room now. */
bool rail_say(struct pm_peer *peer, enum message_type type, const void *what, uint32_t length)
{
	void *buffer;
	if (!may_say(peer) || !udp_link_to(peer) || udp_reserve(peer, length, &buffer))
		return false;
	memcpy(buffer, what, length);
	udp_commit(peer, 0, type);
	return true;
}

/* Whether there is room for something of the length that such messages have. */
bool rail_can_say(struct pm_peer *peer)
{
	void *buffer;
	return may_say(peer) && udp_link_to(peer) && !udp_reserve(peer, sizeof(struct verbs_offer), &buffer);
}

bool rail_tell(struct pm_peer *peer, enum message_type type, struct ring_news news)
{
	return rail_say(peer, type, &news, sizeof(news));
}

/* Copies a part of a byte ring. */
static void copy_bytes(uint8_t *to, const uint8_t *from, uint32_t data_bytes, const struct ring_part *part)
{
	uint64_t left = part->byte_end - part->byte;
	left = left < data_bytes ? left : data_bytes;
	for (uint64_t at = part->byte, length; left; at += length, left -= length) {
		uint32_t offset = at & (data_bytes - 1);
		length = left < data_bytes - offset ? left : data_bytes - offset;
		memcpy(to + offset, from + offset, length);
	}
}

/* A copy of a part of a ring for one side of it alone, where the rest is empty: the other side may be writing there; NULL:
 * no memory. */
struct ring_memory *rail_copy(struct ring_memory *memory, uint32_t data_bytes, const struct ring_part *part)
{
	size_t size = ring_size(data_bytes);
	struct ring_memory *copy = aligned_alloc(_Alignof(struct ring_memory), size);
	if (!copy)
		return NULL;
	memset(copy, 0, size);
	atomic_store(&copy->taken.cells, part->cell);
	atomic_store(&copy->taken.bytes, part->byte);
	for (uint64_t i = part->cell; i != part->cell_end; i++) {
		uint32_t at = i & (ring_cells(data_bytes) - 1);
		atomic_store(&copy->cells[at].control, atomic_load(&memory->cells[at].control));
		memcpy(copy->cells[at].payload, memory->cells[at].payload, RING_INLINE);
	}
	copy_bytes(ring_data(copy, data_bytes), ring_data(memory, data_bytes), data_bytes, part);
	return copy;
}

/* How long a message about rings has to be. */
static uint32_t length_of(const struct ring_message *message, enum rail rail)
{
	if (message->type == RING_OFFER)
		return rail == RAIL_VERBS ? sizeof(struct verbs_offer) : sizeof(struct ring_offer);
	if (message->type == RING_WANTED && rail == RAIL_VERBS)
		return sizeof(struct verbs_wanted);
	return sizeof(struct ring_news);
}

/* False: there is no memory now. */
static bool prepare_to_answer(struct pm_peer *peer)
{
	if (!peer->unanswered)
		peer->unanswered = calloc(1, sizeof(*peer->unanswered));
	return peer->unanswered;
}

static bool note_wish(struct pm_peer *peer, const struct ring_message *message, enum rail rail)
{
	if (!prepare_to_answer(peer))
		return false;
	peer->unanswered->wishes |= 1u << rail;
	if (rail == RAIL_VERBS)
		memcpy(&peer->unanswered->verbs, message->data, sizeof(peer->unanswered->verbs));
	return true;
}

bool rail_answered(const struct pm_peer *peer)
{
	return !peer->unanswered || !(peer->unanswered->wishes | peer->unanswered->refusals);
}

/* Answers what there is room to answer. */
void rail_answer(struct pm_peer *peer)
{
	struct unanswered *unanswered = peer->unanswered;
	for (enum rail rail = 0; rail < RAILS && !rail_answered(peer); rail++) {
		unsigned bit = 1u << rail;
		if (unanswered->refusals & bit &&
		    rail_tell(peer, RING_REFUSED, (struct ring_news){.generation = unanswered->refused[rail], .rail = rail}))
			unanswered->refusals &= ~bit;
		if (unanswered->wishes & bit && rail_offer_ring(peer, rail))
			unanswered->wishes &= ~bit;
	}
}

/* What a peer says about rings; false: this cannot be done yet. The end of a ring is perhaps heard twice (udp.c). */
bool rail_handle(struct pm_peer *peer, const struct ring_message *message)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	struct ring_news news;
	if (message->length >= sizeof(news))
		memcpy(&news, message->data, sizeof(news));
	if (message->length < sizeof(news) || news.rail >= RAIL_UDP || message->length != length_of(message, news.rail)) {
		count_both(&endpoint->statistics->dropped, 1);
		return true;
	}
	switch (message->type) {
	case RING_OPEN:
		return !peer->rings && rail_open_ring(peer, &news);
	case RING_END:
		for (unsigned i = 0; i < endpoint->inbound_count; i++)
			if (endpoint->inbound[i]->peer == peer && is_about(&news, endpoint->inbound[i]->rail, endpoint->inbound[i]->generation))
				endpoint->inbound[i]->asked_to_close = true;
		break;
	case RING_CLOSED:
		/* It may be left before this side has used it. */
		if (!peer->outbound || peer->outbound->closed || !is_about(&news, peer->outbound->rail, peer->outbound->generation))
			break;
		peer->outbound->cells_closed = news.cells;
		peer->outbound->bytes_closed = news.bytes;
		peer->outbound->closed = true;
		break;
	case RAIL_JOINED:
		peer->rings_wanted |= 1u << news.rail;
		break;
	case RING_WANTED:
		return note_wish(peer, message, news.rail);
	case RING_OFFER:
		if (!prepare_to_answer(peer))
			return false;
		rail_take_offer(peer, message, &news);
		break;
	case RING_REFUSED:
		rail_refused(peer, &news);
		break;
	}
	return true;
}

/* The rails of which there is memory. */
static unsigned in_use(const struct pm_endpoint *endpoint)
{
	const struct pm_peer *peer;
	unsigned used = endpoint->verbs ? 1u << RAIL_VERBS : 0;
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		if (!endpoint->inbound[i]->closed)
			used |= 1u << endpoint->inbound[i]->rail;
	for (const struct inbound *inbound = endpoint->waiting; inbound; inbound = inbound->next)
		if (!inbound->closed)
			used |= 1u << inbound->rail;
	for (peer = endpoint->peers; peer; peer = peer->hh.next)
		if (peer->outbound && !peer->outbound->own)
			used |= 1u << peer->outbound->rail;
	return used;
}

/* There is something to be done. */
void rail_notice(struct pm_endpoint *endpoint)
{
	atomic_store(&endpoint->in_use, ~0u); /* until that is known */
	atomic_store(&endpoint->switching, true);
	atomic_store(&endpoint->attention, true);
	keeper_pace(endpoint->context);
}

/* Leaves what is to be left, comes back where that is wanted, and answers those that do. */
void rail_progress(struct pm_endpoint *endpoint)
{
	struct pm_peer *peer, *next;
	atomic_store(&endpoint->switching, false); /* what is noticed from now on is for the next time */
	order_carry_out(endpoint);
	bool more = udp_hear_of_rings(endpoint);
	more |= rail_switch_inbound(endpoint);
	HASH_ITER(hh, endpoint->peers, peer, next)
		more |= rail_switch_peer(peer);
	if (!rail_allowed(endpoint->context, RAIL_VERBS))
		verbs_endpoint_close(endpoint);
	atomic_store(&endpoint->in_use, in_use(endpoint));
	more &= !atomic_load(&endpoint->held); /* what is to be said waits */
	/* Memory of a rail that is being left may be with a ring that ends for another reason. */
	if (more || endpoint->in_use & ~atomic_load(&endpoint->context->rails)) {
		atomic_store(&endpoint->switching, true);
		keeper_pace(endpoint->context);
	}
}

