/*
 * udp_window.c - a sender without room goes on when the receiver takes at last, also where the packets that tell so are
 * lost and the receiver has nothing more to do with PM.
 */
#include "wire.h"

static _Atomic int lost;

static bool lose(const struct udp_packet *packet, size_t length)
{
	(void)packet;
	(void)length;
	return atomic_fetch_sub(&lost, 1) <= 0;
}

/* How many packets of the receiver's are lost, and whether the sender sleeps meanwhile. */
static const struct {
	int lost;
	bool asleep;
} cases[] = {{0, false}, {1, false}, {7, false}, {3, true}};

static void blocked(struct side *side)
{
	bool asleep = cases[side_by_side].asleep;
	struct pm_message message;
	int sent = 0;
	if (side->number == 0) {
		send_surely(side, 0, "first", 6);
		sent = send_until_full(side);
		CHECK(sent > 100);
		tell(side, &sent, sizeof(sent));
		double began = seconds();
		for (struct iovec part = {"more", 5}; pm_send(side->peer, 0, &part, 1) == -EAGAIN;) {
			CHECK(seconds() - began < 20);
			CHECK_IS(asleep ? pm_wait(side->endpoint, 20000) : 1, 1);
			CHECK_IS(pm_receive(side->endpoint, &message), 0);
		}
		tell(side, &sent, sizeof(sent));
		return;
	}
	take_all(side, 1);
	hear(side, &sent, sizeof(sent));
	lost = cases[side_by_side].lost;
	wire = lose;
	take_all(side, sent);
	hear(side, &sent, sizeof(sent)); /* the other has gone on, while PM got no turn here */
	take_all(side, 1);
}

int main(void)
{
	wire_begin("60");
	run_side_by_side(blocked, sizeof(cases) / sizeof(cases[0]));
	return 0;
}
