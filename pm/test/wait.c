/* wait.c - a sleeper costs nothing, and no message passes it by. */
#include <poll.h>
#include <stdbool.h>
#include <sys/resource.h>

#include "pair.h"

static double cpu_seconds(void)
{
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static bool by_descriptors;
static struct pollfd known[PM_WAIT_DESCRIPTORS];
static int known_count;

static void ask_for_descriptors(struct pm_endpoint *endpoint)
{
	int descriptors[PM_WAIT_DESCRIPTORS];
	known_count = pm_wait_descriptors(endpoint, descriptors);
	CHECK(known_count > 0 && known_count <= PM_WAIT_DESCRIPTORS);
	for (int i = 0; i < known_count; i++)
		known[i] = (struct pollfd){.fd = descriptors[i], .events = POLLIN};
}

static int begin(struct pm_endpoint *endpoint, int timeout_ms)
{
	int look;
	if (!known_count)
		ask_for_descriptors(endpoint);
	while ((look = pm_wait_begin(endpoint, timeout_ms)) == 2)
		ask_for_descriptors(endpoint);
	return look;
}

static int sleep_on_descriptors(int timeout_ms)
{
	int woken = poll(known, known_count, timeout_ms);
	return woken > 0 ? 1 : woken;
}

/* As pm_wait does it. */
static int wait_by_descriptors(struct pm_endpoint *endpoint, int timeout_ms)
{
	int look = begin(endpoint, -1);
	if (!look)
		look = sleep_on_descriptors(timeout_ms);
	pm_wait_end(endpoint);
	return look;
}

static int wait_for(struct side *side, int timeout_ms)
{
	return by_descriptors ? wait_by_descriptors(side->endpoint, timeout_ms) : pm_wait(side->endpoint, timeout_ms);
}

static void receive_asleep(struct side *side, struct pm_message *message)
{
	while (!pm_receive(side->endpoint, message))
		CHECK_IS(wait_for(side, 20000), 1);
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
	began = seconds();
	pm_wait_end(side->endpoint); /* of nothing */
	for (int i = 0; i < 2; i++) {
		CHECK_IS(begin(side->endpoint, 100), 0);
		CHECK_IS(sleep_on_descriptors(20000), 1);
	}
	CHECK(seconds() - began >= 0.2 && seconds() - began < 10);
	/* The alarm of one sleep is not that of the next. */
	CHECK_IS(begin(side->endpoint, 1), 0);
	CHECK_IS(begin(side->endpoint, -1), 0);
	CHECK_IS(sleep_on_descriptors(50), 0);
	pm_wait_end(side->endpoint);
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
				CHECK(wait_for(side, 10000) == 1);
			CHECK_IS(error, 0);
		} else {
			receive_asleep(side, &message);
			pm_release(side->endpoint, &message);
		}
	}
}

/* Who is awake is not rung at: a sender makes no system calls for it. */
static void awake(struct side *side)
{
	struct pm_message message;
	for (int i = 0; i < 100; i++) {
		if (side->number == 0) {
			send_surely(side, 0, &i, sizeof(i));
			meet(side);
			continue;
		}
		while (i < 2 && !pm_receive(side->endpoint, &message))
			wait_for(side, 20000);
		meet(side);
		if (i == 2) {
			begin(side->endpoint, -1);
			pm_wait_end(side->endpoint);
		}
		while (i >= 2 && !pm_receive(side->endpoint, &message))
			;
		CHECK(i <= 2 || getenv("PM_RAILS") || !sleep_on_descriptors(0)); /* devices and sockets do not ask */
		pm_release(side->endpoint, &message);
	}
}

static void run(void (*body)(struct side *))
{
	known_count = 0;
	pair_run(NULL, body);
}

int main(void)
{
	run(timeouts);
	for (int i = 0; i < 2; i++) {
		by_descriptors = i;
		run(ping_pong);
		run(idle);
		run(room);
		run(awake);
	}
	return 0;
}
