/*
 * server.c - the process that does as the client orders.
 */
#include "perf.h"

#include <string.h>

static void message_work(struct link *link, struct side *side, const struct order *order)
{
	char *copy_to = order->curve == CURVE_MESSAGE_COPIES ? link->memory : NULL;
	side->sequence_in = side->sequence_out = 0;
	side_send(side, KIND_READY, NULL, 0);
	for (int64_t i = 0; i < order->count; i++) {
		transfer_receive(side, order->size, copy_to);
		if (order->metric == METRIC_LATENCY)
			transfer_send(side, link->buffer, order->size);
	}
	if (order->metric == METRIC_BANDWIDTH)
		side_send(side, KIND_READY, NULL, 0);
}

static void obey(struct link *link, struct side *side, const struct order *order)
{
	/* It comes from a process of the same job, but maybe of another version. */
	if (order->size > link->largest || order->curve >= CURVES || order->metric >= METRICS)
		fail(0, "the client's order makes no sense: curve %u, %llu bytes", order->curve, (unsigned long long)order->size);
	switch (order->curve) {
	case CURVE_FLAG:
		if (!link->line)
			fail(0, "the client wants a flag ping-pong, but shares no memory with this process");
		side_send(side, KIND_READY, NULL, 0);
		flag_answer(link->line, order->count);
		break;
	case CURVE_MESSAGE:
	case CURVE_MESSAGE_COPIES:
		message_work(link, side, order);
		break;
	default: /* remote memory: it is enough to poll */
		side_send(side, KIND_READY, NULL, 0);
		side_expect(side, KIND_END, NULL, 0);
	}
}

void serve(struct link *link)
{
	unsigned tries = 0;
	for (int i = 0;; i = (i + 1) % SIDES) {
		struct side *side = &link->sides[i];
		struct pm_message message;
		struct order order;
		if (!side_poll(side, &message, &tries))
			continue;
		enum kind kind = message.kind;
		if (kind == KIND_ORDER && message.length == sizeof order)
			memcpy(&order, message.data, sizeof order);
		else if (kind != KIND_BYE)
			fail(0, "got kind %d with %u bytes in place of an order", (int)kind, message.length);
		pm_release(side->endpoint, &message);
		if (kind == KIND_BYE) {
			side_send(side, KIND_BYE, NULL, 0);
			return;
		}
		obey(link, side, &order);
	}
}
