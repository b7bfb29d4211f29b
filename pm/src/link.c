/* link.c - what is seldom done with connections: asking for them, taking those that came, noticing their end. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "link.h"
#include "udp.h"

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
}

static bool still_arriving(const struct pm_peer *peer)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		if (endpoint->inbound[i]->peer == peer)
			return true;
	return false;
}

static struct outbound *link_over_udp(struct pm_peer *peer)
{
	if (!udp_link_to(peer))
		peer_gone(peer, -EHOSTUNREACH);
	return NULL;
}

/* The way to a peer that has none yet, or whose way has ended; asks for it the first time. NULL: not now, or never
 * (the peer's status). */
struct outbound *link_want(struct pm_peer *peer)
{
	struct outbound *outbound = peer->connecting;
	if (peer->status)
		return NULL;
	if (!peer->endpoint->context->shm)
		return link_over_udp(peer);
	if (!outbound) {
		outbound = calloc(1, sizeof(*outbound));
		if (!outbound)
			return NULL;
		outbound->peer = peer;
		outbound->statistics = peer->endpoint->statistics;
		outbound->doorbell = -1;
		peer->connecting = outbound;
		keeper_connect(peer->endpoint->context, outbound);
	}
	int gone = atomic_load(&outbound->gone);
	if (gone) {
		/* Not on this machine. */
		if (gone == -EHOSTUNREACH && !peer->out && udp_elsewhere(peer))
			return link_over_udp(peer);
		if (!still_arriving(peer))
			peer_gone(peer, gone);
		return NULL;
	}
	if (!atomic_load(&outbound->ready)) {
		peer->endpoint->starved = true;
		return NULL;
	}
	if (!peer->out)
		count(&peer->endpoint->statistics->links_out, 1);
	return peer->out = outbound;
}

int link_no_room(struct pm_peer *peer)
{
	if (peer->out->ring.broken) {
		peer_gone(peer, -EPROTO);
		return -EPROTO;
	}
	peer->endpoint->starved = true;
	count(&peer->endpoint->statistics->no_room, 1);
	return -EAGAIN;
}

static int add_inbound(struct pm_endpoint *endpoint, struct inbound *inbound)
{
	if (endpoint->inbound_count == endpoint->inbound_room) {
		unsigned room = endpoint->inbound_room ? 2 * endpoint->inbound_room : 16;
		struct inbound **more = realloc(endpoint->inbound, room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		endpoint->inbound = more;
		endpoint->inbound_room = room;
	}
	int error = pm_peer_get(endpoint, &inbound->from, &inbound->peer);
	if (error)
		return error;
	endpoint->inbound[endpoint->inbound_count++] = inbound;
	endpoint->unfenced += inbound->unfenced;
	count(&endpoint->statistics->links_in, 1);
	return 0;
}

static void free_inbound(struct pm_context *context, struct inbound *inbound)
{
	pthread_mutex_lock(&context->lock);
	keeper_forget(context, inbound->socket);
	pthread_mutex_unlock(&context->lock);
	munmap(inbound->ring.memory, inbound->ring_size);
	free(inbound);
}

static void take_arrivals(struct pm_endpoint *endpoint)
{
	struct inbound *inbound = atomic_exchange(&endpoint->arrivals, NULL), *next;
	for (; inbound; inbound = next) {
		next = inbound->next;
		/* Without memory the stranger is hung up on, and learns it by that. */
		if (add_inbound(endpoint, inbound))
			free_inbound(endpoint->context, inbound);
	}
}

/* Drops the rings that are empty and whose writer is gone; the last one of a peer ends that peer. */
static bool drop_ended(struct pm_endpoint *endpoint)
{
	bool waiting = false;
	for (unsigned i = 0; i < endpoint->inbound_count;) {
		struct inbound *inbound = endpoint->inbound[i];
		if (!atomic_load(&inbound->gone) && !inbound->ring.broken) {
			i++;
			continue;
		}
		if ((ring_ready(&inbound->ring) && !inbound->ring.broken) || inbound == endpoint->current) {
			waiting = true;
			i++;
			continue;
		}
		struct pm_peer *peer = inbound->peer;
		int status = inbound->ring.broken ? -EPROTO : -EHOSTDOWN;
		if (inbound->ring.broken)
			count(&endpoint->statistics->dropped, 1);
		endpoint->inbound[i] = endpoint->inbound[--endpoint->inbound_count];
		endpoint->unfenced -= inbound->unfenced;
		help_forget(endpoint, inbound);
		free_inbound(endpoint->context, inbound);
		if (!still_arriving(peer))
			peer_gone(peer, status);
	}
	if (endpoint->inbound_at >= endpoint->inbound_count)
		endpoint->inbound_at = 0;
	return waiting;
}

/* Looks at what the keeper has noticed. */
void link_news(struct pm_endpoint *endpoint)
{
	struct pm_peer *peer, *next;
	atomic_store(&endpoint->attention, false);
	take_arrivals(endpoint);
	if (drop_ended(endpoint))
		atomic_store(&endpoint->attention, true);
	HASH_ITER(hh, endpoint->peers, peer, next) {
		if (peer->connecting && !peer->status && !peer->udp && (!peer->out || atomic_load(&peer->connecting->gone)))
			link_want(peer);
	}
}

static void free_outbound(struct pm_context *context, struct outbound *outbound)
{
	struct outbound *other;
	pthread_mutex_lock(&context->lock);
	STAILQ_FOREACH(other, &context->connecting, connecting) {
		if (other == outbound) {
			STAILQ_REMOVE(&context->connecting, outbound, outbound, connecting);
			break;
		}
	}
	keeper_forget(context, outbound->socket);
	pthread_mutex_unlock(&context->lock);
	if (outbound->ring.memory)
		munmap(outbound->ring.memory, outbound->ring_size);
	if (outbound->page)
		munmap(outbound->page, sizeof(struct shared_page));
	if (outbound->doorbell >= 0)
		close(outbound->doorbell);
	free(outbound);
}

/* Ends all connections of an endpoint that the keeper no longer knows. */
void link_close_all(struct pm_endpoint *endpoint)
{
	struct pm_peer *peer, *next;
	take_arrivals(endpoint);
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		free_inbound(endpoint->context, endpoint->inbound[i]);
	endpoint->inbound_count = 0;
	HASH_ITER(hh, endpoint->peers, peer, next) {
		if (peer->connecting)
			free_outbound(endpoint->context, peer->connecting);
		peer->connecting = peer->out = NULL;
	}
}
