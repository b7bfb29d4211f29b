/* wait.c - a sleeper costs nothing, and no message passes it by. */
#include <sys/resource.h>

#include "pair.h"

static double cpu_seconds(void)
{
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void receive_asleep(struct side *side, struct pm_message *message)
{
	while (!pm_receive(side->endpoint, message))
		CHECK_IS(pm_wait(side->endpoint, 20000), 1);
}

/* Each waits for the other: one wake-up lost is a test that takes 20 s and fails. */
static void ping_pong(struct side *side)
{
	struct pm_message message;
	for (uint32_t i = 0; i < 20000; i++) {
		if (side->number == 0)
			send_surely(side, 0, &i, sizeof(i));
		receive_asleep(side, &message);
		CHECK_IS(*(uint32_t *)message.data, i);
		pm_release(side->endpoint, &message);
		if (side->number == 1)
			send_surely(side, 0, &i, sizeof(i));
	}
}

static void idle(struct side *side)
{
	struct pm_message message;
	struct pm_statistics statistics;
	if (side->number == 0) {
		send_surely(side, 0, "a", 1);
		char c;
		hear(side, &c, 1); /* now it sleeps, or will soon */
		usleep(400000);
		send_surely(side, 0, "b", 1);
		return;
	}
	receive_asleep(side, &message);
	pm_release(side->endpoint, &message);
	tell(side, "x", 1);
	double began = cpu_seconds();
	receive_asleep(side, &message);
	CHECK(cpu_seconds() - began < 0.02);
	pm_release(side->endpoint, &message);
	pm_statistics(side->endpoint, &statistics);
	CHECK(statistics.waits >= 1 && statistics.wait_ns > 300000000);
}

static void timeouts(struct side *side)
{
	double began = seconds();
	CHECK_IS(pm_wait(side->endpoint, 0), 0);
	CHECK_IS(pm_wait(side->endpoint, 100), 0);
	CHECK(seconds() - began >= 0.1);
}

/* A sender that waits for room is let go on by a receiver that sleeps. */
static void room(struct side *side)
{
	enum { COUNT = 5000 };
	static uint8_t data[4000];
	struct pm_message message;
	for (int i = 0; i < COUNT; i++) {
		if (side->number == 0) {
			struct iovec part = {data, sizeof(data)};
			int error;
			while ((error = pm_send(side->peer, 0, &part, 1)) == -EAGAIN)
				CHECK(pm_wait(side->endpoint, 10000) == 1);
			CHECK_IS(error, 0);
		} else {
			receive_asleep(side, &message);
			pm_release(side->endpoint, &message);
		}
	}
}

int main(void)
{
	pair_run(NULL, timeouts);
	pair_run(NULL, ping_pong);
	pair_run(NULL, idle);
	pair_run(NULL, room);
	return 0;
}
