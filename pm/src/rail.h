/* rail.h - what the two sides of leaving a ring and coming back to it have in common (rail.c). */
#ifndef PM_RAIL_H
#define PM_RAIL_H

#include "ivshmem.h"
#include "link.h"
#include "udp.h"
#include "verbs.h"

/* What is said about a ring. */
struct ring_news {
	uint32_t generation, rail;
	uint64_t cells, bytes; /* RING_END: written; RING_CLOSED: read; RING_REFUSED: enum refused */
};

/* The number is of whom the ring would have been written by, or offered by. */
enum refused { REFUSED_OFFER, REFUSED_WISH };

/* What a peer has said about rings and is to be answered. That waits here for room, not in the stream: where both sides
 * waited so, neither would make room for the other. What is said later of the same rail takes the place of what was. */
struct unanswered {
	unsigned wishes;               /* for a ring to send by; rails, a bit each */
	unsigned refusals;             /* of the rings that it has offered; rails, a bit each */
	uint32_t refused[RAILS];       /* the number of that ring */
	struct verbs_wanted verbs;     /* its wish for one of that rail */
};

/* The messages of a ring from one to another: their cells, and bytes of data. */
struct ring_part {
	uint64_t cell, cell_end, byte, byte_end;
};

/* rail.c */
bool rail_say(struct pm_peer *peer, enum message_type type, const void *what, uint32_t length);
bool rail_tell(struct pm_peer *peer, enum message_type type, struct ring_news news);
bool rail_can_say(struct pm_peer *peer);
void rail_answer(struct pm_peer *peer);
bool rail_answered(const struct pm_peer *peer);
struct ring_memory *rail_copy(struct ring_memory *memory, uint32_t data_bytes, const struct ring_part *part);

/* rail_write.c */
bool rail_switch_peer(struct pm_peer *peer);
void rail_take_offer(struct pm_peer *peer, const struct ring_message *message, const struct ring_news *news);

/* rail_read.c */
bool rail_switch_inbound(struct pm_endpoint *endpoint);
bool rail_open_ring(struct pm_peer *peer, const struct ring_news *news);
bool rail_offer_ring(struct pm_peer *peer, enum rail rail);
void rail_refused(struct pm_peer *peer, const struct ring_news *news);

static inline bool is_about(const struct ring_news *news, enum rail rail, uint32_t generation)
{
	return news->rail == rail && news->generation == generation;
}

#endif
