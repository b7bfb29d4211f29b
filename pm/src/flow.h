/*
 * flow.h - one connection of the udp rail, without sockets and without a clock: packets and times go in, packets come
 * out. Reliable and ordered, with selective acknowledgements and congestion control.
 *
 * Each direction is a stream of frames (a header of 8 bytes, then a message) that lies in a ring of the sender, and
 * comes to lie at the same place in a ring of the same size of the receiver. A frame is never over the end of the
 * ring: a frame SKIP leads to its beginning. The stream is cut into segments, numbered from 0, which are what is sent,
 * acknowledged and sent again. The receiver acknowledges all below a number, and a bitmap of those above it.
 *
 * A segment is taken for lost when something sent REORDER transmissions after it has arrived. When nothing is
 * acknowledged for the retransmission timeout the first one is sent again, and again, at growing intervals for ever: a
 * silent peer is not a dead one. The congestion window grows as in RFC 5681 and shrinks by 0.7 as in RFC 9438.
 */
#ifndef PM_FLOW_H
#define PM_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "ring.h"

/* Segments on their way, at most, and bits of an acknowledgement; powers of two. */
#define FLOW_SEGMENTS 4096
#define FLOW_BITS 512
#define FLOW_FRAME 8
#define NEVER UINT64_MAX

/* A segment to be sent now. */
struct flow_segment {
	uint64_t sequence;
	uint64_t offset; /* in the stream */
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
	uint32_t length;
	bool again;                  /* not for the first time */
	enum { SENT_ACKED, SENT_ON_ITS_WAY, SENT_LOST } state;
};

struct flow_arrived {
	uint64_t offset;
	uint32_t length;
	bool here;
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
	struct flow_sent *sent;
	uint64_t next, first;        /* number of the next new segment, and of the first that is not acknowledged */
	uint32_t on_its_way, lost;   /* segments */
	uint64_t stamp;              /* transmissions so far */
	uint64_t stamp_acked;        /* the latest of which the arrival is known */
	uint64_t recovery;           /* losses of transmissions before this one are of a known congestion */
	double window, threshold;    /* segments */
	double rtt_us, rtt_deviation_us;
	bool probe;                  /* one segment may be sent whatever the window */
	unsigned timeouts;           /* on end, without news */
	uint64_t alarm_ns;           /* when something has to be sent again, NEVER: nothing awaited */
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

int flow_open(struct flow *flow, uint32_t ring_bytes, uint32_t segment_size);
void flow_close(struct flow *flow);

/* As ring_reserve and its like; a reserved frame that is not committed is just left. */
void *flow_reserve(struct flow *flow, uint32_t length);
void flow_commit(struct flow *flow, uint8_t kind, uint8_t type);
bool flow_peek(struct flow *flow, struct ring_message *message, uint32_t longest);
void flow_take(struct flow *flow, uint32_t length);

/* The next segment to be sent, if there is one and the windows allow it. Without flush, less than a whole segment
 * waits while others are on their way. */
bool flow_send(struct flow *flow, uint64_t now_ns, bool flush, struct flow_segment *segment);

/* A segment has arrived; false: it makes no sense. */
bool flow_arrive(struct flow *flow, uint64_t now_ns, uint32_t sequence, uint32_t offset, const uint8_t *data, uint32_t length);
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
