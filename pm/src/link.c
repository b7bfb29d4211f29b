/* link.c - what is seldom done with connections: asking for them, taking those that came, noticing their end. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ivshmem.h"
#include "link.h"
#include "udp.h"
#include "verbs.h"

/* The peer is gone: its operations end, and the owner is told once. */
void peer_gone(struct pm_peer *peer, int status)
{
	if (peer->status)
		return;
	peer->status = status;
	if (peer->out)
		atomic_store(&peer->out->gone, status);
	operation_peer_gone(peer, status);
	copied_peer_gone(peer);
	peer->gone.event = (struct pm_event){.type = PM_PEER_GONE, .status = status, .peer = peer};
	STAILQ_INSERT_TAIL(&peer->endpoint->events, &peer->gone, entry);
	rail_notice(peer->endpoint); /* of its rings some are of no more use */
}

static void take_arrivals(struct pm_endpoint *endpoint);

/* Whether a peer whose end has been noticed has left nothing to be read. It may have connected, sent its last and gone since
 * the arrivals were last looked at. */
bool link_read_out(struct pm_peer *peer)
{
	take_arrivals(peer->endpoint);
	return !peer->rings;
}

static int over_udp(struct pm_peer *peer)
{
	if (!udp_link_to(peer)) {
		peer_gone(peer, -EHOSTUNREACH);
		return -EHOSTUNREACH;
	}
	peer->over_udp = true;
	/* That is the beginning; a better one may be had. */
	unsigned better = atomic_load(&peer->endpoint->context->rails) & (1u << RAIL_IVSHMEM | 1u << RAIL_VERBS);
	if (better) {
		peer->rings_wanted |= better;
		rail_notice(peer->endpoint);
	}
	return 0;
}

/* A connection to the peer, which has no ring yet; NULL: no memory. */
struct outbound *link_outbound(struct pm_peer *peer, enum rail rail, uint32_t generation)
{
	struct outbound *outbound = calloc(1, sizeof(*outbound));
	if (!outbound)
		return NULL;
	outbound->peer = peer;
	outbound->statistics = peer->endpoint->statistics;
	outbound->doorbell = -1;
	outbound->remote = rail != RAIL_SHM;
	outbound->rail = rail;
	outbound->generation = generation;
	return outbound;
}

/* A connection from the peer, which has not begun and has no ring yet; NULL: no memory. */
struct inbound *link_inbound(struct pm_peer *peer, enum rail rail, uint32_t generation)
{
	struct inbound *inbound = calloc(1, sizeof(*inbound));
	if (!inbound)
		return NULL;
	inbound->endpoint = peer->endpoint;
	inbound->peer = peer;
	inbound->from = peer->address;
	inbound->rail = rail;
	inbound->generation = generation;
	inbound->waits = true;
	return inbound;
}

/* Asks for a ring to the peer; false: no memory. */
bool link_connect(struct pm_peer *peer)
{
	struct outbound *outbound = link_outbound(peer, RAIL_SHM, peer->generation + 1);
	if (!outbound)
		return false;
	peer->generation++;
	outbound->after_udp = peer->over_udp;
	peer->outbound = outbound;
	keeper_connect(peer->endpoint->context, outbound);
	return true;
}

/* No ring was to be had, or the ring's reader is gone. */
static int no_ring(struct pm_peer *peer, int gone)
{
	if (!peer->out && ((gone == -EHOSTUNREACH && udp_elsewhere(peer)) || gone == -EOPNOTSUPP)) {
		link_free_outbound(peer);
		return over_udp(peer);
	}
	if (gone == -EHOSTDOWN && peer->udp)
		udp_ended(peer); /* it may have sent something that way */
	else if (link_read_out(peer))
		peer_gone(peer, gone);
	return peer->status ? peer->status : -EAGAIN;
}

/* Finds a way to the peer, the first time or when the one it had has ended. 0: it is peer->out, or else udp; -EAGAIN:
 * not now; else why there is none. */
int link_want(struct pm_peer *peer)
{
	if (peer->status)
		return peer->status;
	if (peer->over_udp)
		return 0;
	peer->endpoint->starved = true;
	if (peer->leaving)
		return -EAGAIN;
	if (!peer->outbound) {
		if (!rail_allowed(peer->endpoint->context, RAIL_SHM))
			return over_udp(peer);
		if (!link_connect(peer))
			return -EAGAIN;
	}
	int gone = atomic_load(&peer->outbound->gone);
	if (gone)
		return no_ring(peer, gone);
	if (!atomic_load(&peer->outbound->ready))
		return -EAGAIN;
	if (!peer->out)
		count_both(&peer->endpoint->statistics->links_out, 1);
	peer->out = peer->outbound;
	peer->watched = true;
	return 0;
}

int link_no_room(struct pm_peer *peer)
{
	if (peer->out->ring.broken) {
		peer_gone(peer, -EPROTO);
		return -EPROTO;
	}
	peer->endpoint->starved = true;
	count(&peer->endpoint->statistics->no_room, 1);
	if (peer->out->remote) {
		peer->no_room_ns = clock_ns();
		udp_look_soon(peer->endpoint);
	}
	if (peer->out->verbs)
		verbs_look(peer->endpoint);
	return -EAGAIN;
}

/* Begins to read a ring; false: no memory. */
bool link_add_inbound(struct pm_endpoint *endpoint, struct inbound *inbound)
{
	if (endpoint->inbound_count == endpoint->inbound_room) {
		unsigned room = endpoint->inbound_room ? 2 * endpoint->inbound_room : 16;
		struct inbound **more = realloc(endpoint->inbound, room * sizeof(*more));
		if (!more)
			return false;
		endpoint->inbound = more;
		endpoint->inbound_room = room;
	}
	endpoint->inbound[endpoint->inbound_count++] = inbound;
	inbound->peer->rings++;
	endpoint->unfenced += inbound->unfenced;
	count_both(&endpoint->statistics->links_in, 1);
	return true;
}

/* Gives the memory of a ring back: to the kernel, or to those who share it. */
void link_unmap_inbound(struct pm_context *context, struct inbound *inbound)
{
	if (inbound->rail == RAIL_IVSHMEM)
		ivshmem_give_up(context, inbound);
	else if (inbound->verbs)
		verbs_let_go(inbound->verbs);
	else
		munmap(inbound->ring.memory, inbound->ring_size);
	inbound->asleep = NULL;
	inbound->verbs = NULL;
}

void link_unmap_outbound(struct outbound *outbound)
{
	if (outbound->rail == RAIL_IVSHMEM)
		ivshmem_let_go(outbound);
	else if (outbound->verbs)
		verbs_let_go(outbound->verbs);
	else if (outbound->ring.memory)
		munmap(outbound->ring.memory, outbound->ring_size);
	if (outbound->page)
		munmap(outbound->page, sizeof(struct shared_page));
	outbound->page = NULL;
	outbound->asleep = NULL;
	outbound->verbs = NULL;
}

/* A message is in the ring. The reader in another guest may sleep: no barrier of its own reaches this processor, so it
 * has one here. */
void link_wake_remote(struct outbound *outbound)
{
	if (outbound->verbs) {
		verbs_post(outbound);
		return;
	}
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(outbound->asleep, memory_order_relaxed))
		udp_wake(outbound->peer);
}

void link_free_inbound(struct pm_context *context, struct inbound *inbound)
{
	pthread_mutex_lock(&context->lock);
	keeper_forget(context, inbound->socket);
	pthread_mutex_unlock(&context->lock);
	if (inbound->closed)
		free(inbound->ring.memory);
	else
		link_unmap_inbound(context, inbound);
	free(inbound);
}

static void take_arrivals(struct pm_endpoint *endpoint)
{
	struct inbound *inbound = atomic_exchange(&endpoint->arrivals, NULL), *next;
	for (; inbound; inbound = next) {
		next = inbound->next;
		/* Without memory the stranger is hung up on, and learns it by that. */
		if (peer_find(endpoint, &inbound->from, &inbound->peer) || (!inbound->waits && !link_add_inbound(endpoint, inbound))) {
			link_free_inbound(endpoint->context, inbound);
		} else if (inbound->waits) {
			inbound->next = endpoint->waiting;
			endpoint->waiting = inbound;
		}
	}
}

/* Reads no more of the ring at that place. */
static void remove_inbound(struct pm_endpoint *endpoint, unsigned at)
{
	struct inbound *inbound = endpoint->inbound[at];
	endpoint->inbound[at] = endpoint->inbound[--endpoint->inbound_count];
	if (endpoint->inbound_at >= endpoint->inbound_count)
		endpoint->inbound_at = 0;
	endpoint->unfenced -= inbound->unfenced;
	inbound->peer->rings--;
	help_forget(endpoint, inbound);
}

/* A ring whose writer is gone has been read to its end; the last one of a peer ends that peer. */
static void end_ring(struct pm_endpoint *endpoint, unsigned at)
{
	struct inbound *inbound = endpoint->inbound[at];
	struct pm_peer *peer = inbound->peer;
	int status = inbound->ring.broken ? -EPROTO : -EHOSTDOWN;
	if (inbound->ring.broken)
		count_both(&endpoint->statistics->dropped, 1);
	remove_inbound(endpoint, at);
	link_free_inbound(endpoint->context, inbound);
	if (!link_read_out(peer))
		return;
	if (status == -EHOSTDOWN && peer->udp)
		udp_ended(peer);
	else
		peer_gone(peer, status);
}

/* A ring that has been left has been read to its end. A connection stays until the writer has heard of that, and hangs
 * up: if the reader did so, it would seem to be gone. */
static void end_copy(struct pm_endpoint *endpoint, unsigned at)
{
	struct inbound *inbound = endpoint->inbound[at];
	remove_inbound(endpoint, at);
	inbound->next = endpoint->closing;
	endpoint->closing = inbound;
}

/* Drops the rings whose writers have heard of their end. */
static void drop_closed(struct pm_endpoint *endpoint)
{
	for (struct inbound **at = &endpoint->closing, *inbound; (inbound = *at);) {
		bool heard = inbound->rail == RAIL_SHM ? atomic_load(&inbound->gone) : inbound->closed_told || inbound->peer->status;
		if (!heard) {
			at = &inbound->next;
			continue;
		}
		*at = inbound->next;
		link_free_inbound(endpoint->context, inbound);
	}
}

/* A peer whose rings have no sockets is gone: what is in them is still good. */
void link_ended(struct pm_peer *peer)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		if (endpoint->inbound[i]->peer == peer && endpoint->inbound[i]->rail != RAIL_SHM)
			atomic_store(&endpoint->inbound[i]->gone, 1);
	atomic_store(&endpoint->attention, true);
}

/* Drops the rings that have been read to their end; whether others will have to be. */
static bool drop_ended(struct pm_endpoint *endpoint)
{
	bool waiting = false;
	for (unsigned i = endpoint->inbound_count; i-- > 0;) {
		struct inbound *inbound = endpoint->inbound[i];
		bool broken = inbound->ring.broken;
		if (inbound == endpoint->current)
			waiting |= broken || inbound->closed || atomic_load(&inbound->gone);
		else if (inbound->closed && !broken && inbound->ring.cell == inbound->end)
			end_copy(endpoint, i);
		else if (broken || (atomic_load(&inbound->gone) && !inbound->closed && !ring_ready(&inbound->ring)))
			end_ring(endpoint, i);
		else
			waiting |= atomic_load(&inbound->gone) && !inbound->closed;
	}
	return waiting;
}

/* Looks at what the keeper has noticed. */
void link_news(struct pm_endpoint *endpoint)
{
	struct pm_peer *peer, *next;
	atomic_store(&endpoint->attention, false);
	take_arrivals(endpoint);
	if (atomic_load(&endpoint->switching))
		rail_progress(endpoint);
	if (endpoint->verbs)
		verbs_look(endpoint); /* what a peer that is gone has sent is there before its ring is taken for empty */
	drop_closed(endpoint);
	if (drop_ended(endpoint))
		atomic_store(&endpoint->attention, true);
	HASH_ITER(hh, endpoint->peers, peer, next) {
		if (peer->outbound && !peer->over_udp && !peer->leaving && (!peer->out || atomic_load(&peer->outbound->gone)))
			link_want(peer);
	}
}

/* Ends the ring to the peer. */
void link_free_outbound(struct pm_peer *peer)
{
	struct pm_context *context = peer->endpoint->context;
	struct outbound *outbound = peer->outbound, *other;
	pthread_mutex_lock(&context->lock);
	STAILQ_FOREACH(other, &context->connecting, connecting) {
		if (other == outbound) {
			STAILQ_REMOVE(&context->connecting, outbound, outbound, connecting);
			break;
		}
	}
	keeper_forget(context, outbound->socket);
	pthread_mutex_unlock(&context->lock);
	if (outbound->own)
		free(outbound->ring.memory);
	else
		link_unmap_outbound(outbound);
	if (outbound->doorbell >= 0)
		close(outbound->doorbell);
	free(outbound);
	peer->outbound = peer->out = NULL;
	peer->watched = false;
}

static void free_list(struct pm_context *context, struct inbound **list)
{
	for (struct inbound *inbound; (inbound = *list);) {
		*list = inbound->next;
		link_free_inbound(context, inbound);
	}
}

/* Ends all connections of an endpoint that the keeper no longer knows. */
void link_close_all(struct pm_endpoint *endpoint)
{
	struct pm_peer *peer, *next;
	take_arrivals(endpoint);
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		link_free_inbound(endpoint->context, endpoint->inbound[i]);
	endpoint->inbound_count = 0;
	free_list(endpoint->context, &endpoint->waiting);
	free_list(endpoint->context, &endpoint->closing);
	HASH_ITER(hh, endpoint->peers, peer, next)
		if (peer->outbound)
			link_free_outbound(peer);
}
