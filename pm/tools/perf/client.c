/*
 * client.c - the process that measures.
 */
#include "perf.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#define WINDOW 16 /* writes or reads on their way at once, for bandwidth */

static struct side *side_of(struct link *link, uint32_t curve)
{
	bool no_direct = curve == CURVE_WRITE_NO_DIRECT || curve == CURVE_READ_NO_DIRECT;
	return &link->sides[no_direct ? SIDE_NO_DIRECT : SIDE_DIRECT];
}

static double message_batch(struct link *link, struct side *side, const struct order *order)
{
	char *copy_to = order->curve == CURVE_MESSAGE_COPIES ? link->memory : NULL;
	side->sequence_in = side->sequence_out = 0;
	double begin = now();
	for (int64_t i = 0; i < order->count; i++) {
		transfer_send(side, link->buffer, order->size);
		if (order->metric == METRIC_LATENCY)
			transfer_receive(side, order->size, copy_to);
	}
	if (order->metric == METRIC_BANDWIDTH)
		side_expect(side, KIND_READY, NULL, 0);
	return now() - begin;
}

/* Takes what has ended, and gives the number of it; makes progress where nothing has. */
static int64_t take_ended(struct side *side)
{
	struct pm_event event;
	struct pm_message message;
	int64_t ended = 0;
	int result;
	while ((result = pm_next_event(side->endpoint, &event)) == 1) {
		if (event.type == PM_PEER_GONE)
			peer_fail(event.status, "the server");
		if (event.status == -EHOSTDOWN) /* PM_PEER_GONE is yet to come */
			peer_fail(event.status, "remote access");
		if (event.status)
			fail(event.status, "remote access");
		ended++;
	}
	if (result < 0)
		fail(result, "look for events");
	if (ended)
		return ended;
	result = pm_receive(side->endpoint, &message);
	if (result)
		fail(result < 0 ? result : 0, "received something where only remote accesses are due");
	if (give_way)
		sched_yield();
	return 0;
}

/* false: no room now */
static bool start_access(struct link *link, struct side *side, bool write, char *local, size_t size)
{
	int result = write ? pm_write(side->peer, local, size, link->remote_address, side->remote_key, NULL)
			   : pm_read(side->peer, local, size, link->remote_address, side->remote_key, NULL);
	if (result < 0 && result != -EAGAIN)
		fail(result, "remote access of %zu bytes", size);
	return result != -EAGAIN;
}

static void access_once(struct link *link, struct side *side, bool write, char *local)
{
	while (!start_access(link, side, write, local, link->largest))
		take_ended(side);
	while (!take_ended(side))
		;
}

static double remote_batch(struct link *link, struct side *side, const struct order *order)
{
	bool write = order->curve == CURVE_WRITE || order->curve == CURVE_WRITE_NO_DIRECT;
	int64_t window = order->metric == METRIC_LATENCY ? 1 : WINDOW;
	double begin = now();
	for (int64_t started = 0, ended = 0; ended < order->count;) {
		while (started < order->count && started - ended < window) {
			if (!start_access(link, side, write, link->buffer, order->size))
				break;
			started++;
		}
		ended += take_ended(side);
	}
	double took = now() - begin;
	side_send(side, KIND_END, NULL, 0);
	return took;
}

double measure_batch(struct link *link, const struct order *order)
{
	struct side *side = side_of(link, order->curve);
	if (order->curve == CURVE_MEMCPY)
		return memory_copies(order->size, order->count);
	side_send(side, KIND_ORDER, order, sizeof *order);
	side_expect(side, KIND_READY, NULL, 0);
	switch (order->curve) {
	case CURVE_FLAG:
		return flag_round_trips(link->line, order->count);
	case CURVE_MESSAGE:
	case CURVE_MESSAGE_COPIES:
		return message_batch(link, side, order);
	default:
		return remote_batch(link, side, order);
	}
}

bool client_was_direct(const struct link *link)
{
	struct pm_statistics statistics;
	pm_statistics(link->sides[SIDE_DIRECT].endpoint, &statistics);
	return statistics.direct_bytes > 0;
}

/* Writes to the server and reads that back, both ways: figures of accesses that move nothing are worth nothing. */
void client_verify(struct link *link)
{
	for (int i = 0; i < SIDES; i++) {
		struct side *side = &link->sides[i];
		struct order order = { .curve = i == SIDE_DIRECT ? CURVE_WRITE : CURVE_WRITE_NO_DIRECT, .size = link->largest };
		side_send(side, KIND_ORDER, &order, sizeof order);
		side_expect(side, KIND_READY, NULL, 0);
		for (size_t at = 0; at < link->largest; at++)
			link->buffer[at] = (char)(at * 7 + at / 251 + (size_t)i);
		access_once(link, side, true, link->buffer);
		access_once(link, side, false, link->memory);
		side_send(side, KIND_END, NULL, 0);
		if (memcmp(link->buffer, link->memory, link->largest))
			fail(0, "what was written to the server was not found there");
	}
}

void client_end(struct link *link)
{
	side_send(&link->sides[SIDE_DIRECT], KIND_BYE, NULL, 0);
	side_expect(&link->sides[SIDE_DIRECT], KIND_BYE, NULL, 0);
}
