/* rail_read.c - leaving rings and coming back to them: the reader's side (rail.c). */
#include "rail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

union any_offer {
	struct ring_offer memory;
	struct verbs_offer verbs;
};

/* How far the messages in a ring reach. */
static void find_end(struct inbound *inbound)
{
	struct ring_reader probe = inbound->ring;
	struct ring_message message;
	while (probe.cell - inbound->ring.cell <= probe.cell_mask && ring_peek(&probe, &message, PM_MAX_MESSAGE)) {
		probe.cell++;
		if (message.length > RING_INLINE)
			probe.byte = ring_place(probe.byte, message.length, probe.data_mask) + ring_lines(message.length);
	}
	inbound->end = probe.cell;
	inbound->end_byte = probe.byte;
}

/* Keeps what is in a ring, and gives its memory back; false: not now. */
static bool close_inbound(struct pm_endpoint *endpoint, struct inbound *inbound)
{
	struct ring_reader *ring = &inbound->ring;
	struct ring_memory *copy = NULL;
	if (inbound->verbs)
		verbs_look(endpoint); /* all that is there counts, for the writer may be stopped */
	if (inbound->waits)
		inbound->end = inbound->end_byte = 0;
	else
		find_end(inbound);
	if (inbound->end != ring->cell) {
		/* What has been written since is not read, but sent again. */
		copy = rail_copy(ring->memory, ring->data_mask + 1, &(struct ring_part){ring->cell, inbound->end, ring->byte, inbound->end_byte});
		if (!copy)
			return false;
	}
	help_forget(endpoint, inbound);
	link_unmap_inbound(endpoint->context, inbound);
	ring->memory = copy;
	ring->data = copy ? ring_data(copy, ring->data_mask + 1) : NULL;
	inbound->closed = true;
	return true;
}

/* False: not now. */
static bool tell_closed(struct inbound *inbound)
{
	if (!inbound->closed_told && !inbound->peer->status)
		inbound->closed_told = rail_tell(inbound->peer, RING_CLOSED, (struct ring_news){inbound->generation, inbound->rail, inbound->end, inbound->end_byte});
	return inbound->closed_told || inbound->peer->status;
}

/* Moves a ring's end on; whether there is more to do. */
static bool switch_inbound(struct pm_endpoint *endpoint, struct inbound *inbound)
{
	bool leave = inbound->closed || inbound->asked_to_close || !rail_allowed(endpoint->context, inbound->rail) ||
		     (inbound->verbs && inbound->peer->status); /* who is taken for gone writes nothing more */
	if (inbound->ring.broken || !leave || !udp_link_to(inbound->peer))
		return false;
	if (!inbound->closed && !close_inbound(endpoint, inbound))
		return true;
	return !tell_closed(inbound);
}

/* Moves on the ends of all rings to the endpoint; whether there is more to do. */
bool rail_switch_inbound(struct pm_endpoint *endpoint)
{
	bool more = false;
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		more |= switch_inbound(endpoint, endpoint->inbound[i]);
	for (struct inbound *inbound = endpoint->closing; inbound; inbound = inbound->next)
		more |= !tell_closed(inbound);
	/* Those that wait for their RING_OPEN are closed before it comes. */
	for (struct inbound *inbound = endpoint->waiting; inbound; inbound = inbound->next)
		if (!inbound->closed && !rail_allowed(endpoint->context, inbound->rail))
			more |= !close_inbound(endpoint, inbound);
	return more;
}

/* Takes the ring of that number out of those that wait; NULL: it is not known. */
static struct inbound *take_waiting(struct pm_peer *peer, const struct ring_news *news)
{
	for (struct inbound **at = &peer->endpoint->waiting, *inbound; (inbound = *at); at = &inbound->next)
		if (inbound->peer == peer && is_about(news, inbound->rail, inbound->generation)) {
			*at = inbound->next;
			return inbound;
		}
	return NULL;
}

/* Ends the rings up to that generation which wait still. */
static void drop_waiting(struct pm_peer *peer, enum rail rail, uint32_t generation)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	for (struct inbound **at = &endpoint->waiting, *inbound; (inbound = *at);) {
		if (inbound->peer != peer || inbound->rail != rail || inbound->generation > generation) {
			at = &inbound->next;
			continue;
		}
		*at = inbound->next;
		link_free_inbound(endpoint->context, inbound);
	}
}

/* A ring is to be read from now on; false: its connection is not here yet. */
bool rail_open_ring(struct pm_peer *peer, const struct ring_news *news)
{
	struct inbound *inbound = take_waiting(peer, news);
	if (!inbound && news->rail != RAIL_SHM)
		peer_gone(peer, -EPROTO); /* it was never offered */
	if (!inbound)
		return news->rail != RAIL_SHM;
	drop_waiting(peer, news->rail, news->generation); /* the peer has thought better of those */
	inbound->waits = false;
	if (link_add_inbound(peer->endpoint, inbound))
		return true;
	inbound->waits = true;
	inbound->next = peer->endpoint->waiting;
	peer->endpoint->waiting = inbound;
	return false;
}

/* A ring for the peer, and what is to be said about it, of so many bytes; NULL: there can be none. */
static struct inbound *make_ring(struct pm_peer *peer, enum rail rail, union any_offer *offer, uint32_t *length)
{
	struct pm_context *context = peer->endpoint->context;
	*length = rail == RAIL_VERBS ? sizeof(offer->verbs) : sizeof(offer->memory);
	if (!rail_allowed(context, rail))
		return NULL;
	if (rail == RAIL_VERBS)
		drop_waiting(peer, rail, UINT32_MAX); /* it has thought better of what it had asked for */
	if (rail == RAIL_IVSHMEM)
		return ivshmem_make(peer, &offer->memory);
	if (rail != RAIL_VERBS || peer->verbs_in || !verbs_usable(context))
		return NULL;
	return verbs_make(peer, &peer->unanswered->verbs, &offer->verbs);
}

/* Offers the peer the ring that it wishes for, or refuses; false: that cannot be said now. */
bool rail_offer_ring(struct pm_peer *peer, enum rail rail)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	union any_offer offer;
	uint32_t length;
	if (!rail_can_say(peer))
		return false;
	struct inbound *inbound = make_ring(peer, rail, &offer, &length);
	if (!inbound) {
		uint32_t generation = rail == RAIL_VERBS ? peer->unanswered->verbs.generation : 0;
		return rail_tell(peer, RING_REFUSED, (struct ring_news){.generation = generation, .rail = rail, .cells = REFUSED_WISH});
	}
	inbound->next = endpoint->waiting;
	endpoint->waiting = inbound;
	return rail_say(peer, RING_OFFER, &offer, length);
}

/* A ring that was offered, or asked for, is not to be. */
void rail_refused(struct pm_peer *peer, const struct ring_news *news)
{
	struct inbound *inbound;
	struct outbound *outbound = peer->outbound;
	if (news->cells == REFUSED_WISH) {
		peer->asked &= news->rail != RAIL_IVSHMEM;
		if (outbound && outbound->verbs && !atomic_load(&outbound->ready) && is_about(news, outbound->rail, outbound->generation))
			atomic_store(&outbound->gone, -EOPNOTSUPP);
		return;
	}
	inbound = take_waiting(peer, news);
	if (!inbound)
		return;
	if (!inbound->closed && inbound->rail == RAIL_IVSHMEM)
		ivshmem_unused(inbound);
	link_free_inbound(peer->endpoint->context, inbound);
}
