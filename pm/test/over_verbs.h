/* over_verbs.h - two processes that go over to the verbs rail, and what they do there: numbers and remote accesses. */
#ifndef OVER_VERBS_H
#define OVER_VERBS_H

#include <poll.h>
#include <sys/mman.h>

#include "pair.h"

/* Without receiving: the keeper sees to it that there is room in the end. */
static inline void send_number(struct side *side, uint64_t number)
{
	struct iovec part = {&number, sizeof(number)};
	int error;
	while ((error = pm_send(side->peer, 0, &part, 1)) == -EAGAIN)
		usleep(100);
	CHECK_IS(error, 0);
}

static inline uint64_t receive_number(struct side *side)
{
	struct pm_message message;
	uint64_t number;
	receive_surely(side, &message);
	CHECK_IS(message.length, sizeof(number));
	memcpy(&number, message.data, sizeof(number));
	pm_release(side->endpoint, &message);
	return number;
}

static inline void await_number(struct side *side, uint64_t number)
{
	CHECK_IS(receive_number(side), (long long)number);
}

/* Both have come to the rail, after which they meet. */
static inline void warm_up(struct side *side)
{
	send_number(side, 0);
	await_number(side, 0);
	while (!statistics_of(side).switches)
		usleep(100); /* the keeper does it */
	send_number(side, 1);
	await_number(side, 1);
	CHECK(statistics_of(side).rails[PM_RAIL_VERBS].messages > 0);
}

static inline int access_status(struct side *side)
{
	struct pm_event event;
	event_surely(side, &event);
	CHECK(event.type == PM_WRITE_DONE || event.type == PM_READ_DONE);
	return event.status;
}

static inline int write_to(struct side *side, const void *local, size_t length, uint64_t address, uint64_t key)
{
	CHECK_IS(pm_write(side->peer, local, length, address, key, NULL), 0);
	return access_status(side);
}

static inline int read_from(struct side *side, void *local, size_t length, uint64_t address, uint64_t key)
{
	CHECK_IS(pm_read(side->peer, local, length, address, key, NULL), 0);
	return access_status(side);
}

static inline void *map(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	return memory;
}

/* Side 1 registers memory, and says so to side 0. */
static inline struct pm_region *offer(struct side *side, void *memory, size_t length, unsigned access)
{
	struct pm_region *region;
	CHECK_IS(pm_register(side->context, memory, length, access, &region), 0);
	send_number(side, (uintptr_t)memory);
	send_number(side, pm_region_key(region));
	return region;
}

static inline void learn(struct side *side, uint64_t *address, uint64_t *key)
{
	*address = receive_number(side);
	*key = receive_number(side);
}

/* Meets the other side, and looks meanwhile: what a failed connection did not bring goes on its way at once then. */
static inline void meet_looking(struct side *side)
{
	struct pollfd other = {.fd = side->in, .events = POLLIN};
	struct pm_message message;
	char c = 'x';
	tell(side, &c, 1);
	while (!poll(&other, 1, 0))
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
	hear(side, &c, 1);
}

static inline void verbs_environment(void)
{
	need_verbs();
	own_job();
	setenv("PM_RAILS", "verbs,udp", 1);
}

#endif
