/*
 * verbs_wait.c - an owner that sleeps on descriptors is woken by what comes over the verbs rail, and told of the rail's
 * descriptor when there is a new one: an epoll knows that of a rail that is left no more, whatever its number.
 */
#include <errno.h>
#include <sys/epoll.h>

#include "over_verbs.h"

#define ROUNDS 300
#define CHANNELS 5
#define SOME 20 /* messages */
#define WITHOUT 3 /* descriptors, where there is none of verbs */

static int descriptors[PM_WAIT_DESCRIPTORS], epoll, added;

/* Has the epoll know all descriptors, as others do who are told of new ones: not which. */
static int ask(struct side *side)
{
	int count = pm_wait_descriptors(side->endpoint, descriptors);
	struct epoll_event readable = {.events = EPOLLIN};
	CHECK(count >= WITHOUT && count <= PM_WAIT_DESCRIPTORS);
	for (int i = 0; i < count; i++) {
		int failed = epoll_ctl(epoll, EPOLL_CTL_ADD, descriptors[i], &readable);
		CHECK(!failed || errno == EEXIST);
		added += !failed;
	}
	return count;
}

static int begin(struct side *side)
{
	int look;
	while ((look = pm_wait_begin(side->endpoint, -1)) == 2)
		CHECK_IS(ask(side), PM_WAIT_DESCRIPTORS);
	CHECK(look == 0 || look == 1);
	return look;
}

static void await_asleep(struct side *side, uint64_t number)
{
	struct epoll_event event;
	struct pm_message message;
	uint64_t came;
	while (!pm_receive(side->endpoint, &message))
		if (!begin(side))
			CHECK_IS(epoll_wait(epoll, &event, 1, 20000), 1);
	pm_wait_end(side->endpoint);
	memcpy(&came, message.data, sizeof(came));
	pm_release(side->endpoint, &message);
	CHECK_IS(came, (long long)number);
}

/* The device's descriptor is what wakes: it is slept on alone. */
static void by_device(struct side *side)
{
	struct pm_message message;
	char c = 'x';
	warm_up(side);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		if (side->number == 0) {
			hear(side, &c, 1); /* it sleeps, or will soon */
			send_number(side, i);
			await_asleep(side, i);
			continue;
		}
		while (begin(side))
			CHECK_IS(pm_receive(side->endpoint, &message), 0);
		CHECK_IS(ask(side), PM_WAIT_DESCRIPTORS);
		struct pollfd device = {.fd = descriptors[WITHOUT], .events = POLLIN};
		tell(side, &c, 1);
		CHECK_IS(poll(&device, 1, 20000), 1);
		await_asleep(side, i);
		send_number(side, i);
	}
}

static void asleep_in_turns(struct side *side, uint64_t from, uint64_t to)
{
	for (uint64_t i = from; i < to; i++) {
		if (side->number == 0)
			send_number(side, i);
		await_asleep(side, i);
		if (side->number == 1)
			send_number(side, i);
	}
}

static uint64_t by_verbs(const struct side *side)
{
	return statistics_of(side).rails[PM_RAIL_VERBS].messages;
}

/* From before the first message on, and while one of the two leaves the rail and joins it again. */
static void new_channels(struct side *side)
{
	struct pm_address own;
	uint64_t at = 0, before;
	CHECK_IS(pm_endpoint_address(side->endpoint, &own), 0);
	CHECK_IS(ask(side), WITHOUT);
	for (int i = 0; i < CHANNELS; i++) {
		before = by_verbs(side);
		/* Both go on as long as one does. */
		for (bool more = true; more; at += SOME) {
			asleep_in_turns(side, at, at + SOME);
			bool mine = by_verbs(side) < before + SOME, theirs;
			tell(side, &mine, 1);
			hear(side, &theirs, 1);
			more = mine || theirs;
		}
		CHECK_IS(added, WITHOUT + 1 + (side->number == 0 ? i : 0));
		if (side->number == 0) {
			CHECK_IS(pm_order_leave(&own, "verbs", 10000), 0);
			CHECK_IS(ask(side), WITHOUT);
			CHECK(pm_wait_begin(side->endpoint, -1) != 2);
		}
		meet(side);
		asleep_in_turns(side, at, at + SOME);
		at += SOME;
		if (side->number == 0)
			CHECK_IS(pm_order_join(&own, "verbs", 10000), 0);
	}
}

static void run(void (*body)(struct side *))
{
	CHECK((epoll = epoll_create1(EPOLL_CLOEXEC)) >= 0);
	added = 0;
	pair_run(NULL, body);
	close(epoll);
}

int main(void)
{
	verbs_environment();
	run(by_device);
	run(new_channels);
	return 0;
}
