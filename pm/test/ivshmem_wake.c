/* ivshmem_wake.c - who sleeps for a message in memory of guests is woken by a packet, also when the keeper has taken that
 * out of the socket. */
#include <poll.h>

#include "pair.h"
#include "udp.h"

#define ROUNDS 20

/* Has the sender go over to the ring, and says when it has. */
static void warm_up(struct side *side)
{
	struct pm_message message;
	while (side->number == 0 && !statistics_of(side).switches) {
		struct iovec part = {"x", 1};
		int error = pm_send(side->peer, 0, &part, 1);
		CHECK(!error || error == -EAGAIN);
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
	}
	if (side->number == 0)
		send_surely(side, 1, "last", 5);
	for (bool last = side->number == 0; !last; pm_release(side->endpoint, &message)) {
		receive_surely(side, &message);
		last = message.kind;
	}
}

/* Whether something but the alarm of the longest sleep would end this one. */
static bool woken(struct pm_endpoint *endpoint)
{
	int descriptors[PM_WAIT_DESCRIPTORS], count = pm_wait_descriptors(endpoint, descriptors);
	bool any = false;
	for (int i = 0; i < count; i++) {
		struct pollfd bell = {.fd = descriptors[i], .events = POLLIN};
		any = any || (bell.fd != endpoint->sleeper->alarm && poll(&bell, 1, 0) == 1);
	}
	return any;
}

static void wake(struct side *side)
{
	struct pm_message message;
	int descriptors[PM_WAIT_DESCRIPTORS];
	warm_up(side);
	CHECK(pm_wait_descriptors(side->endpoint, descriptors) > 0);
	for (int i = 0; i < ROUNDS; i++) {
		if (side->number) {
			while (pm_wait_begin(side->endpoint, 20000))
				CHECK_IS(pm_receive(side->endpoint, &message), 0);
			meet(side); /* it sleeps, and is sent something */
			meet(side);
			usleep(20000); /* the keeper looks */
			CHECK(woken(side->endpoint));
			pm_wait_end(side->endpoint);
			receive_surely(side, &message);
			pm_release(side->endpoint, &message);
		} else {
			meet(side);
			send_surely(side, 0, "wake", 5);
			meet(side);
		}
	}
}

int main(void)
{
	own_job();
	share_file(1 << 20);
	setenv("PM_RAILS", "ivshmem,udp", 1);
	pair_run(NULL, wake);
	return 0;
}
