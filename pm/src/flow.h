/*
 * flow.h - one connection of the udp rail, without sockets and without a clock: packets and times go in, packets come
 * out. Reliable and ordered, with selective acknowledgements and congestion control.
 *
 * Each direction is a stream of frames (a header of 8 bytes, then a message) that lies in a ring of the sender, and
 * comes to lie at the same place in a ring of the same size of the receiver. A frame is never over the end of the
 * ring: a frame SKIP leads to its beginning. The stream is cut into segments, numbered from 0, which are what is sent,
 * acknowledged and sent again. The receiver acknowledges all below a number, and a bitmap of those above it.
 *
 * Between them, in the same sequence of numbers, go segments of bulk: pieces of somebody's memory that are sent from
 * where they lie, and that the receiver puts where they belong in whatever order they come. As the stream is read in
 * order of the numbers, what is said in it after all of a bulk has been numbered is read after all of that is here.
 * Bulk that its owner takes away goes on as empty segments, for the numbers must have no gaps.
 *
 * Packets go by one path or by several (flow_path.h); the numbers are those of the connection, so that what was lost on
 * one path can be sent again on any.
 *
 * A segment is taken for lost when something sent later by the same path has arrived, and so much later that it is not
 * just late: four transmissions, or a quarter of a round trip (RFC 8985). When what was sent last should
 * have been acknowledged, the last segment of a path is sent once more, so that a lost end is found out about; and after
 * the retransmission timeout the first one, by another path if there is one, again and again, at growing intervals for ever:
 * a silent peer is not a dead one. The congestion window grows as in RFC 5681 and shrinks by 0.7 as in RFC 9438, but not
 * for some lost packets in a hundred, which a full network would not leave it at.
 */
#ifndef PM_FLOW_H
#define PM_FLOW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "flow_path.h"
#include "ring.h"

/* Segments on their way, at most; a power of two. And bits of an acknowledgement: all but one may come by a quick path
 * while that is awaited by a slow one. */
#define FLOW_SEGMENTS 4096
#define FLOW_BITS FLOW_SEGMENTS
#define FLOW_FRAME 8
/* Bytes by which a packet's header is longer for bulk than for the stream. */
#define FLOW_BULK_HEADER 16

/* Memory that is sent from where it lies. It is the flow's until it is neither waiting nor unacknowledged. */
struct flow_bulk {
	const uint8_t *memory;
	uint64_t length;
	uint64_t cut;            /* has been numbered so far */
	uint32_t unacknowledged; /* segments */
	bool listed;             /* in the flow's list: not all is numbered and acknowledged */
	bool removed;            /* before all was acknowledged */
	uint16_t type;           /* of packets, and what they say of it: the caller's */
	uint64_t name, at, key;
	TAILQ_ENTRY(flow_bulk) entry;
};

/* A segment to be sent now. */
struct flow_segment {
	uint64_t sequence;
	enum flow_kind { FLOW_STREAM, FLOW_BULK, FLOW_EMPTY } kind;
	const struct flow_bulk *bulk;
	uint64_t offset; /* in the stream, or in the bulk */
	const uint8_t *data;
	uint32_t length;
	unsigned path;
};

/* What one side tells the other of what has arrived. */
struct flow_news {
	uint32_t next;     /* all segments below it are here (low 32 bits) */
	uint32_t consumed; /* stream, up to which the ring is free again (low 32 bits) */
	uint32_t echo_us;  /* time in the packet that arrived last by the same path */
	uint32_t bits;     /* bits in the bitmap, 0 to FLOW_BITS */
	uint64_t bitmap[FLOW_BITS / 64]; /* bit i: segment next + 1 + i is here */
};

struct flow_sent {
	uint64_t offset, stamp;      /* the stamp is one of its path */
	uint64_t at_ns;              /* when it was sent last */
	struct flow_bulk *bulk;
	uint32_t length;
	enum flow_kind kind;
	uint8_t path;                /* by which it was */
	bool again;                  /* not for the first time */
	uint16_t before;             /* segments that were on their way by that path then */
	enum { SENT_ACKED, SENT_ON_ITS_WAY, SENT_LOST } state;
};

struct flow_arrived {
	uint64_t offset;
	uint32_t length;
	bool here;
	bool stream;
};

struct flow {
	uint32_t mask;              /* size of the rings - 1 */
	uint32_t segment_size;      /* bytes of stream in a packet, at most */

	/* Out. Offsets in the stream: acknowledged <= cut <= head <= consumed + size. */
	uint8_t *out;
	uint64_t head, cut;
	uint64_t skip_from, skip_to; /* a piece that is not sent */
	uint64_t consumed;           /* by the peer */
	uint64_t reserved;           /* where the reserved frame begins */
	uint32_t reserved_length;
	TAILQ_HEAD(, flow_bulk) bulks; /* not all numbered and acknowledged */
	struct flow_bulk *bulk;      /* the first that is not all numbered */
	unsigned turn;               /* segments sent of one or the other while both waited */
	struct flow_sent *sent;
	uint64_t next, first;        /* number of the next new segment, and of the first that is not acknowledged */
	uint32_t on_its_way, lost;   /* segments */
	struct flow_path *paths;
	unsigned path_count;
	uint32_t most_window;        /* more do not fit into the receiver's socket, over all paths */
	unsigned probes;             /* paths by which one segment may be sent whatever the window, a bit each */
	uint64_t late_ns;            /* when what is late is to be taken for lost */
	bool starved;                /* somebody waits for room */
	unsigned asks;               /* for it, on end, without news */
	uint64_t ask_ns;             /* when to ask again */
	uint64_t set_aside;          /* how often a path was */

	/* In: consumed <= contiguous. */
	uint8_t *in;
	uint64_t in_next;            /* number of the first segment that is not here */
	uint64_t in_most;            /* one above the last that is here */
	uint64_t contiguous, in_consumed, in_told;
	struct flow_arrived *arrived;
	unsigned unacknowledged;     /* packets that arrived since the last news */
	uint64_t news_at_ns;         /* when they are due */
	bool broken;                 /* what has come is no stream */
	uint64_t dropped;            /* packets that made no sense */
	uint64_t sent_again;
};

int flow_open(struct flow *flow, uint32_t ring_bytes, uint32_t segment_size, uint32_t most_window, unsigned paths);
void flow_close(struct flow *flow);

/* The beginning of the ring's next lap, seen from an offset. */
static inline uint64_t flow_lap_after(const struct flow *flow, uint64_t offset)
{
	return (offset | flow->mask) + 1;
}

/* The 64-bit number near a known one that ends in these 32 bits. */
static inline uint64_t flow_widen(uint64_t near, uint32_t low)
{
	return near + (int32_t)(low - (uint32_t)near);
}

/* As ring_reserve and its like; a reserved frame that is not committed is just left. */
void *flow_reserve(struct flow *flow, uint32_t length);
void flow_commit(struct flow *flow, uint8_t kind, uint8_t type);
bool flow_peek(struct flow *flow, struct ring_message *message, uint32_t longest);
void flow_take(struct flow *flow, uint32_t length);

/* As flow_peek, of what comes at *at or after it: a place beyond what has been taken, which is moved behind it. */
bool flow_peek_beyond(struct flow *flow, uint64_t *at, struct ring_message *message, uint32_t longest);

/* The next segment to be sent, if there is one and the windows allow it. Without flush, less than a whole segment
 * waits while others are on their way. */
bool flow_send(struct flow *flow, uint64_t now_ns, bool flush, struct flow_segment *segment);

/* Sends memory after what waits already; the bulk is filled in by the caller but for what the flow keeps in it. */
void flow_bulk_add(struct flow *flow, struct flow_bulk *bulk);
/* The memory is not touched any more, nor is the bulk. */
void flow_bulk_remove(struct flow *flow, struct flow_bulk *bulk);

/* A segment of the stream has arrived; false: it makes no sense. */
bool flow_arrive(struct flow *flow, uint64_t now_ns, uint32_t sequence, uint32_t offset, const uint8_t *data, uint32_t length);
/* Another one has arrived; true: for the first time, and its bytes are to be put where they belong, now. */
bool flow_arrive_bulk(struct flow *flow, uint64_t now_ns, uint32_t sequence);
/* A packet has come by a path that is one of the flow's: the time in it, and its echo of one that went that way. */
void flow_heard(struct flow *flow, uint64_t now_ns, unsigned path, uint32_t time_us, uint32_t echo_us);
/* News of the peer, that came by that path. */
bool flow_learn(struct flow *flow, uint64_t now_ns, unsigned path, const struct flow_news *news);
/* What is to be told to the peer by that path; whoever calls flow_tell sends it, flow_look is for what is not sure to be
 * read. Of the bitmap only what holds the bits is set. */
void flow_look(const struct flow *flow, unsigned path, struct flow_news *news);
void flow_tell(struct flow *flow, unsigned path, struct flow_news *news);
/* Whether news have to be sent by themselves now. */
bool flow_news_due(const struct flow *flow, uint64_t now_ns);
/* Something has arrived that is to be answered soon. */
void flow_answer(struct flow *flow, uint64_t now_ns);
/* When flow_alarm is to be called, at the latest. */
uint64_t flow_alarm_at(const struct flow *flow);
/* The time has come: the paths by which the peer is to be asked for news, a bit each, because nothing is on its way that
 * would bring them. */
unsigned flow_alarm(struct flow *flow, uint64_t now_ns);
/* All that was committed has been acknowledged. */
bool flow_idle(const struct flow *flow);

#endif
