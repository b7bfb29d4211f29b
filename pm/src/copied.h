/* copied.h - remote memory access by messages: what of it others need (copied.c). */
#ifndef PM_COPIED_H
#define PM_COPIED_H

#include "internal.h"

struct read_request {
	uint64_t id, address, key, length;
	/* For a device of the peer's (verbs_access.c): where the bytes are wanted, the key of that, and the ring to this side
	 * by which they are to come, or 0. */
	uint64_t place;
	uint32_t place_key, generation;
};

void copied_serve(struct pm_peer *peer, struct service asked);

#endif
