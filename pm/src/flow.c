/* flow.c - reliable ordered streams out of packets (flow.h): the rings, and what arrives. What is sent is in flow_send.c. */
#include "flow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The window of one path alone is never smaller than what a new one may have. */
#define LEAST_MOST_WINDOW 32
/* News wait so long for a packet that they can travel with. */
#define NEWS_WAIT_NS 100000
#define NEWS_PACKETS 16

struct frame {
	uint32_t length;
	uint8_t kind, type;
	uint16_t mark;
};

#define MARK 0x4d50
#define SKIP 0xff

_Static_assert(sizeof(struct frame) == FLOW_FRAME, "a frame's header");

int flow_open(struct flow *flow, uint32_t ring_bytes, uint32_t segment_size, uint32_t most_window, unsigned paths)
{
	uint32_t most = most_window < FLOW_SEGMENTS ? most_window : FLOW_SEGMENTS;
	*flow = (struct flow){
		.mask = ring_bytes - 1, .segment_size = segment_size, .most_window = most < LEAST_MOST_WINDOW ? LEAST_MOST_WINDOW : most,
		.path_count = paths, .late_ns = NEVER, .ask_ns = NEVER, .news_at_ns = NEVER, .skip_from = NEVER,
	};
	TAILQ_INIT(&flow->bulks);
	flow->out = calloc(1, ring_bytes);
	flow->in = calloc(1, ring_bytes);
	flow->sent = calloc(FLOW_SEGMENTS, sizeof(*flow->sent));
	flow->arrived = calloc(FLOW_SEGMENTS, sizeof(*flow->arrived));
	flow->paths = calloc(paths, sizeof(*flow->paths));
	if (!flow->out || !flow->in || !flow->sent || !flow->arrived || !flow->paths) {
		flow_close(flow);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < paths; i++) {
		flow_path_open(&flow->paths[i]);
		if (i)
			flow_path_set_aside(&flow->paths[i], 0);
	}
	return 0;
}

void flow_close(struct flow *flow)
{
	free(flow->out);
	free(flow->in);
	free(flow->sent);
	free(flow->arrived);
	free(flow->paths);
	flow->out = flow->in = NULL;
	flow->sent = NULL;
	flow->arrived = NULL;
	flow->paths = NULL;
}

static uint64_t size_of(const struct flow *flow)
{
	return (uint64_t)flow->mask + 1;
}

static uint32_t frame_size(uint32_t length)
{
	return (FLOW_FRAME + length + 7) & ~7u;
}

void *flow_reserve(struct flow *flow, uint32_t length)
{
	uint64_t at = flow->head;
	if (flow_lap_after(flow, at) - at < frame_size(length))
		at = flow_lap_after(flow, at);
	if (at + frame_size(length) - flow->consumed > size_of(flow)) {
		flow->starved = true;
		return NULL;
	}
	flow->reserved = at;
	flow->reserved_length = length;
	return flow->out + (at & flow->mask) + FLOW_FRAME;
}

static void put_frame(struct flow *flow, uint64_t at, struct frame frame)
{
	memcpy(flow->out + (at & flow->mask), &frame, sizeof(frame));
}

void flow_commit(struct flow *flow, uint8_t kind, uint8_t type)
{
	if (flow->reserved != flow->head) {
		put_frame(flow, flow->head, (struct frame){.type = SKIP, .mark = MARK});
		flow->skip_from = flow->head + FLOW_FRAME;
		flow->skip_to = flow->reserved;
	}
	put_frame(flow, flow->reserved, (struct frame){flow->reserved_length, kind, type, MARK});
	flow->head = flow->reserved + frame_size(flow->reserved_length);
}

/* The frame at a place in what has come, which is moved past what is to be skipped. 1: it is here; 0: not all of it yet;
 * -EPROTO: it makes no sense. */
static int frame_at(struct flow *flow, uint64_t *at, struct ring_message *message, uint32_t longest)
{
	struct frame frame;
	for (;;) {
		if (flow->contiguous - *at < FLOW_FRAME)
			return 0;
		memcpy(&frame, flow->in + (*at & flow->mask), sizeof(frame));
		if (frame.mark != MARK || frame.type != SKIP)
			break;
		*at = flow_lap_after(flow, *at);
		if (*at > flow->contiguous)
			flow->contiguous = *at;
	}
	if (frame.mark != MARK || frame.length > longest || frame_size(frame.length) > flow_lap_after(flow, *at) - *at)
		return -EPROTO;
	if (flow->contiguous - *at < frame_size(frame.length))
		return 0;
	*message = (struct ring_message){
		.data = flow->in + (*at & flow->mask) + FLOW_FRAME, .length = frame.length, .kind = frame.kind, .type = frame.type,
	};
	return 1;
}

bool flow_peek(struct flow *flow, struct ring_message *message, uint32_t longest)
{
	int status = frame_at(flow, &flow->in_consumed, message, longest);
	if (status < 0) {
		flow->dropped++;
		flow->broken = true;
	}
	return status > 0;
}

bool flow_peek_beyond(struct flow *flow, uint64_t *at, struct ring_message *message, uint32_t longest)
{
	if (*at < flow->in_consumed)
		*at = flow->in_consumed;
	if (frame_at(flow, at, message, longest) <= 0)
		return false;
	*at += frame_size(message->length);
	return true;
}

void flow_take(struct flow *flow, uint32_t length)
{
	flow->in_consumed += frame_size(length);
	/* A sender that waits for room is told of every quarter of the ring. */
	if (flow->in_consumed - flow->in_told > flow->mask / 4 && !flow->unacknowledged) {
		flow->unacknowledged = 1;
		flow->news_at_ns = 0;
	}
}

/* Takes what is here into the contiguous part. */
static void join(struct flow *flow)
{
	for (;;) {
		struct flow_arrived *arrived = &flow->arrived[flow->in_next % FLOW_SEGMENTS];
		if (!arrived->here)
			return;
		arrived->here = false;
		if (!arrived->stream) {
			flow->in_next++;
			continue;
		}
		if (arrived->offset != flow->contiguous && arrived->offset != flow_lap_after(flow, flow->contiguous)) {
			flow->dropped++;
			flow->broken = true;
			return;
		}
		flow->in_next++;
		flow->contiguous = arrived->offset + arrived->length;
	}
}

void flow_answer(struct flow *flow, uint64_t now_ns)
{
	if (!flow->unacknowledged++)
		flow->news_at_ns = now_ns + NEWS_WAIT_NS;
	if (flow->unacknowledged >= NEWS_PACKETS)
		flow->news_at_ns = now_ns;
}

/* Whether a segment can be and has not arrived before. */
static bool is_new(struct flow *flow, uint64_t now_ns, uint64_t sequence)
{
	if (sequence < flow->in_next || (sequence < flow->in_most && flow->arrived[sequence % FLOW_SEGMENTS].here)) {
		flow->unacknowledged++;
		flow->news_at_ns = now_ns; /* it came twice: the sender lacks news */
		return false;
	}
	return sequence - flow->in_next < FLOW_SEGMENTS;
}

static void take_in(struct flow *flow, uint64_t now_ns, uint64_t sequence, struct flow_arrived arrived)
{
	flow->arrived[sequence % FLOW_SEGMENTS] = arrived;
	if (sequence >= flow->in_most)
		flow->in_most = sequence + 1;
	join(flow);
	flow_answer(flow, now_ns);
	if (flow->in_most > flow->in_next)
		flow->news_at_ns = now_ns; /* there is a gap */
}

bool flow_arrive(struct flow *flow, uint64_t now_ns, uint32_t low_sequence, uint32_t low_offset, const uint8_t *data, uint32_t length)
{
	uint64_t sequence = flow_widen(flow->in_next, low_sequence), offset = flow_widen(flow->contiguous, low_offset);
	if (!is_new(flow, now_ns, sequence)) {
		flow->dropped += sequence >= flow->in_next + FLOW_SEGMENTS;
		return sequence < flow->in_next + FLOW_SEGMENTS;
	}
	if (!length || offset < flow->in_consumed || offset + length - flow->in_consumed > size_of(flow) ||
	    (offset & flow->mask) + length > size_of(flow)) {
		flow->dropped++;
		return false;
	}
	memcpy(flow->in + (offset & flow->mask), data, length);
	take_in(flow, now_ns, sequence, (struct flow_arrived){offset, length, true, true});
	return true;
}

bool flow_arrive_bulk(struct flow *flow, uint64_t now_ns, uint32_t low_sequence)
{
	uint64_t sequence = flow_widen(flow->in_next, low_sequence);
	if (!is_new(flow, now_ns, sequence)) {
		flow->dropped += sequence >= flow->in_next + FLOW_SEGMENTS;
		return false;
	}
	take_in(flow, now_ns, sequence, (struct flow_arrived){.here = true});
	return true;
}

static bool here(const struct flow *flow, uint64_t sequence)
{
	return sequence < flow->in_most && flow->arrived[sequence % FLOW_SEGMENTS].here;
}

void flow_look(const struct flow *flow, unsigned path, struct flow_news *news)
{
	uint64_t above = flow->in_most > flow->in_next ? flow->in_most - flow->in_next - 1 : 0;
	news->next = flow->in_next;
	news->consumed = flow->in_consumed;
	news->echo_us = flow->paths[path].echo_us;
	news->bits = above < FLOW_BITS ? above : FLOW_BITS;
	memset(news->bitmap, 0, (news->bits + 63) / 64 * sizeof(news->bitmap[0]));
	for (uint32_t i = 0; i < news->bits; i++)
		if (here(flow, flow->in_next + 1 + i))
			news->bitmap[i / 64] |= 1ull << i % 64;
}

void flow_tell(struct flow *flow, unsigned path, struct flow_news *news)
{
	flow_look(flow, path, news);
	flow->in_told = flow->in_consumed;
	flow->unacknowledged = 0;
	flow->news_at_ns = NEVER;
}

bool flow_news_due(const struct flow *flow, uint64_t now_ns)
{
	return flow->unacknowledged && now_ns >= flow->news_at_ns;
}
