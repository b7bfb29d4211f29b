/*
 * client.c - the process that measures.
 */
#include "perf.h"

#include <string.h>

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

void begin_order(struct side *side, const struct order *order)
{
	side_send(side, KIND_ORDER, order, sizeof *order);
	side_expect(side, KIND_READY, NULL, 0);
}

static double remote_batch(struct link *link, struct side *side, const struct order *order)
{
	struct rotation rotation = { .same = link->buffer, .same_percent = 100 };
	double took = access_batch(side, order, &rotation, link->remote_address);
	side_send(side, KIND_END, NULL, 0);
	return took;
}

static double ordered_batch(struct link *link, struct side *side, const struct order *order)
{
	begin_order(side, order);
	if (curve_hits(order->curve) >= 0)
		return pinned_batch(link, order);
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

/* By which rails something has gone between the two. */
static unsigned rails_used(const struct pm_statistics *before, const struct pm_statistics *after)
{
	unsigned rails = 0;
	for (unsigned i = 0; i < PM_RAILS; i++)
		if (after->rails[i].messages > before->rails[i].messages || after->rails[i].accesses > before->rails[i].accesses)
			rails |= 1u << i;
	return rails;
}

double measure_batch(struct link *link, const struct order *order, unsigned *rails)
{
	struct side *side = side_of(link, order->curve);
	const struct side *measured = curve_hits(order->curve) >= 0 ? pinned_side(link, order->size) : side;
	struct pm_statistics before, after;
	if (order->curve == CURVE_MEMCPY)
		return memory_copies(order->size, order->count);
	pm_statistics(measured->endpoint, &before);
	double took = ordered_batch(link, side, order);
	pm_statistics(measured->endpoint, &after);
	if (order->curve != CURVE_FLAG) /* whose order alone is a message */
		*rails |= rails_used(&before, &after);
	return took;
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
		begin_order(side, &order);
		for (size_t at = 0; at < link->largest; at++)
			link->buffer[at] = (char)(at * 7 + at / 251 + (size_t)i);
		access_once(side, true, link->buffer, link->largest, link->remote_address);
		access_once(side, false, link->memory, link->largest, link->remote_address);
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
