/* flow_path.c - the ways to a peer (flow_path.h): how full each may be, which is taken, and which is not used for now. */
#include "flow_path.h"

#include <limits.h>

#define FIRST_WINDOW 32
#define LEAST_WINDOW 4
#define MOST_THRESHOLD 4096
#define SHRINK 0.7
/* One lost segment of so many, in a round trip, is no sign of a full network. */
#define TOLERATED 50
#define LEAST_TIMEOUT_US 2000
#define MOST_TIMEOUT_US 1000000
#define LEAST_PROBE_US 300
#define LEAST_LATE_US 50
/* A round trip that is longer by so much is no sign of a queue yet. */
#define NO_QUEUE_US 1000
/* What was the least round trip is believed for some times as many measurements. */
#define LEAST_LASTS 512
/* News may wait so long at the receiver. */
#define NEWS_WAIT_US 100
/* So many timeouts on end without news, and what was known of a path is old. */
#define OLD 6
/* Timeouts after which a path that is silent is set aside. */
#define UNHEARD 2
/* Or so many questions to it that were not answered. */
#define UNANSWERED 3
/* It is asked after 10 ms, 20 ms, and so on, at most each second. */
#define FIRST_ASK_NS 10000000ull
#define MOST_ASK_NS 1000000000ull
#define MOST_DOUBLED 7
/* And one that is in use, while nothing is on its way by it; longer while it does not answer. */
#define IDLE_NS 100000000ull

void flow_path_open(struct flow_path *path)
{
	*path = (struct flow_path){.window = FIRST_WINDOW, .threshold = MOST_THRESHOLD, .alarm_ns = NEVER};
}

uint64_t flow_path_timeout_ns(const struct flow_path *path, unsigned before)
{
	double us = path->rtt_us ? path->rtt_us + 4 * path->rtt_deviation_us : 0;
	us = us < LEAST_TIMEOUT_US ? LEAST_TIMEOUT_US : us;
	for (unsigned i = 0; i < before && us < MOST_TIMEOUT_US; i++)
		us *= 2;
	return (uint64_t)((us < MOST_TIMEOUT_US ? us : MOST_TIMEOUT_US) * 1000);
}

uint64_t flow_path_probe_at(const struct flow_path *path, uint64_t now_ns)
{
	uint64_t timeout = now_ns + flow_path_timeout_ns(path, path->timeouts);
	if (path->probed || !path->rtt_us)
		return timeout;
	/* What was sent last takes as long as what has arrived last, but that waited for more, perhaps, that was before it. And
	 * arrivals are not much farther from each other than they were. */
	double took_us = path->acked_took_ns / 1000.0, full = path->on_its_way / (path->acked_before + 1.0);
	full = full < 1 ? full : 1;
	double expected = took_us > path->least_us ? path->least_us + (took_us - path->least_us) * full : took_us;
	double late = expected / 4 > 2 * path->rtt_deviation_us * full ? expected / 4 : 2 * path->rtt_deviation_us * full;
	uint64_t at = path->sent_ns + (uint64_t)(expected + late + NEWS_WAIT_US) * 1000;
	uint64_t next = now_ns + LEAST_PROBE_US * 1000 + 2 * path->gap_ns;
	at = at > next ? at : next;
	return at < timeout ? at : timeout;
}

void flow_path_acknowledged(struct flow_path *path, uint64_t now_ns)
{
	uint64_t gap = now_ns - path->acked_ns;
	path->gap_ns = gap < path->acked_took_ns ? gap : path->acked_took_ns;
	path->acked_ns = now_ns;
	path->timeouts = 0;
	path->probed = false;
	path->alarm_ns = path->on_its_way ? flow_path_probe_at(path, now_ns) : NEVER;
}

uint64_t flow_path_late_ns(const struct flow_path *path)
{
	return path->acked_took_ns + (path->rtt_us / 4 < LEAST_LATE_US ? LEAST_LATE_US : path->rtt_us / 4) * 1000;
}

void flow_path_measure(struct flow_path *path, uint64_t now_ns, uint32_t echo_us)
{
	double us = (uint32_t)(now_ns / 1000) - echo_us;
	if (us > 10e6)
		return;
	double off = us - path->rtt_us;
	path->last_us = us;
	path->least_us = !path->rtt_us || us < path->least_us ? us : path->least_us + (us - path->least_us) / LEAST_LASTS;
	if (!path->rtt_us) {
		path->rtt_us = us + 1;
		path->rtt_deviation_us = us / 2;
		return;
	}
	path->rtt_us += off / 8;
	path->rtt_deviation_us += ((off < 0 ? -off : off) - path->rtt_deviation_us) / 4;
}

bool flow_path_is_full(const struct flow_path *paths, unsigned count, unsigned of)
{
	const struct flow_path *path = &paths[of];
	return path->last_us > 2 * path->least_us + NO_QUEUE_US && flow_path_other(paths, count, of) != of &&
	       paths[flow_path_other(paths, count, of)].rtt_us < path->rtt_us;
}

void flow_path_grow(struct flow_path *path, unsigned acknowledged, uint32_t most_window)
{
	path->window += path->window < path->threshold ? acknowledged : acknowledged / path->window;
	if (path->window > most_window)
		path->window = most_window;
	if (path->stamp_acked >= path->round) {
		path->round = path->stamp + 1;
		path->round_lost = 0;
	}
}

void flow_path_shrink(struct flow_path *path, uint64_t stamp)
{
	path->round_lost++;
	if (stamp >= path->recovery && path->round_lost > 1 + path->window / TOLERATED) {
		path->recovery = path->stamp + 1;
		path->window = path->window * SHRINK < LEAST_WINDOW ? LEAST_WINDOW : path->window * SHRINK;
		path->threshold = path->window;
	}
}

/* The round trip of one segment more: what was measured while the path was full, as far as it is. Of one that is not used
 * nothing new would be learnt. */
static double expected_us(const struct flow_path *path)
{
	double full = path->on_its_way < path->window ? path->on_its_way / path->window : 1;
	return path->least_us + (path->rtt_us + path->rtt_deviation_us - path->least_us) * full;
}

unsigned flow_path_used(const struct flow_path *paths, unsigned count)
{
	unsigned used = 0;
	for (unsigned i = 0; i < count; i++)
		used += !paths[i].aside;
	return used;
}

int flow_path_choose(const struct flow_path *paths, unsigned count, double waiting)
{
	int quickest = -1, best = -1;
	for (unsigned i = 0; i < count; i++) {
		const struct flow_path *path = &paths[i];
		if (path->aside)
			continue;
		if (quickest < 0 || path->rtt_us < paths[quickest].rtt_us)
			quickest = i;
		if (path->on_its_way < (uint32_t)path->window && (best < 0 || path->rtt_us < paths[best].rtt_us))
			best = i;
	}
	if (best < 0 || best == quickest)
		return best;
	return expected_us(&paths[best]) <= paths[quickest].rtt_us * (1 + waiting / paths[quickest].window) ? best : -1;
}

unsigned flow_path_other(const struct flow_path *paths, unsigned count, unsigned path)
{
	unsigned other = path;
	for (unsigned i = 0; i < count; i++)
		if (i != path && !paths[i].aside && (other == path || paths[i].rtt_us < paths[other].rtt_us))
			other = i;
	return other;
}

void flow_path_heard(struct flow_path *path, uint64_t now_ns, uint32_t time_us, uint32_t echo_us)
{
	path->echo_us = time_us;
	path->heard_ns = now_ns;
	path->unheard = 0;
	/* It goes both ways if what has come was sent after a question had. */
	uint32_t took_us = (uint32_t)(now_ns / 1000) - echo_us;
	if (!path->asks || took_us > now_ns / 1000 - path->asked_ns / 1000)
		return;
	path->asks = 0;
	path->ask_ns = now_ns + IDLE_NS;
	if (path->on_its_way)
		return;
	path->rtt_us = 0; /* what is known is old */
	flow_path_measure(path, now_ns, echo_us);
	if (path->aside)
		path->window = FIRST_WINDOW;
	path->aside = path->probed = false;
	path->timeouts = 0;
}

/* Whether something has come by any other that is used. */
static bool others_heard(const struct flow_path *paths, unsigned count, unsigned path, uint64_t since_ns)
{
	for (unsigned i = 0; i < count; i++)
		if (i != path && !paths[i].aside && paths[i].heard_ns > since_ns)
			return true;
	return false;
}

/* Of a path that is not used nothing is learnt but by asking. */
static bool to_be_asked(const struct flow_path *path)
{
	return path->aside || !path->on_its_way;
}

bool flow_path_timed_out(struct flow_path *paths, unsigned count, unsigned timed_out, uint64_t now_ns)
{
	struct flow_path *path = &paths[timed_out];
	path->timeouts++;
	path->alarm_ns = now_ns + flow_path_timeout_ns(path, path->timeouts);
	if (path->timeouts == OLD) {
		path->window = LEAST_WINDOW;
		path->threshold = path->threshold / 2 < LEAST_WINDOW ? LEAST_WINDOW : path->threshold / 2;
	}
	if (!path->unheard++)
		path->unheard_ns = now_ns;
	return path->unheard < UNHEARD || !others_heard(paths, count, timed_out, path->unheard_ns);
}

bool flow_path_unanswered(const struct flow_path *paths, unsigned count, unsigned asked, uint64_t now_ns)
{
	const struct flow_path *path = &paths[asked];
	return to_be_asked(path) && !path->aside && path->asks >= UNANSWERED && now_ns >= path->ask_ns &&
	       others_heard(paths, count, asked, path->asked_ns);
}

void flow_path_set_aside(struct flow_path *path, uint64_t now_ns)
{
	path->aside = true;
	path->alarm_ns = NEVER;
	path->asks = 0;
	path->ask_ns = now_ns;
}

unsigned flow_path_timeouts(const struct flow_path *paths, unsigned count)
{
	unsigned least = UINT_MAX;
	for (unsigned i = 0; i < count; i++)
		if (!paths[i].aside && paths[i].on_its_way && paths[i].timeouts < least)
			least = paths[i].timeouts;
	return least;
}

/* How long to wait after a question for its answer. */
static uint64_t ask_again_ns(const struct flow_path *path)
{
	uint64_t timeout = flow_path_timeout_ns(path, 0);
	uint64_t wait = (path->aside ? FIRST_ASK_NS : IDLE_NS) << (path->asks < MOST_DOUBLED ? path->asks : MOST_DOUBLED);
	wait = path->aside || wait > timeout ? wait : timeout;
	return wait < MOST_ASK_NS ? wait : MOST_ASK_NS;
}

unsigned flow_path_ask(struct flow_path *paths, unsigned count, uint64_t now_ns)
{
	unsigned ask = 0;
	for (unsigned i = 0; i < count; i++) {
		struct flow_path *path = &paths[i];
		if (!to_be_asked(path) || now_ns < path->ask_ns)
			continue;
		ask |= 1u << i;
		path->asked_ns = path->asks ? path->asked_ns : now_ns;
		path->ask_ns = now_ns + ask_again_ns(path);
		path->asks++;
	}
	return ask;
}

uint64_t flow_path_ask_at(const struct flow_path *paths, unsigned count)
{
	uint64_t at = NEVER;
	for (unsigned i = 0; i < count; i++)
		if (to_be_asked(&paths[i]) && paths[i].ask_ns < at)
			at = paths[i].ask_ns;
	return at;
}
