/* peer.c - what an endpoint knows of others: finding them, control messages to them, their end. */
#include <stdlib.h>
#include <string.h>

#include "prov.h"

#define FIRST_PEERS 64 /* entries of the array by fi_addr_t, which doubles */

struct prov_peer *prov_peer_new(struct prov_ep *ep, struct pm_peer *pm)
{
	struct prov_peer *peer = calloc(1, sizeof(*peer));
	struct pm_address address;

	if (!peer)
		return NULL;
	pm_peer_address(pm, &address);
	peer->pm = pm;
	peer->endpoint = ep;
	peer->eager_room = ep->eager + 1;
	peer->address = ep->av ? prov_av_find(ep->av, &address) : FI_ADDR_NOTAVAIL;
	TAILQ_INIT(&peer->operations);
	STAILQ_INIT(&peer->controls);
	TAILQ_INSERT_TAIL(&ep->all_peers, peer, link);
	ep->known_peers++;
	pm_peer_set_data(pm, peer);
	return peer;
}

static int make_place(struct prov_ep *ep, fi_addr_t address)
{
	uint64_t count = ep->peer_count ? ep->peer_count : FIRST_PEERS;
	struct prov_peer **peers;

	if (address < ep->peer_count)
		return 0;
	while (count <= address)
		count *= 2;
	peers = realloc(ep->peers, count * sizeof(*peers));
	if (!peers)
		return -FI_ENOMEM;
	memset(peers + ep->peer_count, 0, (count - ep->peer_count) * sizeof(*peers));
	ep->peers = peers;
	ep->peer_count = count;
	return 0;
}

int prov_peer_resolve(struct prov_ep *ep, fi_addr_t address, struct prov_peer **result)
{
	const struct pm_address *found = ep->av ? prov_av_address(ep->av, address) : NULL;
	struct prov_peer *peer;
	struct pm_peer *pm;
	int status;

	if (!found)
		return -FI_EINVAL;
	status = make_place(ep, address);
	if (!status)
		status = pm_peer_get(ep->pm, found, &pm);
	if (status)
		return status;
	peer = prov_peer_of(ep, pm);
	if (!peer)
		return -FI_ENOMEM;
	ep->peers[address] = peer;
	*result = peer;
	return 0;
}

/* Sources that were unknown so far get their fi_addr_t. */
void prov_peer_inserted(struct prov_ep *ep, const struct pm_address *address, fi_addr_t index)
{
	struct prov_peer *peer;
	struct pm_address own;

	TAILQ_FOREACH(peer, &ep->all_peers, link) {
		if (peer->address != FI_ADDR_NOTAVAIL)
			continue;
		pm_peer_address(peer->pm, &own);
		if (!memcmp(&own, address, sizeof(own)))
			peer->address = index;
	}
}

void prov_peer_removed(struct prov_ep *ep, fi_addr_t index)
{
	struct prov_peer *peer;

	if (index < ep->peer_count)
		ep->peers[index] = NULL;
	TAILQ_FOREACH(peer, &ep->all_peers, link) {
		if (peer->address == index)
			peer->address = FI_ADDR_NOTAVAIL;
	}
}

static int send_control(struct prov_peer *peer, uint8_t kind, const void *bytes, size_t length)
{
	struct iovec part = { .iov_base = (void *)bytes, .iov_len = length };

	return pm_send(peer->pm, kind, &part, length ? 1 : 0);
}

/* What cannot be sent for another reason than want of room will never be: the peer is gone. */
void prov_peer_control(struct prov_peer *peer, uint8_t kind, const void *bytes, size_t length)
{
	struct prov_control *control;

	if (peer->gone)
		return;
	if (STAILQ_EMPTY(&peer->controls) && send_control(peer, kind, bytes, length) != -EAGAIN)
		return;
	control = malloc(sizeof(*control) + length);
	if (!control) {
		FI_WARN(&prov_provider, FI_LOG_EP_DATA, "no memory for an answer to a peer\n");
		abort();
	}
	control->kind = kind;
	control->length = length;
	if (length)
		memcpy(control->bytes, bytes, length);
	if (STAILQ_EMPTY(&peer->controls))
		TAILQ_INSERT_TAIL(&peer->endpoint->blocked, peer, blocked);
	STAILQ_INSERT_TAIL(&peer->controls, control, link);
	peer->control_bytes += sizeof(*control) + length;
}

static void drop_control(struct prov_peer *peer)
{
	struct prov_control *control = STAILQ_FIRST(&peer->controls);

	STAILQ_REMOVE_HEAD(&peer->controls, link);
	peer->control_bytes -= sizeof(*control) + control->length;
	free(control);
	if (STAILQ_EMPTY(&peer->controls))
		TAILQ_REMOVE(&peer->endpoint->blocked, peer, blocked);
}

void prov_peer_unblock(struct prov_ep *ep)
{
	struct prov_peer *peer, *next;

	for (peer = TAILQ_FIRST(&ep->blocked); peer; peer = next) {
		struct prov_control *control;

		next = TAILQ_NEXT(peer, blocked);
		while ((control = STAILQ_FIRST(&peer->controls))) {
			if (send_control(peer, control->kind, control->bytes, control->length) == -EAGAIN)
				break;
			drop_control(peer);
		}
	}
}

static void fail_receives(struct prov_ep *ep, struct prov_side *side, const struct prov_peer *peer, int status)
{
	struct prov_receive *receive, *next;

	for (receive = TAILQ_FIRST(&side->posted); receive; receive = next) {
		next = TAILQ_NEXT(receive, link);
		if (receive->peer == peer)
			prov_fail_receive(ep, side, receive, status);
	}
}

void prov_peer_gone(struct prov_peer *peer, int status)
{
	struct prov_ep *ep = peer->endpoint;
	struct prov_operation *operation;

	if (peer->gone)
		return;
	peer->gone = true;
	peer->eager_room = 0;
	while (!STAILQ_EMPTY(&peer->controls))
		drop_control(peer);
	while ((operation = TAILQ_FIRST(&peer->operations)))
		prov_operation_abandon(operation, status);
	fail_receives(ep, &ep->tagged, peer, status);
	fail_receives(ep, &ep->untagged, peer, status);
}

static void await_senders(const struct prov_side *side)
{
	struct prov_receive *receive;

	TAILQ_FOREACH(receive, &side->posted, link) {
		if (receive->peer)
			receive->peer->awaited = true;
	}
}

void prov_peers_await(struct prov_ep *ep)
{
	struct prov_peer *peer;

	TAILQ_FOREACH(peer, &ep->all_peers, link)
		peer->awaited = !TAILQ_EMPTY(&peer->operations);
	await_senders(&ep->tagged);
	await_senders(&ep->untagged);
	TAILQ_FOREACH(peer, &ep->all_peers, link)
		pm_peer_await(peer->pm, peer->awaited);
}

void prov_peers_free(struct prov_ep *ep)
{
	struct prov_peer *peer;

	while ((peer = TAILQ_FIRST(&ep->all_peers))) {
		while (!STAILQ_EMPTY(&peer->controls))
			drop_control(peer);
		prov_operations_free(peer);
		TAILQ_REMOVE(&ep->all_peers, peer, link);
		pm_peer_set_data(peer->pm, NULL);
		free(peer);
	}
}
