/* rail_read.c - leaving rings and coming back to them: the reader's side (rail.c). */
#include "rail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
	if (inbound->waits)
		inbound->end = inbound->end_byte = 0;
	else
		find_end(inbound);
	if (inbound->end != ring->cell) {
		copy = rail_copy(ring->memory, inbound->ring_size);
		if (!copy)
			return false;
		/* What has been written since is not read, but sent again. */
		if (inbound->end - ring->cell <= ring->cell_mask)
			atomic_store(&copy->cells[inbound->end & ring->cell_mask].control, 0);
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
	bool leave = inbound->closed || inbound->asked_to_close || !rail_allowed(endpoint->context, inbound->rail);
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

/* Ends the rings before that one which wait still: the peer has thought better of them. */
static void drop_waiting(struct pm_peer *peer, const struct ring_news *news)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	for (struct inbound **at = &endpoint->waiting, *inbound; (inbound = *at);) {
		if (inbound->peer != peer || inbound->rail != news->rail || inbound->generation > news->generation) {
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
	drop_waiting(peer, news);
	inbound->waits = false;
	if (link_add_inbound(peer->endpoint, inbound))
		return true;
	inbound->waits = true;
	inbound->next = peer->endpoint->waiting;
	peer->endpoint->waiting = inbound;
	return false;
}

/* Offers the peer a ring; false: that cannot be said now. */
bool rail_offer_ring(struct pm_peer *peer)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	struct ring_offer offer;
	struct inbound *inbound = rail_allowed(endpoint->context, RAIL_IVSHMEM) ? ivshmem_make(peer, &offer) : NULL;
	if (!inbound)
		return true; /* it stays with udp */
	if (!rail_say(peer, RING_OFFER, &offer, sizeof(offer))) {
		ivshmem_unused(inbound);
		link_free_inbound(endpoint->context, inbound);
		return false;
	}
	inbound->next = endpoint->waiting;
	endpoint->waiting = inbound;
	return true;
}

/* The peer does not want the ring that it was offered. */
void rail_refused(struct pm_peer *peer, const struct ring_news *news)
{
	struct inbound *inbound = take_waiting(peer, news);
	if (!inbound)
		return;
	if (!inbound->closed && inbound->rail == RAIL_IVSHMEM)
		ivshmem_unused(inbound);
	link_free_inbound(peer->endpoint->context, inbound);
}
