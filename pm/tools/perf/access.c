/*
 * access.c - remote accesses of the client.
 */
#include "perf.h"

#include <errno.h>
#include <sched.h>

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
static bool start_access(struct side *side, bool write, char *local, size_t size, uint64_t address)
{
	int result = write ? pm_write(side->peer, local, size, address, side->remote_key, NULL)
			   : pm_read(side->peer, local, size, address, side->remote_key, NULL);
	if (result < 0 && result != -EAGAIN)
		fail(result, "remote access of %zu bytes", size);
	return result != -EAGAIN;
}

void access_once(struct side *side, bool write, char *local, size_t size, uint64_t address)
{
	while (!start_access(side, write, local, size, address))
		take_ended(side);
	while (!take_ended(side))
		;
}

static bool its_turn(const struct rotation *rotation)
{
	return rotation->same_percent == 100 || (rotation->same_percent == 50 && rotation->turn % 2);
}

/* false: no room now */
static bool start_next(struct side *side, bool write, size_t size, struct rotation *rotation, uint64_t address)
{
	bool same = its_turn(rotation);
	if (!start_access(side, write, same ? rotation->same : rotation->others + rotation->at, size, address))
		return false;
	rotation->turn++;
	if (!same)
		rotation->at = (rotation->at + rotation->stride) % rotation->room;
	return true;
}

double access_batch(struct side *side, const struct order *order, struct rotation *rotation, uint64_t address)
{
	bool write = curve_writes(order->curve);
	int64_t window = order->metric == METRIC_LATENCY ? 1 : WINDOW;
	double begin = now();
	for (int64_t started = 0, ended = 0; ended < order->count;) {
		while (started < order->count && started - ended < window && start_next(side, write, order->size, rotation, address))
			started++;
		ended += take_ended(side);
	}
	return now() - begin;
}
