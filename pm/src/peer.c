/* peer.c - what an endpoint knows of others. */
#include <errno.h>
#include <stdlib.h>

#include "udp.h"

/* pm_peer_get, by who is inside. */
int peer_find(struct pm_endpoint *endpoint, const struct pm_address *address, struct pm_peer **found)
{
	struct pm_peer *peer;
	HASH_FIND(hh, endpoint->peers, address, sizeof(*address), peer);
	if (!peer) {
		if (!address_valid(address))
			return -EINVAL;
		peer = calloc(1, sizeof(*peer));
		if (!peer)
			return -ENOMEM;
		peer->endpoint = endpoint;
		peer->address = *address;
		TAILQ_INIT(&peer->reads);
		HASH_ADD(hh, endpoint->peers, address, sizeof(peer->address), peer);
	}
	*found = peer;
	return 0;
}

EXPORT int pm_peer_get(struct pm_endpoint *endpoint, const struct pm_address *address, struct pm_peer **found)
{
	if (!endpoint_enter(endpoint))
		return -EAGAIN;
	int error = peer_find(endpoint, address, found);
	endpoint_leave(endpoint);
	return error;
}

EXPORT void pm_peer_address(const struct pm_peer *peer, struct pm_address *address)
{
	*address = peer->address;
}

EXPORT int pm_peer_status(const struct pm_peer *peer)
{
	return peer->status;
}

EXPORT void pm_peer_await(struct pm_peer *peer, int awaited)
{
	if (atomic_load_explicit(&peer->awaited, memory_order_relaxed) == !!awaited)
		return;
	atomic_store_explicit(&peer->awaited, awaited, memory_order_relaxed);
	if (awaited)
		udp_look_soon(peer->endpoint);
}

EXPORT void pm_peer_set_data(struct pm_peer *peer, void *data)
{
	peer->data = data;
}

EXPORT void *pm_peer_data(const struct pm_peer *peer)
{
	return peer->data;
}
