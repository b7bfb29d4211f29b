/* message.h - the path of every message that is sent: as short as it can be, the rest is in link.c. */
#ifndef PM_MESSAGE_H
#define PM_MESSAGE_H

#include <errno.h>
#include <unistd.h>

#include "link.h"
#include "udp.h"

static inline int message_reserve(struct pm_peer *peer, uint32_t length, void **buffer)
{
	struct outbound *out = peer->out;
	if (unlikely(!out || atomic_load_explicit(&out->gone, memory_order_relaxed))) {
		int error = link_want(peer);
		if (error)
			return error;
		out = peer->out;
		if (!out)
			return udp_reserve(peer, length, buffer);
	}
	if (unlikely(length > PM_MAX_MESSAGE))
		return -EMSGSIZE;
	*buffer = ring_reserve(&out->ring, length);
	return likely(*buffer) ? 0 : link_no_room(peer);
}

/* Of shm's nothing is counted here: they are what the other rails leave of all (survey.c). */
static inline void message_count(struct pm_peer *peer, enum rail rail, enum message_type type, uint32_t length)
{
	struct pm_rail_statistics *statistics = &peer->endpoint->statistics->rails[rail];
	if (type != MESSAGE)
		return;
	count(&statistics->messages, 1);
	count(&statistics->message_bytes, length);
}

static inline void message_commit(struct pm_peer *peer, uint8_t kind, enum message_type type)
{
	struct outbound *out = peer->out;
	if (unlikely(!out)) {
		message_count(peer, RAIL_UDP, type, peer->udp->flow.reserved_length);
		udp_commit(peer, kind, type);
		return;
	}
	ring_commit(&out->ring, kind, type);
	/* A sleeper says so, makes all senders pass a barrier, and then looks once more (wait.c): the compiler alone has
	 * to be kept from looking before it writes. */
	atomic_signal_fence(memory_order_seq_cst);
	if (unlikely(out->remote)) {
		message_count(peer, out->rail, type, out->ring.length);
		link_wake_remote(out);
	} else if (unlikely(atomic_load_explicit(out->asleep, memory_order_relaxed)))
		bell_ring(out->doorbell);
}

#endif
