/* flow_send.c - what is sent of a stream and of bulk (flow.h): segments are made, acknowledged, and found to be lost. */
#include "flow.h"

#include <string.h>

/* Something sent so many transmissions later has arrived: it is lost, not late. */
#define REORDER 4
/* Where both stream and bulk wait, they take turns of so many segments, a power of two. */
#define TURN 64

static void transmit(struct flow *flow, uint64_t now_ns, unsigned by, uint64_t sequence, struct flow_segment *segment)
{
	struct flow_sent *sent = &flow->sent[sequence % FLOW_SEGMENTS];
	struct flow_path *path = &flow->paths[by];
	sent->state = SENT_ON_ITS_WAY;
	sent->path = by;
	sent->stamp = ++path->stamp;
	sent->before = path->on_its_way;
	sent->at_ns = now_ns;
	path->on_its_way++;
	flow->on_its_way++;
	path->sent_ns = now_ns;
	if (path->alarm_ns == NEVER)
		path->alarm_ns = flow_path_probe_at(path, now_ns);
	*segment = (struct flow_segment){
		.sequence = sequence, .kind = sent->kind, .bulk = sent->bulk, .offset = sent->offset, .length = sent->length, .path = by,
	};
	if (sent->kind == FLOW_STREAM)
		segment->data = flow->out + (sent->offset & flow->mask);
	else if (sent->kind == FLOW_BULK)
		segment->data = sent->bulk->memory + sent->offset;
	else
		segment->length = 0;
}

static bool send_lost(struct flow *flow, uint64_t now_ns, unsigned path, struct flow_segment *segment)
{
	for (uint64_t i = flow->first; i < flow->next; i++) {
		if (flow->sent[i % FLOW_SEGMENTS].state != SENT_LOST)
			continue;
		flow->lost--;
		flow->sent_again++;
		flow->sent[i % FLOW_SEGMENTS].again = true;
		transmit(flow, now_ns, path, i, segment);
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

/* Segments that wait to be sent, as far as is known at once. */
static double waiting(const struct flow *flow)
{
	uint64_t bytes = flow->head - flow->cut + (flow->bulk ? flow->bulk->length - flow->bulk->cut : 0);
	return flow->lost + (double)bytes / flow->segment_size;
}

/* The path by which a segment may be sent now; -1: none. */
static int choose(struct flow *flow)
{
	if (flow->probes) {
		int path = __builtin_ctz(flow->probes);
		flow->probes &= flow->probes - 1;
		return path;
	}
	if (flow->path_count == 1)
		return flow->on_its_way < (uint32_t)flow->paths->window ? 0 : -1;
	return flow->on_its_way < flow->most_window ? flow_path_choose(flow->paths, flow->path_count, waiting(flow)) : -1;
}

bool flow_send(struct flow *flow, uint64_t now_ns, bool flush, struct flow_segment *segment)
{
	int path = choose(flow);
	if (path < 0)
		return false;
	if (flow->lost)
		return send_lost(flow, now_ns, path, segment);
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
	transmit(flow, now_ns, path, flow->next++, segment);
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

/* What has been sent twice may have arrived as it was sent first: it tells of what was sent between only when something
 * has arrived by that path that was sent no earlier than the second time. */
static bool tells(const struct flow_sent *sent, unsigned by, uint32_t echo_us)
{
	return !sent->again || (sent->path == by && (int32_t)(echo_us - (uint32_t)(sent->at_ns / 1000)) >= 0);
}

/* A segment has arrived, as is known by news that came by that path. */
static void acknowledge(struct flow *flow, uint64_t now_ns, unsigned by, uint32_t echo_us, uint64_t sequence)
{
	struct flow_sent *sent = &flow->sent[sequence % FLOW_SEGMENTS];
	struct flow_path *path = &flow->paths[sent->path];
	struct flow_bulk *bulk = sent->bulk;
	if (sent->state == SENT_ACKED)
		return;
	if (sent->state == SENT_LOST) {
		flow->lost--;
	} else {
		flow->on_its_way--;
		path->on_its_way--;
	}
	sent->state = SENT_ACKED;
	path->acked++;
	if (sent->stamp > path->stamp_acked && tells(sent, by, echo_us)) {
		path->stamp_acked = sent->stamp;
		path->acked_sent_ns = sent->at_ns;
		path->acked_took_ns = now_ns - sent->at_ns;
		path->acked_before = sent->before;
	}
	sent->bulk = NULL;
	if (bulk && !--bulk->unacknowledged && bulk->cut == bulk->length)
		unlist(flow, bulk);
}

static void is_lost(struct flow *flow, struct flow_sent *sent)
{
	sent->state = SENT_LOST;
	flow->paths[sent->path].on_its_way--;
	flow->on_its_way--;
	flow->lost++;
}

/* Looks through what was sent before something that has arrived by the same path. */
static void find_lost(struct flow *flow, uint64_t now_ns)
{
	unsigned seen = 0, all = (1u << flow->path_count) - 1; /* paths of which all has been looked through, a bit each */
	flow->late_ns = NEVER;
	for (unsigned i = 0; i < flow->path_count; i++)
		seen |= flow->paths[i].on_its_way ? 0 : 1u << i;
	for (uint64_t i = flow->first; i < flow->next && seen != all; i++) {
		struct flow_sent *sent = &flow->sent[i % FLOW_SEGMENTS];
		struct flow_path *path = &flow->paths[sent->path];
		if (sent->state != SENT_ON_ITS_WAY)
			continue;
		if (sent->stamp >= path->stamp_acked) {
			if (!sent->again)
				seen |= 1u << sent->path; /* all that follow were sent later than this one */
			continue;
		}
		uint64_t late = sent->at_ns + flow_path_late_ns(path);
		if (sent->stamp + REORDER <= path->stamp_acked || now_ns >= late) {
			is_lost(flow, sent);
			flow_path_shrink(path, sent->stamp);
		} else if (late < flow->late_ns) {
			flow->late_ns = late;
		}
	}
}

/* So have those that are counted. */
static void have_arrived(struct flow *flow, uint64_t now_ns, unsigned by, uint32_t echo_us)
{
	/* What fits into the receiver's socket is for all paths, lest one take all of it. */
	uint32_t most = flow->path_count == 1 ? flow->most_window : flow->most_window / flow_path_used(flow->paths, flow->path_count);
	for (unsigned i = 0; i < flow->path_count; i++) {
		struct flow_path *path = &flow->paths[i];
		if (!path->acked)
			continue;
		if (i == by)
			flow_path_measure(path, now_ns, echo_us);
		bool full = flow_path_is_full(flow->paths, flow->path_count, i);
		flow_path_grow(path, full ? 0 : path->acked, most);
		flow_path_acknowledged(path, now_ns);
		path->acked = 0;
	}
}

bool flow_learn(struct flow *flow, uint64_t now_ns, unsigned path, const struct flow_news *news)
{
	uint64_t next = flow_widen(flow->first, news->next), consumed = flow_widen(flow->consumed, news->consumed);
	if (next > flow->next || news->bits > FLOW_BITS) {
		flow->dropped++;
		return false;
	}
	if (consumed > flow->consumed && consumed <= flow->head) {
		flow->consumed = consumed;
		flow->starved = false;
		flow->paths[path].timeouts = 0;
		flow->asks = 0;
		flow->ask_ns = NEVER;
	}
	while (flow->first < next)
		acknowledge(flow, now_ns, path, news->echo_us, flow->first++);
	for (uint32_t i = 0; i < news->bits; i++)
		if (news->bitmap[i / 64] >> i % 64 & 1 && next + 1 + i >= flow->first && next + 1 + i < flow->next)
			acknowledge(flow, now_ns, path, news->echo_us, next + 1 + i);
	have_arrived(flow, now_ns, path, news->echo_us);
	if (flow->first < flow->next)
		find_lost(flow, now_ns);
	else
		flow->late_ns = NEVER;
	return true;
}

void flow_heard(struct flow *flow, uint64_t now_ns, unsigned path, uint32_t time_us, uint32_t echo_us)
{
	flow_path_heard(&flow->paths[path], now_ns, time_us, echo_us);
}

uint64_t flow_alarm_at(const struct flow *flow)
{
	uint64_t at = flow->late_ns < flow->ask_ns ? flow->late_ns : flow->ask_ns;
	for (unsigned i = 0; i < flow->path_count; i++)
		if (flow->paths[i].alarm_ns < at)
			at = flow->paths[i].alarm_ns;
	if (flow->unacknowledged && flow->news_at_ns < at)
		at = flow->news_at_ns;
	if (flow->path_count > 1 && !flow_idle(flow)) {
		uint64_t ask = flow_path_ask_at(flow->paths, flow->path_count);
		at = ask < at ? ask : at;
	}
	return at;
}

/* Has the first segment that is on its way by a path, or the last, sent once more by another, whatever its window. */
static void send_again(struct flow *flow, unsigned path, bool last, unsigned by)
{
	uint64_t n = flow->next - flow->first;
	flow->probes |= 1u << by;
	for (uint64_t i = 0; i < n; i++) {
		struct flow_sent *sent = &flow->sent[(last ? flow->next - 1 - i : flow->first + i) % FLOW_SEGMENTS];
		if (sent->state == SENT_ON_ITS_WAY && sent->path == path) {
			is_lost(flow, sent);
			return;
		}
	}
}

/* What is on a path is sent again by others. */
static void set_aside(struct flow *flow, unsigned path, uint64_t now_ns)
{
	for (uint64_t i = flow->first; i < flow->next; i++) {
		struct flow_sent *sent = &flow->sent[i % FLOW_SEGMENTS];
		if (sent->state == SENT_ON_ITS_WAY && sent->path == path)
			is_lost(flow, sent);
	}
	flow_path_set_aside(&flow->paths[path], now_ns);
	flow->probes &= ~(1u << path);
	flow->set_aside++;
}

/* Nothing has been acknowledged of what is on a path. */
static void path_alarm(struct flow *flow, unsigned of, uint64_t now_ns)
{
	struct flow_path *path = &flow->paths[of];
	if (!path->on_its_way) {
		path->alarm_ns = NEVER;
		return;
	}
	if (!path->probed && !flow->lost) {
		/* The end may be lost, and nothing comes after it that would tell. */
		path->probed = true;
		path->alarm_ns = now_ns + flow_path_timeout_ns(path, path->timeouts);
		send_again(flow, of, true, of);
		return;
	}
	if (flow_path_timed_out(flow->paths, flow->path_count, of, now_ns))
		send_again(flow, of, false, flow_path_other(flow->paths, flow->path_count, of));
	else
		set_aside(flow, of, now_ns);
}

/* Whether the peer is to be asked for room, as there is nothing on its way that would bring news of it. */
static bool room_alarm(struct flow *flow, uint64_t now_ns)
{
	if (!flow->starved || flow->first != flow->next) {
		flow->ask_ns = NEVER;
		return false;
	}
	bool ask = now_ns >= flow->ask_ns;
	if (ask || flow->ask_ns == NEVER) {
		flow->asks += ask;
		flow->ask_ns = now_ns + flow_path_timeout_ns(flow->paths, flow->asks);
	}
	return ask;
}

unsigned flow_alarm(struct flow *flow, uint64_t now_ns)
{
	unsigned ask = 0;
	if (now_ns >= flow->late_ns)
		find_lost(flow, now_ns);
	for (unsigned i = 0; i < flow->path_count; i++) {
		if (flow_path_unanswered(flow->paths, flow->path_count, i, now_ns))
			set_aside(flow, i, now_ns);
		else if (now_ns >= flow->paths[i].alarm_ns)
			path_alarm(flow, i, now_ns);
	}
	if (flow->path_count > 1 && !flow_idle(flow))
		ask = flow_path_ask(flow->paths, flow->path_count, now_ns);
	if (room_alarm(flow, now_ns))
		ask |= (1u << flow->path_count) - 1;
	return ask;
}

bool flow_idle(const struct flow *flow)
{
	return flow->cut == flow->head && flow->first == flow->next && !flow->bulk;
}
