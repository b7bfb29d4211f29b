/* flow_send.c - what is sent of a stream and of bulk (flow.h): segments are made, acknowledged, and found to be lost. */
#include "flow.h"

#include <string.h>

/* Something sent so many transmissions later has arrived: it is lost, not late. */
#define REORDER 4
#define LEAST_WINDOW 4
#define SHRINK 0.7
/* One lost segment of so many, in a round trip, is no sign of a full network. */
#define TOLERATED 50
#define LEAST_TIMEOUT_US 2000
#define MOST_TIMEOUT_US 1000000
#define LEAST_PROBE_US 300
#define LEAST_LATE_US 50
/* News may wait so long at the receiver. */
#define NEWS_WAIT_US 100
/* Where both stream and bulk wait, they take turns of so many segments, a power of two. */
#define TURN 64

static uint64_t timeout_ns(const struct flow *flow)
{
	double us = flow->rtt_us ? flow->rtt_us + 4 * flow->rtt_deviation_us : 0;
	us = us < LEAST_TIMEOUT_US ? LEAST_TIMEOUT_US : us;
	for (unsigned i = 0; i < flow->timeouts && us < MOST_TIMEOUT_US; i++)
		us *= 2;
	return (uint64_t)((us < MOST_TIMEOUT_US ? us : MOST_TIMEOUT_US) * 1000);
}

/* How long nothing may be acknowledged before something is sent again. */
static uint64_t alarm_in_ns(const struct flow *flow)
{
	uint64_t timeout = timeout_ns(flow);
	if (flow->probed || !flow->rtt_us)
		return timeout;
	double us = 2 * flow->rtt_us + NEWS_WAIT_US;
	uint64_t probe = (us < LEAST_PROBE_US ? LEAST_PROBE_US : us) * 1000;
	return probe < timeout ? probe : timeout;
}

static void transmit(struct flow *flow, uint64_t now_ns, uint64_t sequence, struct flow_segment *segment)
{
	struct flow_sent *sent = &flow->sent[sequence % FLOW_SEGMENTS];
	sent->state = SENT_ON_ITS_WAY;
	sent->stamp = ++flow->stamp;
	sent->at_ns = now_ns;
	flow->on_its_way++;
	if (flow->alarm_ns == NEVER)
		flow->alarm_ns = now_ns + alarm_in_ns(flow);
	*segment = (struct flow_segment){
		.sequence = sequence, .kind = sent->kind, .bulk = sent->bulk, .offset = sent->offset, .length = sent->length,
	};
	if (sent->kind == FLOW_STREAM)
		segment->data = flow->out + (sent->offset & flow->mask);
	else if (sent->kind == FLOW_BULK)
		segment->data = sent->bulk->memory + sent->offset;
	else
		segment->length = 0;
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

/* The next segment of the stream, if there is one. */
static bool cut_stream(struct flow *flow, bool flush, struct flow_sent *sent)
{
	if (flow->cut == flow->skip_from) {
		flow->cut = flow->skip_to;
		flow->skip_from = NEVER;
	}
	if (flow->cut == flow->head)
		return false;
	uint64_t end = flow->head, lap = flow_lap_after(flow, flow->cut);
	end = end < lap ? end : lap;
	end = end < flow->skip_from ? end : flow->skip_from;
	if (end - flow->cut > flow->segment_size)
		end = flow->cut + flow->segment_size;
	else if (!flush && flow->on_its_way && end == flow->head && end - flow->cut < flow->segment_size)
		return false;
	*sent = (struct flow_sent){.kind = FLOW_STREAM, .offset = flow->cut, .length = end - flow->cut};
	flow->cut = end;
	return true;
}

static void cut_bulk(struct flow *flow, struct flow_sent *sent)
{
	struct flow_bulk *bulk = flow->bulk;
	uint64_t left = bulk->length - bulk->cut;
	uint32_t most = flow->segment_size - FLOW_BULK_HEADER, length = left < most ? left : most;
	*sent = (struct flow_sent){.kind = FLOW_BULK, .bulk = bulk, .offset = bulk->cut, .length = length};
	bulk->cut += length;
	bulk->unacknowledged++;
	if (bulk->cut == bulk->length)
		flow->bulk = TAILQ_NEXT(bulk, entry);
}

bool flow_send(struct flow *flow, uint64_t now_ns, bool flush, struct flow_segment *segment)
{
	if (flow->on_its_way >= (uint32_t)flow->window && !flow->probe)
		return false;
	flow->probe = false;
	if (flow->lost)
		return send_lost(flow, now_ns, segment);
	if (flow->next - flow->first >= FLOW_SEGMENTS)
		return false;
	struct flow_sent *sent = &flow->sent[flow->next % FLOW_SEGMENTS];
	bool bulk_first = flow->bulk && flow->turn & TURN;
	if (!bulk_first && cut_stream(flow, flush, sent)) {
		flow->turn += flow->bulk != NULL;
	} else if (flow->bulk) {
		flow->turn += bulk_first;
		cut_bulk(flow, sent);
	} else {
		return false;
	}
	transmit(flow, now_ns, flow->next++, segment);
	return true;
}

void flow_bulk_add(struct flow *flow, struct flow_bulk *bulk)
{
	bulk->cut = 0;
	bulk->unacknowledged = 0;
	bulk->listed = true;
	bulk->removed = false;
	TAILQ_INSERT_TAIL(&flow->bulks, bulk, entry);
	if (!flow->bulk)
		flow->bulk = bulk;
}

static void unlist(struct flow *flow, struct flow_bulk *bulk)
{
	if (flow->bulk == bulk)
		flow->bulk = TAILQ_NEXT(bulk, entry);
	TAILQ_REMOVE(&flow->bulks, bulk, entry);
	bulk->listed = false;
}

void flow_bulk_remove(struct flow *flow, struct flow_bulk *bulk)
{
	if (!bulk->listed)
		return;
	unlist(flow, bulk);
	bulk->removed = true;
	for (uint64_t i = flow->first; i < flow->next && bulk->unacknowledged; i++) {
		struct flow_sent *sent = &flow->sent[i % FLOW_SEGMENTS];
		if (sent->bulk == bulk) {
			sent->kind = FLOW_EMPTY;
			sent->bulk = NULL;
			bulk->unacknowledged--;
		}
	}
}

static unsigned acknowledge(struct flow *flow, uint64_t sequence)
{
	struct flow_sent *sent = &flow->sent[sequence % FLOW_SEGMENTS];
	struct flow_bulk *bulk = sent->bulk;
	if (sent->state == SENT_ACKED)
		return 0;
	if (sent->state == SENT_LOST)
		flow->lost--;
	else
		flow->on_its_way--;
	sent->state = SENT_ACKED;
	if (sent->stamp > flow->stamp_acked) {
		flow->stamp_acked = sent->stamp;
		flow->acked_sent_ns = sent->at_ns;
	}
	sent->bulk = NULL;
	if (bulk && !--bulk->unacknowledged && bulk->cut == bulk->length)
		unlist(flow, bulk);
	return 1;
}

static void is_lost(struct flow *flow, struct flow_sent *sent)
{
	sent->state = SENT_LOST;
	flow->on_its_way--;
	flow->lost++;
	flow->round_lost++;
	if (sent->stamp >= flow->recovery && flow->round_lost > 1 + flow->window / TOLERATED) {
		flow->recovery = flow->stamp + 1;
		flow->window = flow->window * SHRINK < LEAST_WINDOW ? LEAST_WINDOW : flow->window * SHRINK;
		flow->threshold = flow->window;
	}
}

/* Looks through what was sent before something that has arrived. */
static void find_lost(struct flow *flow, uint64_t now_ns)
{
	uint64_t late = flow->acked_took_ns + (flow->rtt_us / 4 < LEAST_LATE_US ? LEAST_LATE_US : flow->rtt_us / 4) * 1000;
	flow->late_ns = NEVER;
	for (uint64_t i = flow->first; i < flow->next; i++) {
		struct flow_sent *sent = &flow->sent[i % FLOW_SEGMENTS];
		if (sent->state != SENT_ON_ITS_WAY)
			continue;
		if (sent->stamp >= flow->stamp_acked) {
			if (sent->again)
				continue;
			return; /* all that follow were sent later than this one */
		}
		if (sent->stamp + REORDER <= flow->stamp_acked || now_ns >= sent->at_ns + late)
			is_lost(flow, sent);
		else if (sent->at_ns + late < flow->late_ns)
			flow->late_ns = sent->at_ns + late;
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

static void grow(struct flow *flow, unsigned acknowledged)
{
	flow->window += flow->window < flow->threshold ? acknowledged : acknowledged / flow->window;
	if (flow->window > flow->most_window)
		flow->window = flow->most_window;
	if (flow->stamp_acked >= flow->round) {
		flow->round = flow->stamp + 1;
		flow->round_lost = 0;
	}
}

bool flow_learn(struct flow *flow, uint64_t now_ns, const struct flow_news *news)
{
	uint64_t next = flow_widen(flow->first, news->next), consumed = flow_widen(flow->consumed, news->consumed);
	uint64_t stamp = flow->stamp_acked;
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
	if (flow->stamp_acked > stamp)
		flow->acked_took_ns = now_ns - flow->acked_sent_ns;
	if (acknowledged) {
		measure(flow, now_ns, news->echo_us);
		flow->timeouts = 0;
		flow->probed = false;
		grow(flow, acknowledged);
		flow->alarm_ns = flow->first < flow->next ? now_ns + alarm_in_ns(flow) : NEVER;
	}
	if (flow->first < flow->next)
		find_lost(flow, now_ns);
	else
		flow->late_ns = NEVER;
	return true;
}

uint64_t flow_alarm_at(const struct flow *flow)
{
	uint64_t at = flow->alarm_ns < flow->late_ns ? flow->alarm_ns : flow->late_ns;
	if (flow->unacknowledged && flow->news_at_ns < at)
		at = flow->news_at_ns;
	return at;
}

/* Has a segment sent once more, whatever the window. */
static void send_again(struct flow *flow, struct flow_sent *sent)
{
	if (sent->state == SENT_ON_ITS_WAY) {
		sent->state = SENT_LOST;
		flow->on_its_way--;
		flow->lost++;
	}
	flow->probe = true;
}

bool flow_alarm(struct flow *flow, uint64_t now_ns)
{
	if (now_ns >= flow->late_ns)
		find_lost(flow, now_ns);
	if (flow->starved && flow->alarm_ns == NEVER)
		flow->alarm_ns = now_ns + timeout_ns(flow);
	if (now_ns < flow->alarm_ns)
		return false;
	if (!flow->probed && flow->first < flow->next && !flow->lost) {
		/* The end may be lost, and nothing comes after it that would tell. */
		flow->probed = true;
		flow->alarm_ns = now_ns + timeout_ns(flow);
		send_again(flow, &flow->sent[(flow->next - 1) % FLOW_SEGMENTS]);
		return false;
	}
	flow->timeouts++;
	flow->alarm_ns = now_ns + timeout_ns(flow);
	if (flow->first == flow->next) {
		flow->alarm_ns = flow->starved ? flow->alarm_ns : NEVER;
		return flow->starved;
	}
	send_again(flow, &flow->sent[flow->first % FLOW_SEGMENTS]);
	/* Not one probe but several have found no answer: what was known of the way is old. */
	if (flow->timeouts == 6) {
		flow->window = LEAST_WINDOW;
		flow->threshold = flow->threshold / 2 < LEAST_WINDOW ? LEAST_WINDOW : flow->threshold / 2;
	}
	return false;
}

bool flow_idle(const struct flow *flow)
{
	return flow->cut == flow->head && flow->first == flow->next && !flow->bulk;
}
