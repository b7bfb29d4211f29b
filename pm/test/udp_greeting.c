/* udp_greeting.c - whichever greetings are lost, a connection is made, and both sides are sure of it. */
#include "wire.h"

/* Bit i: this process's greeting i is lost. */
static unsigned lost, greetings;

static bool lose(const struct udp_packet *packet, size_t length)
{
	(void)length;
	return packet->type != UDP_GREETING || greetings >= 8 || !(lost >> greetings++ & 1);
}

static bool sure(struct side *side)
{
	struct pm_statistics statistics;
	pm_statistics(side->endpoint, &statistics);
	return statistics.links_in == 1 && statistics.links_out == 1;
}

/* The first two of each side's. */
#define CASES 16

static void begin(struct side *side)
{
	lost = (unsigned)side_by_side >> 2 * side->number & 3;
	greetings = 0;
	wire = lose;
}

/* Nothing is said on the connection that would make the other side sure without an answer. */
static void in_silence(struct side *side)
{
	void *buffer;
	begin(side);
	if (side->number == 0)
		UNTIL(side, pm_reserve(side->peer, 8, &buffer) == 0);
	UNTIL(side, sure(side));
	meet(side);
}

/* Messages follow at once, in both directions. */
static void with_messages(struct side *side)
{
	struct pm_message message;
	begin(side);
	for (int i = 0; i < 3; i++) {
		if (side->number == 0)
			send_surely(side, 0, &i, sizeof(i));
		receive_surely(side, &message);
		CHECK_IS(*(int *)message.data, i);
		pm_release(side->endpoint, &message);
		if (side->number == 1)
			send_surely(side, 0, &i, sizeof(i));
	}
	CHECK(sure(side));
}

/* Only the first greeting of who has not heard the other passes. */
static bool once(const struct udp_packet *packet, size_t length)
{
	static const uint8_t none[UDP_NONCE];
	const struct udp_greeting *greeting = (const void *)packet;
	return packet->type != UDP_GREETING || length != sizeof(*greeting) || memcmp(greeting->echo, none, sizeof(none)) || !greetings++;
}

static void greet_once(struct side *side)
{
	struct side second = {.context = side->context};
	struct pm_address address;
	void *buffer;
	pm_peer_address(side->peer, &address);
	greetings = 0;
	wire = once;
	CHECK_IS(pm_endpoint_open(side->context, &second.endpoint), 0);
	CHECK_IS(pm_peer_get(second.endpoint, &address, &second.peer), 0);
	CHECK_IS(pm_reserve(second.peer, 8, &buffer), -EAGAIN);
	meet(side);
	UNTIL(&second, sure(&second));
	CHECK_IS(pm_endpoint_close(second.endpoint), 0);
}

/* A greeting comes while the owner holds a message, so that the keeper hears it, who cannot answer: the owner does. */
static void while_held(struct side *side)
{
	struct pm_message message;
	struct pm_statistics statistics;
	if (side->number) {
		send_surely(side, 0, "x", 1);
		meet(side);
		greet_once(side);
		return;
	}
	receive_surely(side, &message);
	meet(side);
	meet(side);
	usleep(20000); /* the keeper hears it */
	pm_release(side->endpoint, &message);
	UNTIL(side, (pm_statistics(side->endpoint, &statistics), statistics.links_in == 2));
}

int main(void)
{
	wire_begin("60");
	run_side_by_side(in_silence, CASES);
	run_side_by_side(with_messages, CASES);
	pair_run(NULL, while_held);
	return 0;
}
