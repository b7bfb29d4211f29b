/* udp_broken.c - a peer of the job that sends what is no stream, with right checksums, is given up with EPROTO. */
#include "wire.h"

/* A frame's header, as in the wire format. */
struct frame {
	uint32_t length;
	uint8_t kind, type;
	uint16_t mark;
};

#define MARK 0x4d50
#define SKIP 255

/* Sends a frame of 64 bytes whose header is another one. */
static void send_frame(struct side *side, struct frame frame)
{
	struct udp_link *link = side->peer->udp;
	struct udp *udp = side->endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	void *room = flow_reserve(&link->flow, 64);
	CHECK(room);
	flow_commit(&link->flow, 0, MESSAGE);
	memcpy((uint8_t *)room - FLOW_FRAME, &frame, sizeof(frame));
	udp_flush(udp, link, clock_ns(), true);
	pthread_mutex_unlock(&udp->lock);
}

static struct frame bad;

static void broken(struct side *side)
{
	struct pm_event event;
	if (side->number == 1) {
		send_surely(side, 0, "first", 6);
		UNTIL(side, side->peer->udp->sure);
		send_frame(side, bad);
		/* It learns it when it says more. */
		event_surely(side, &event);
		CHECK_IS(event.type, PM_PEER_GONE);
		CHECK_IS(event.status, -EHOSTDOWN);
		return;
	}
	take_all(side, 1);
	event_surely(side, &event);
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, -EPROTO);
	struct iovec part = {"x", 1};
	CHECK_IS(pm_send(side->peer, 0, &part, 1), -EPROTO);
}

int main(void)
{
	static const struct frame all[] = {
		{64, 0, MESSAGE, MARK + 1},
		{PM_MAX_MESSAGE + 1, 0, MESSAGE, MARK},
		{UINT32_MAX, 0, MESSAGE, MARK},
		{0, 0, SKIP, 0},
	};
	wire_begin("60");
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		bad = all[i];
		pair_run(NULL, broken);
	}
	return 0;
}
