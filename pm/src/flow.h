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
 * A segment is taken for lost when something sent later has arrived, and so much later that it is not just late: four
 * transmissions, or a quarter of a round trip (RFC 8985). When nothing is acknowledged for two round trips, the last
 * segment is sent once more, so that a lost end is found out about; and after the retransmission timeout the first one,
 * again and again, at growing intervals for ever: a silent peer is not a dead one. The congestion window grows as in
 * RFC 5681 and shrinks by 0.7 as in RFC 9438, but not for some lost packets in a hundred, which a full network would
 * not leave it at.
 */
#ifndef PM_FLOW_H
#define PM_FLOW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "ring.h"

/* Segments on their way, at most, and bits of an acknowledgement; powers of two. */
#define FLOW_SEGMENTS 4096
#define FLOW_BITS 512
#define FLOW_FRAME 8
/* Bytes by which a packet's header is longer for bulk than for the stream. */
#define FLOW_BULK_HEADER 16
#define NEVER UINT64_MAX

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
};

/* What one side tells the other of what has arrived. */
struct flow_news {
	uint32_t next;     /* all segments below it are here (low 32 bits) */
	uint32_t consumed; /* stream, up to which the ring is free again (low 32 bits) */
	uint32_t echo_us;  /* time in the packet that arrived last */
	uint32_t bits;     /* bits in the bitmap, 0 to FLOW_BITS */
	uint64_t bitmap[FLOW_BITS / 64]; /* bit i: segment next + 1 + i is here */
};

struct flow_sent {
	uint64_t offset, stamp;
	uint64_t at_ns;              /* when it was sent last */
	struct flow_bulk *bulk;
	uint32_t length;
	enum flow_kind kind;
	bool again;                  /* not for the first time */
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
	uint64_t stamp;              /* transmissions so far */
	uint64_t stamp_acked;        /* the latest of which the arrival is known */
	uint64_t acked_sent_ns, acked_took_ns; /* when that was sent, and how long it was until its arrival was known */
	uint64_t recovery;           /* losses of transmissions before this one are of a known congestion */
	uint64_t round;              /* transmission with whose arrival the next round trip begins */
	uint32_t round_lost;         /* segments that were lost in this one */
	double window, threshold;    /* segments */
	uint32_t most_window;        /* more do not fit into the receiver's socket */
	double rtt_us, rtt_deviation_us;
	bool probe;                  /* one segment may be sent whatever the window */
	bool probed;                 /* the last segment has been sent once more, and nothing was acknowledged since */
	unsigned timeouts;           /* on end, without news */
	uint64_t alarm_ns;           /* when something has to be sent again, NEVER: nothing awaited */
	uint64_t late_ns;            /* when what is late is to be taken for lost */
	bool starved;                /* somebody waits for room */

	/* In: consumed <= contiguous. */
	uint8_t *in;
	uint64_t in_next;            /* number of the first segment that is not here */
	uint64_t in_most;            /* one above the last that is here */
	uint64_t contiguous, in_consumed, in_told;
	struct flow_arrived *arrived;
	uint32_t echo_us;
	unsigned unacknowledged;     /* packets that arrived since the last news */
	uint64_t news_at_ns;         /* when they are due */
	bool broken;                 /* what has come is no stream */
	uint64_t dropped;            /* packets that made no sense */
	uint64_t sent_again;
};

int flow_open(struct flow *flow, uint32_t ring_bytes, uint32_t segment_size, uint32_t most_window);
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
/* News of the peer. */
bool flow_learn(struct flow *flow, uint64_t now_ns, const struct flow_news *news);
/* What is to be told to the peer; whoever calls flow_tell sends it, flow_look is for what is not sure to be read. */
void flow_look(const struct flow *flow, struct flow_news *news);
void flow_tell(struct flow *flow, struct flow_news *news);
/* Whether news have to be sent by themselves now. */
bool flow_news_due(const struct flow *flow, uint64_t now_ns);
/* Something has arrived that is to be answered soon. */
void flow_answer(struct flow *flow, uint64_t now_ns);
/* When flow_alarm is to be called, at the latest. */
uint64_t flow_alarm_at(const struct flow *flow);
/* The time has come: true, if the peer is to be asked for news, because nothing is on its way that would bring them. */
bool flow_alarm(struct flow *flow, uint64_t now_ns);
/* All that was committed has been acknowledged. */
bool flow_idle(const struct flow *flow);

#endif
