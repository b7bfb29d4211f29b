/* rail_write.c - leaving rings and coming back to them: the writer's side (rail.c). */
#include "rail.h"

#include <errno.h>
#include <string.h>

/* Gives the ring's memory back; false: not now. */
static bool let_go(struct outbound *outbound)
{
	struct ring_writer *ring = &outbound->ring;
	struct ring_memory *copy = NULL;
	if (!help_leave(outbound))
		return false;
	ring_writer_look(ring);
	const struct ring_part part = {ring->cells_taken, ring->cell, ring->bytes_taken, ring->byte};
	if (ring->cells_taken != ring->cell && !(copy = rail_copy(ring->memory, ring->data_mask + 1, &part)))
		return false;
	link_unmap_outbound(outbound);
	ring->memory = copy;
	ring->far = false; /* nothing is written any more */
	ring->data = copy ? ring_data(copy, ring->data_mask + 1) : NULL;
	outbound->own = true;
	return true;
}

/* Whether it has to be tried again. */
static bool begin_to_leave(struct pm_peer *peer)
{
	struct outbound *outbound = peer->out;
	bool gone = atomic_load(&outbound->gone);
	if (outbound->own || (!gone && !udp_link_to(peer)))
		return false;
	if (!let_go(outbound))
		return true;
	if (gone)
		return false; /* the memory is given back; the rest is told when what it had sent has been read */
	peer->out = NULL;
	peer->watched = false;
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
	if (atomic_load(&peer->endpoint->held))
		return; /* when it is taken up again */
	if (!outbound->closed) {
		if (!outbound->end_told)
			outbound->end_told = rail_tell(peer, RING_END, (struct ring_news){outbound->generation, outbound->rail, outbound->ring.cell, outbound->ring.byte});
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

static void ask_for_verbs(struct pm_peer *peer)
{
	struct verbs_wanted wanted;
	/* It is made when it can be said, for that may have to be tried more than once. */
	if (!rail_can_say(peer))
		return;
	peer->rings_wanted &= ~(1u << RAIL_VERBS);
	if (verbs_usable(peer->endpoint->context) && verbs_ask(peer, &wanted) && !rail_say(peer, RING_WANTED, &wanted, sizeof(wanted)))
		link_free_outbound(peer);
}

/* Asks for a ring of the best rail that has not been tried. */
static void ask_for_ring(struct pm_peer *peer)
{
	unsigned wanted = peer->rings_wanted & atomic_load(&peer->endpoint->context->rails);
	if (wanted & 1u << RAIL_SHM) {
		if (link_connect(peer))
			peer->rings_wanted &= ~(1u << RAIL_SHM);
	} else if (wanted & 1u << RAIL_IVSHMEM) {
		peer->asked = rail_tell(peer, RING_WANTED, (struct ring_news){.rail = RAIL_IVSHMEM});
		if (peer->asked)
			peer->rings_wanted &= ~(1u << RAIL_IVSHMEM);
	} else if (wanted & 1u << RAIL_VERBS) {
		ask_for_verbs(peer);
	} else {
		peer->rings_wanted = 0;
	}
}

/* From udp to a ring. */
static void come_back(struct pm_peer *peer)
{
	struct outbound *outbound = peer->outbound;
	if (!outbound) {
		if (!peer->asked && rail_answered(peer) && !atomic_load(&peer->endpoint->held))
			ask_for_ring(peer);
	} else if (atomic_load(&outbound->gone) || !rail_allowed(peer->endpoint->context, outbound->rail)) {
		link_free_outbound(peer);
	} else if (atomic_load(&outbound->ready) && !peer->bulk_writes &&
		   rail_tell(peer, RING_OPEN, (struct ring_news){.generation = outbound->generation, .rail = outbound->rail})) {
		peer->over_udp = false;
		peer->out = outbound;
		peer->watched = outbound->rail == RAIL_SHM;
		count_both(&peer->endpoint->statistics->links_out, 1);
		count(&peer->endpoint->statistics->switches, 1);
	}
}

static bool has_to_leave(const struct pm_peer *peer)
{
	const struct outbound *out = peer->out;
	return out && !out->own && (out->closed || out->failed || !rail_allowed(peer->endpoint->context, out->rail));
}

/* Whether nothing is to be done about coming back, or not before the peer has said something. */
static bool comes_by_itself(const struct pm_peer *peer)
{
	const struct outbound *outbound = peer->outbound;
	if (!outbound)
		return !peer->over_udp || !peer->rings_wanted || peer->asked;
	return peer->out || (outbound->verbs && !atomic_load(&outbound->ready) && !atomic_load(&outbound->gone));
}

/* Moves the peer's way on; whether there is more to do. */
bool rail_switch_peer(struct pm_peer *peer)
{
	if (peer->status) {
		if (peer->outbound && (peer->outbound->verbs || !rail_allowed(peer->endpoint->context, peer->outbound->rail)))
			link_free_outbound(peer);
		return false;
	}
	for (unsigned rail = 0; peer->joins_untold >> rail; rail++)
		if (peer->joins_untold & 1u << rail && rail_tell(peer, RAIL_JOINED, (struct ring_news){.rail = rail}))
			peer->joins_untold &= ~(1u << rail);
	rail_answer(peer);
	bool more = false;
	if (has_to_leave(peer))
		more = begin_to_leave(peer);
	if (peer->leaving)
		go_on_leaving(peer);
	else if (peer->over_udp)
		come_back(peer);
	else if (peer->outbound && !peer->out)
		link_want(peer); /* what has been begun is left when it is there */
	if (peer->status)
		return false;
	return more || peer->joins_untold || !rail_answered(peer) || peer->leaving || (has_to_leave(peer) && udp_link_to(peer)) || !comes_by_itself(peer);
}

static bool take_offer(struct pm_peer *peer, const struct ring_message *message, enum rail rail)
{
	struct ring_offer memory;
	struct verbs_offer verbs;
	if (!peer->over_udp || !rail_allowed(peer->endpoint->context, rail))
		return false;
	if (rail == RAIL_VERBS) {
		memcpy(&verbs, message->data, sizeof(verbs));
		return verbs_take(peer, &verbs);
	}
	memcpy(&memory, message->data, sizeof(memory));
	return !peer->outbound && ivshmem_take(peer, &memory);
}

/* A peer has offered a ring: it is taken, or refused. */
void rail_take_offer(struct pm_peer *peer, const struct ring_message *message, const struct ring_news *news)
{
	peer->asked &= news->rail != RAIL_IVSHMEM;
	if (take_offer(peer, message, news->rail))
		return;
	peer->unanswered->refusals |= 1u << news->rail;
	peer->unanswered->refused[news->rail] = news->generation;
}
