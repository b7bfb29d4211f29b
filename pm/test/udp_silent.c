/*
 * udp_silent.c - a peer that is stopped is given up when it has left as many questions unanswered as the job is
 * patient, and not before; when it goes on it is told so.
 */
#include "wire.h"

#define PATIENCE 1

static _Atomic int asked;

static bool count_questions(const struct udp_packet *packet, size_t length)
{
	(void)length;
	asked += packet->type == UDP_PING;
	return true;
}

static void gone(struct side *side, int status)
{
	struct pm_event event;
	event_surely(side, &event);
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, status);
}

static void silent(struct side *side)
{
	struct pm_message message;
	pid_t child = getpid();
	if (side->number == 0) {
		hear(side, &child, sizeof(child));
		send_surely(side, 0, "a", 2);
		receive_surely(side, &message); /* both are sure of the connection */
		pm_release(side->endpoint, &message);
		CHECK(!kill(child, SIGSTOP));
		wire = count_questions;
		double began = seconds();
		send_surely(side, 0, "b", 2);
		gone(side, -ETIMEDOUT);
		CHECK(seconds() - began >= PATIENCE);
		CHECK_IS(asked, PATIENCE + 1); /* the last one as it is given up */
		CHECK(!kill(child, SIGCONT));
		return;
	}
	tell(side, &child, sizeof(child));
	take_all(side, 1);
	send_surely(side, 0, "a", 2);
	take_all(side, 1);
	gone(side, -EHOSTDOWN);
}

int main(void)
{
	wire_begin("1");
	pair_run(NULL, silent);
	return 0;
}
