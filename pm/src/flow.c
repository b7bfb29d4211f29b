/* flow.c - reliable ordered streams out of packets (flow.h). */
#include "flow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Something sent so many transmissions later has arrived: it is lost, not late. */
#define REORDER 4
#define FIRST_WINDOW 32
#define LEAST_WINDOW 4
#define SHRINK 0.7
#define LEAST_TIMEOUT_US 2000
#define MOST_TIMEOUT_US 1000000
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

int flow_open(struct flow *flow, uint32_t ring_bytes, uint32_t segment_size)
{
	*flow = (struct flow){
		.mask = ring_bytes - 1, .segment_size = segment_size, .window = FIRST_WINDOW, .threshold = FLOW_SEGMENTS,
		.alarm_ns = NEVER, .news_at_ns = NEVER, .skip_from = NEVER,
	};
	flow->out = calloc(1, ring_bytes);
	flow->in = calloc(1, ring_bytes);
	flow->sent = calloc(FLOW_SEGMENTS, sizeof(*flow->sent));
	flow->arrived = calloc(FLOW_SEGMENTS, sizeof(*flow->arrived));
	if (flow->out && flow->in && flow->sent && flow->arrived)
		return 0;
	flow_close(flow);
	return -ENOMEM;
}

void flow_close(struct flow *flow)
{
	free(flow->out);
	free(flow->in);
	free(flow->sent);
	free(flow->arrived);
	flow->out = flow->in = NULL;
	flow->sent = NULL;
	flow->arrived = NULL;
}

static uint64_t size_of(const struct flow *flow)
{
	return (uint64_t)flow->mask + 1;
}

/* The beginning of the ring's next lap, seen from an offset. */
static uint64_t lap_after(const struct flow *flow, uint64_t offset)
{
	return (offset | flow->mask) + 1;
}

static uint32_t frame_size(uint32_t length)
{
	return (FLOW_FRAME + length + 7) & ~7u;
}

void *flow_reserve(struct flow *flow, uint32_t length)
{
	uint64_t at = flow->head;
	if (lap_after(flow, at) - at < frame_size(length))
		at = lap_after(flow, at);
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

bool flow_peek(struct flow *flow, struct ring_message *message, uint32_t longest)
{
	struct frame frame;
	for (;;) {
		uint64_t at = flow->in_consumed;
		if (flow->contiguous - at < FLOW_FRAME)
			return false;
		memcpy(&frame, flow->in + (at & flow->mask), sizeof(frame));
		if (frame.mark == MARK && frame.type == SKIP) {
			flow->in_consumed = lap_after(flow, at);
			if (flow->in_consumed > flow->contiguous)
				flow->contiguous = flow->in_consumed;
			continue;
		}
		if (frame.mark != MARK || frame.length > longest || frame_size(frame.length) > lap_after(flow, at) - at) {
			flow->dropped++;
			flow->broken = true;
			return false;
		}
		if (flow->contiguous - at < frame_size(frame.length))
			return false;
		*message = (struct ring_message){
			.data = flow->in + (at & flow->mask) + FLOW_FRAME, .length = frame.length, .kind = frame.kind, .type = frame.type,
		};
		return true;
	}
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

static uint64_t timeout_ns(const struct flow *flow)
{
	double us = flow->rtt_us ? flow->rtt_us + 4 * flow->rtt_deviation_us : 0;
	us = us < LEAST_TIMEOUT_US ? LEAST_TIMEOUT_US : us;
	for (unsigned i = 0; i < flow->timeouts && us < MOST_TIMEOUT_US; i++)
		us *= 2;
	return (uint64_t)((us < MOST_TIMEOUT_US ? us : MOST_TIMEOUT_US) * 1000);
}

static void transmit(struct flow *flow, uint64_t now_ns, uint64_t sequence, struct flow_segment *segment)
{
	struct flow_sent *sent = &flow->sent[sequence % FLOW_SEGMENTS];
	sent->state = SENT_ON_ITS_WAY;
	sent->stamp = ++flow->stamp;
	flow->on_its_way++;
	if (flow->alarm_ns == NEVER)
		flow->alarm_ns = now_ns + timeout_ns(flow);
	*segment = (struct flow_segment){sequence, sent->offset, flow->out + (sent->offset & flow->mask), sent->length};
}

static bool send_lost(struct flow *flow, uint64_t now_ns, struct flow_segment *segment)
{
	for (uint64_t i = flow->first; i < flow->next; i++) {
		if (flow->sent[i % FLOW_SEGMENTS].state != SENT_LOST)
			continue;
		flow->lost--;
		flow->sent_again++;
		flow->sent[i % FLOW_SEGMENTS].again = true;
		transmit(flow, now_ns, i, segment);
		return true;
	}
	return false;
}

bool flow_send(struct flow *flow, uint64_t now_ns, bool flush, struct flow_segment *segment)
{
	if (flow->on_its_way >= (uint32_t)flow->window && !flow->probe)
		return false;
	flow->probe = false;
	if (flow->lost)
		return send_lost(flow, now_ns, segment);
	if (flow->cut == flow->skip_from) {
		flow->cut = flow->skip_to;
		flow->skip_from = NEVER;
	}
	if (flow->cut == flow->head || flow->next - flow->first >= FLOW_SEGMENTS)
		return false;
	uint64_t end = flow->head, lap = lap_after(flow, flow->cut);
	end = end < lap ? end : lap;
	end = end < flow->skip_from ? end : flow->skip_from;
	if (end - flow->cut > flow->segment_size)
		end = flow->cut + flow->segment_size;
	else if (!flush && flow->on_its_way && end == flow->head && end - flow->cut < flow->segment_size)
		return false;
	flow->sent[flow->next % FLOW_SEGMENTS] = (struct flow_sent){.offset = flow->cut, .length = end - flow->cut};
	flow->cut = end;
	transmit(flow, now_ns, flow->next++, segment);
	return true;
}

/* The 64-bit number near a known one that ends in these 32 bits. */
static uint64_t widen(uint64_t near, uint32_t low)
{
	return near + (int32_t)(low - (uint32_t)near);
}

/* Takes what is here into the contiguous part. */
static void join(struct flow *flow)
{
	for (;;) {
		struct flow_arrived *arrived = &flow->arrived[flow->in_next % FLOW_SEGMENTS];
		if (!arrived->here)
			return;
		arrived->here = false;
		if (arrived->offset != flow->contiguous && arrived->offset != lap_after(flow, flow->contiguous)) {
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

bool flow_arrive(struct flow *flow, uint64_t now_ns, uint32_t low_sequence, uint32_t low_offset, const uint8_t *data, uint32_t length)
{
	uint64_t sequence = widen(flow->in_next, low_sequence), offset = widen(flow->contiguous, low_offset);
	if (sequence < flow->in_next || (sequence < flow->in_most && flow->arrived[sequence % FLOW_SEGMENTS].here)) {
		flow->unacknowledged++;
		flow->news_at_ns = now_ns; /* it came twice: the sender lacks news */
		return true;
	}
	if (sequence - flow->in_next >= FLOW_SEGMENTS || !length || offset < flow->in_consumed ||
	    offset + length - flow->in_consumed > size_of(flow) || (offset & flow->mask) + length > size_of(flow)) {
		flow->dropped++;
		return false;
	}
	memcpy(flow->in + (offset & flow->mask), data, length);
	flow->arrived[sequence % FLOW_SEGMENTS] = (struct flow_arrived){offset, length, true};
	if (sequence >= flow->in_most)
		flow->in_most = sequence + 1;
	join(flow);
	flow_answer(flow, now_ns);
	if (flow->in_most > flow->in_next)
		flow->news_at_ns = now_ns; /* there is a gap */
	return true;
}

static bool here(const struct flow *flow, uint64_t sequence)
{
	return sequence < flow->in_most && flow->arrived[sequence % FLOW_SEGMENTS].here;
}

void flow_look(const struct flow *flow, struct flow_news *news)
{
	uint64_t above = flow->in_most > flow->in_next ? flow->in_most - flow->in_next - 1 : 0;
	news->next = flow->in_next;
	news->consumed = flow->in_consumed;
	news->echo_us = flow->echo_us;
	news->bits = above < FLOW_BITS ? above : FLOW_BITS;
	memset(news->bitmap, 0, sizeof(news->bitmap));
	for (uint32_t i = 0; i < news->bits; i++)
		if (here(flow, flow->in_next + 1 + i))
			news->bitmap[i / 64] |= 1ull << i % 64;
}

void flow_tell(struct flow *flow, struct flow_news *news)
{
	flow_look(flow, news);
	flow->in_told = flow->in_consumed;
	flow->unacknowledged = 0;
	flow->news_at_ns = NEVER;
}

bool flow_news_due(const struct flow *flow, uint64_t now_ns)
{
	return flow->unacknowledged && now_ns >= flow->news_at_ns;
}

static unsigned acknowledge(struct flow *flow, uint64_t sequence)
{
	struct flow_sent *sent = &flow->sent[sequence % FLOW_SEGMENTS];
	if (sent->state == SENT_ACKED)
		return 0;
	if (sent->state == SENT_LOST)
		flow->lost--;
	else
		flow->on_its_way--;
	sent->state = SENT_ACKED;
	if (sent->stamp > flow->stamp_acked)
		flow->stamp_acked = sent->stamp;
	return 1;
}

static void find_lost(struct flow *flow)
{
	for (uint64_t i = flow->first; i < flow->next; i++) {
		struct flow_sent *sent = &flow->sent[i % FLOW_SEGMENTS];
		if (sent->state != SENT_ON_ITS_WAY)
			continue;
		if (sent->stamp + REORDER > flow->stamp_acked) {
			if (sent->again)
				continue;
			return; /* all that follow were sent later than this one */
		}
		sent->state = SENT_LOST;
		flow->on_its_way--;
		flow->lost++;
		if (sent->stamp >= flow->recovery) {
			flow->recovery = flow->stamp + 1;
			flow->window = flow->window * SHRINK < LEAST_WINDOW ? LEAST_WINDOW : flow->window * SHRINK;
			flow->threshold = flow->window;
		}
	}
}

static void measure(struct flow *flow, uint64_t now_ns, uint32_t echo_us)
{
	double us = (uint32_t)(now_ns / 1000) - echo_us;
	if (us > 10e6)
		return;
	double off = us - flow->rtt_us;
	if (!flow->rtt_us) {
		flow->rtt_us = us + 1;
		flow->rtt_deviation_us = us / 2;
		return;
	}
	flow->rtt_us += off / 8;
	flow->rtt_deviation_us += ((off < 0 ? -off : off) - flow->rtt_deviation_us) / 4;
}

bool flow_learn(struct flow *flow, uint64_t now_ns, const struct flow_news *news)
{
	uint64_t next = widen(flow->first, news->next), consumed = widen(flow->consumed, news->consumed);
	unsigned acknowledged = 0;
	if (next > flow->next || news->bits > FLOW_BITS) {
		flow->dropped++;
		return false;
	}
	if (consumed > flow->consumed && consumed <= flow->head) {
		flow->consumed = consumed;
		flow->starved = false;
		flow->timeouts = 0;
		if (flow->first == flow->next)
			flow->alarm_ns = NEVER; /* it was to ask for this */
	}
	while (flow->first < next)
		acknowledged += acknowledge(flow, flow->first++);
	for (uint32_t i = 0; i < news->bits; i++)
		if (news->bitmap[i / 64] >> i % 64 & 1 && next + 1 + i >= flow->first && next + 1 + i < flow->next)
			acknowledged += acknowledge(flow, next + 1 + i);
	if (acknowledged) {
		measure(flow, now_ns, news->echo_us);
		flow->timeouts = 0;
		flow->window += flow->window < flow->threshold ? acknowledged : acknowledged / flow->window;
		if (flow->window > FLOW_SEGMENTS)
			flow->window = FLOW_SEGMENTS;
		flow->alarm_ns = flow->first < flow->next ? now_ns + timeout_ns(flow) : NEVER;
	}
	if (flow->first < flow->next)
		find_lost(flow);
	return true;
}

uint64_t flow_alarm_at(const struct flow *flow)
{
	uint64_t at = flow->alarm_ns;
	if (flow->unacknowledged && flow->news_at_ns < at)
		at = flow->news_at_ns;
	return at;
}

bool flow_alarm(struct flow *flow, uint64_t now_ns)
{
	if (flow->starved && flow->alarm_ns == NEVER)
		flow->alarm_ns = now_ns + timeout_ns(flow);
	if (now_ns < flow->alarm_ns)
		return false;
	flow->timeouts++;
	flow->alarm_ns = now_ns + timeout_ns(flow);
	if (flow->first == flow->next) {
		flow->alarm_ns = flow->starved ? flow->alarm_ns : NEVER;
		return flow->starved;
	}
	struct flow_sent *sent = &flow->sent[flow->first % FLOW_SEGMENTS];
	if (sent->state == SENT_ON_ITS_WAY) {
		sent->state = SENT_LOST;
		flow->on_its_way--;
		flow->lost++;
	}
	flow->probe = true;
	/* Not one probe but several have found no answer: what was known of the way is old. */
	if (flow->timeouts == 6) {
		flow->window = LEAST_WINDOW;
		flow->threshold = flow->threshold / 2 < LEAST_WINDOW ? LEAST_WINDOW : flow->threshold / 2;
	}
	return false;
}

bool flow_idle(const struct flow *flow)
{
	return flow->cut == flow->head && flow->first == flow->next;
}
