/* rings.h - rings between an endpoint and a peer of which the other sides are in a fuzzer's hands. */
#ifndef RINGS_H
#define RINGS_H

#include <stdlib.h>
#include <string.h>

#include "link.h"

#define RINGS_BYTES 65536 /* of data in each */

struct rings {
	struct pm_peer *peer;
	struct inbound *in;
	struct outbound *out;
	struct shared_page page; /* of the hostile process */
};

static inline void *rings_memory(void)
{
	void *memory = aligned_alloc(128, ring_size(RINGS_BYTES));
	memset(memory, 0, ring_size(RINGS_BYTES));
	return memory;
}

static inline void rings_open(struct rings *rings, struct pm_peer *peer)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	rings->peer = peer;
	rings->in = calloc(1, sizeof(*rings->in));
	ring_reader_open(&rings->in->ring, rings_memory(), RINGS_BYTES);
	rings->in->peer = peer;
	rings->in->endpoint = endpoint;
	if (!link_add_inbound(endpoint, rings->in))
		abort();
	rings->out = calloc(1, sizeof(*rings->out));
	ring_writer_open(&rings->out->ring, rings_memory(), RINGS_BYTES);
	rings->out->peer = peer;
	rings->out->asleep = &rings->page.endpoints[0].asleep;
	rings->out->statistics = endpoint->statistics;
	rings->out->doorbell = -1;
	atomic_store(&rings->out->ready, true);
	peer->out = peer->outbound = rings->out;
}

/* Before the endpoint, which must not free what is not its own; of all peers at once. */
static inline void rings_close(struct rings *rings)
{
	rings->peer->endpoint->inbound_count = 0;
	rings->peer->out = rings->peer->outbound = NULL;
	free(rings->in->ring.memory);
	free(rings->out->ring.memory);
	free(rings->in);
	free(rings->out);
}

/* The hostile reader takes all there is, so that there is room again. */
static inline void rings_take_all(struct rings *rings)
{
	atomic_store(&rings->out->ring.memory->taken.cells, rings->out->ring.cell);
	atomic_store(&rings->out->ring.memory->taken.bytes, rings->out->ring.byte);
}

#endif
