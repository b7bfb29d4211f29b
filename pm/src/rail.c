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
 * interleavings by model/rail.pml.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ivshmem.h"
#include "link.h"
#include "udp.h"

struct ring_news {
	uint32_t generation, rail;
	uint64_t cells, bytes; /* RING_END: written; RING_CLOSED: read */
};

static const char *const names[RAILS] = {[RAIL_SHM] = "shm", [RAIL_IVSHMEM] = "ivshmem", [RAIL_UDP] = "udp"};

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

/* False: there is no room now. */
static bool say(struct pm_peer *peer, enum message_type type, const void *what, uint32_t length)
{
	void *buffer;
	if (!udp_link_to(peer) || udp_reserve(peer, length, &buffer))
		return false;
	memcpy(buffer, what, length);
	udp_commit(peer, 0, type);
	return true;
}

static bool tell(struct pm_peer *peer, enum message_type type, struct ring_news news)
{
	return say(peer, type, &news, sizeof(news));
}

/* A copy of a ring's memory for one side of it alone; NULL: no memory. */
static struct ring_memory *copy_of(const struct ring_memory *memory, size_t size)
{
	struct ring_memory *copy = aligned_alloc(_Alignof(struct ring_memory), size);
	if (copy)
		memcpy(copy, memory, size);
	return copy;
}

/* The writer's side. */

/* Gives the ring's memory back; false: not now. */
static bool let_go(struct outbound *outbound)
{
	struct ring_writer *ring = &outbound->ring;
	struct ring_memory *copy = NULL;
	if (!help_leave(outbound))
		return false;
	ring_writer_look(ring);
	if (ring->cells_taken != ring->cell && !(copy = copy_of(ring->memory, outbound->ring_size)))
		return false;
	link_unmap_outbound(outbound);
	ring->memory = copy;
	ring->data = copy ? ring_data(copy, ring->data_mask + 1) : NULL;
	outbound->own = true;
	return true;
}

/* Whether it has to be tried again. */
static bool begin_to_leave(struct pm_peer *peer)
{
	struct outbound *outbound = peer->out;
	if (atomic_load(&outbound->gone) || !udp_link_to(peer))
		return false;
	if (!let_go(outbound))
		return true;
	peer->out = NULL;
	peer->leaving = true;
	return false;
}

/* Sends what the reader has not found; false: not all of it yet. */
static bool send_again(struct pm_peer *peer, struct outbound *outbound)
{
	struct ring_writer *ring = &outbound->ring;
	while (outbound->cells_closed != ring->cell) {
		struct ring_cell *cell = &ring->memory->cells[outbound->cells_closed & ring->cell_mask];
		uint64_t control = atomic_load(&cell->control);
		uint32_t length = control & 0xffff;
		uint8_t type = control >> 16, kind = control >> 24;
		uint64_t place = ring_place(outbound->bytes_closed, length, ring->data_mask);
		const void *data = length <= RING_INLINE ? cell->payload : ring->data + (place & ring->data_mask);
		void *buffer;
		if (length > PM_MAX_MESSAGE) {
			peer_gone(peer, -EPROTO); /* the other has written where it should not */
			return false;
		}
		if (type != HELP) {
			if (udp_reserve(peer, length, &buffer))
				return false;
			memcpy(buffer, data, length);
			udp_commit(peer, kind, type);
		}
		outbound->cells_closed++;
		if (length > RING_INLINE)
			outbound->bytes_closed = place + ring_lines(length);
	}
	return true;
}

/* Whether what the reader says to have read can be. */
static bool closed_sensibly(const struct outbound *outbound)
{
	const struct ring_writer *ring = &outbound->ring;
	return outbound->cells_closed - ring->cells_taken <= ring->cell - ring->cells_taken &&
	       outbound->bytes_closed - ring->bytes_taken <= ring->byte - ring->bytes_taken;
}

static void go_on_leaving(struct pm_peer *peer)
{
	struct outbound *outbound = peer->outbound;
	if (!outbound->closed) {
		if (!outbound->end_told)
			outbound->end_told = tell(peer, RING_END, (struct ring_news){outbound->generation, outbound->rail, outbound->ring.cell, outbound->ring.byte});
		if (atomic_load(&outbound->gone))
			udp_ended(peer);
		return;
	}
	if (outbound->ring.broken || !closed_sensibly(outbound))
		peer_gone(peer, -EPROTO);
	else if (send_again(peer, outbound)) {
		link_free_outbound(peer);
		peer->leaving = false;
		peer->over_udp = true;
		count(&peer->endpoint->statistics->switches, 1);
	}
}

/* Asks for a ring of the best rail that has not been tried. */
static void ask_for_ring(struct pm_peer *peer)
{
	unsigned wanted = peer->rings_wanted & atomic_load(&peer->endpoint->context->rails);
	if (wanted & 1u << RAIL_SHM) {
		if (link_connect(peer))
			peer->rings_wanted &= ~(1u << RAIL_SHM);
	} else if (wanted & 1u << RAIL_IVSHMEM) {
		if (tell(peer, RING_WANTED, (struct ring_news){.rail = RAIL_IVSHMEM}))
			peer->rings_wanted &= ~(1u << RAIL_IVSHMEM);
	} else {
		peer->rings_wanted = 0;
	}
}

/* From udp to a ring. */
static void come_back(struct pm_peer *peer)
{
	struct outbound *outbound = peer->outbound;
	if (!outbound) {
		ask_for_ring(peer);
	} else if (atomic_load(&outbound->gone) || !rail_allowed(peer->endpoint->context, outbound->rail)) {
		link_free_outbound(peer);
	} else if (atomic_load(&outbound->ready) &&
		   tell(peer, RING_OPEN, (struct ring_news){.generation = outbound->generation, .rail = outbound->rail})) {
		peer->over_udp = false;
		peer->out = outbound;
		count(&peer->endpoint->statistics->links_out, 1);
		count(&peer->endpoint->statistics->switches, 1);
	}
}

/* Moves the peer's way on; whether there is more to do. */
static bool switch_peer(struct pm_peer *peer)
{
	if (peer->status) {
		if (peer->outbound && !rail_allowed(peer->endpoint->context, peer->outbound->rail))
			link_free_outbound(peer);
		return false;
	}
	for (unsigned rail = 0; peer->joins_untold >> rail; rail++)
		if (peer->joins_untold & 1u << rail && tell(peer, RAIL_JOINED, (struct ring_news){.rail = rail}))
			peer->joins_untold &= ~(1u << rail);
	bool more = false;
	if (peer->out && (!rail_allowed(peer->endpoint->context, peer->out->rail) || peer->out->closed))
		more = begin_to_leave(peer);
	if (peer->leaving)
		go_on_leaving(peer);
	else if (peer->over_udp)
		come_back(peer);
	else if (peer->outbound && !peer->out)
		link_want(peer); /* what has been begun is left when it is there */
	if (peer->status)
		return false;
	return more || peer->joins_untold || peer->leaving || (peer->outbound ? !peer->out : peer->over_udp && peer->rings_wanted);
}

/* The reader's side. */

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
		copy = copy_of(ring->memory, inbound->ring_size);
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
		inbound->closed_told = tell(inbound->peer, RING_CLOSED, (struct ring_news){inbound->generation, inbound->rail, inbound->end, inbound->end_byte});
	return inbound->closed_told || inbound->peer->status;
}

/* Moves a ring's end on; whether there is more to do. */
static bool switch_inbound(struct pm_endpoint *endpoint, struct inbound *inbound)
{
	bool leave = inbound->asked_to_close || !rail_allowed(endpoint->context, inbound->rail);
	if (inbound->ring.broken || !leave || !udp_link_to(inbound->peer))
		return false;
	if (!inbound->closed && !close_inbound(endpoint, inbound))
		return true;
	return !tell_closed(inbound);
}

/* Tells the writers of rings that have been read to their end; whether there is more to do. */
static bool tell_closing(struct pm_endpoint *endpoint)
{
	bool more = false;
	for (struct inbound *inbound = endpoint->closing; inbound; inbound = inbound->next)
		more |= !tell_closed(inbound);
	return more;
}

static bool is_about(const struct ring_news *news, enum rail rail, uint32_t generation)
{
	return news->rail == rail && news->generation == generation;
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
static bool open_ring(struct pm_peer *peer, const struct ring_news *news)
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
static bool offer_ring(struct pm_peer *peer)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	struct ring_offer offer;
	struct inbound *inbound = rail_allowed(endpoint->context, RAIL_IVSHMEM) ? ivshmem_make(peer, &offer) : NULL;
	if (!inbound)
		return true; /* it stays with udp */
	if (!say(peer, RING_OFFER, &offer, sizeof(offer))) {
		link_free_inbound(endpoint->context, inbound);
		return false;
	}
	inbound->next = endpoint->waiting;
	endpoint->waiting = inbound;
	return true;
}

/* A peer has offered a ring; false: no answer can be given now. */
static bool take_offer(struct pm_peer *peer, const struct ring_message *message)
{
	struct ring_offer offer;
	memcpy(&offer, message->data, sizeof(offer));
	if (peer->over_udp && !peer->outbound && rail_allowed(peer->endpoint->context, RAIL_IVSHMEM) && ivshmem_take(peer, &offer))
		return true;
	return tell(peer, RING_REFUSED, (struct ring_news){.generation = offer.generation, .rail = RAIL_IVSHMEM});
}

/* The peer does not want the ring that it was offered. */
static void refused(struct pm_peer *peer, const struct ring_news *news)
{
	struct inbound *inbound = take_waiting(peer, news);
	if (inbound)
		link_free_inbound(peer->endpoint->context, inbound);
}

/* What a peer says about rings; false: this cannot be done yet. */
bool rail_handle(struct pm_peer *peer, const struct ring_message *message)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	struct ring_news news;
	if (message->length != (message->type == RING_OFFER ? sizeof(struct ring_offer) : sizeof(news))) {
		count(&endpoint->statistics->dropped, 1);
		return true;
	}
	memcpy(&news, message->data, sizeof(news));
	switch (message->type) {
	case RING_OPEN:
		return !peer->rings && open_ring(peer, &news);
	case RING_END:
		for (unsigned i = 0; i < endpoint->inbound_count; i++)
			if (endpoint->inbound[i]->peer == peer && is_about(&news, endpoint->inbound[i]->rail, endpoint->inbound[i]->generation))
				endpoint->inbound[i]->asked_to_close = true;
		break;
	case RING_CLOSED:
		if (!peer->outbound || !is_about(&news, peer->outbound->rail, peer->outbound->generation) || (!peer->out && !peer->leaving))
			break;
		peer->outbound->cells_closed = news.cells;
		peer->outbound->bytes_closed = news.bytes;
		peer->outbound->closed = true;
		break;
	case RAIL_JOINED:
		peer->rings_wanted |= news.rail < RAIL_UDP ? 1u << news.rail : 0;
		break;
	case RING_WANTED:
		return offer_ring(peer);
	case RING_OFFER:
		return take_offer(peer, message);
	case RING_REFUSED:
		refused(peer, &news);
		break;
	}
	return true;
}

/* The rails of which there is memory. */
static unsigned in_use(const struct pm_endpoint *endpoint)
{
	const struct pm_peer *peer;
	unsigned used = 0;
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
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		more |= switch_inbound(endpoint, endpoint->inbound[i]);
	more |= tell_closing(endpoint);
	for (struct inbound *inbound = endpoint->waiting; inbound; inbound = inbound->next)
		if (!inbound->closed && !rail_allowed(endpoint->context, inbound->rail))
			more |= !close_inbound(endpoint, inbound);
	HASH_ITER(hh, endpoint->peers, peer, next)
		more |= switch_peer(peer);
	if (more) {
		atomic_store(&endpoint->switching, true);
		keeper_pace(endpoint->context);
	}
	atomic_store(&endpoint->in_use, in_use(endpoint));
}

