/* rail_side.h - what the tests of rails that are left and joined share. */
#ifndef RAIL_SIDE_H
#define RAIL_SIDE_H

#include <poll.h>
#include <sched.h>
#include <stdbool.h>

#include "stream.h"

#define SOON 10000 /* ms */

static const char *rail_name = "shm";

/* Until as many have come; on a busy machine it may be the other's turn. */
static inline void take_all(struct side *side, struct stream *stream, uint64_t count)
{
	while (stream->received < count)
		if (!take_next(side, stream))
			sched_yield();
}

static inline enum pm_rail rail_number(void)
{
	return !strcmp(rail_name, "shm") ? PM_RAIL_SHM : !strcmp(rail_name, "verbs") ? PM_RAIL_VERBS : PM_RAIL_IVSHMEM;
}

/* Brings both to the rings, which the first messages may not go by yet. */
static inline void warm_up(struct side *side, struct stream *stream)
{
	while (stream->sent < 100) {
		for (int i = 0; i < 10; i++)
			while (!send_next(side, stream))
				take_next(side, stream);
		take_all(side, stream, stream->sent);
	}
	while (strcmp(rail_name, "shm") && !statistics_of(side).switches)
		take_next(side, stream);
}

/* Writes to the other's memory and reads it back, one after the other. */
struct access {
	uint8_t here[100000], there[100000], back[100000];
	uint64_t address, key;
	bool writing, reading;
	uint64_t rounds;
};

/* What has been put aside does not begin anything. */
#define surely(call) \
	do { \
		int error_; \
		while ((error_ = (call)) == -EAGAIN) \
			; \
		CHECK_IS(error_, 0); \
	} while (0)

static inline bool accessing(const struct access *access)
{
	return access->writing || access->reading;
}

static inline void begin_access(struct side *side, struct access *access)
{
	if (accessing(access))
		return;
	memset(access->here, (int)++access->rounds, sizeof(access->here));
	surely(pm_write(side->peer, access->here, sizeof(access->here), access->address, access->key, NULL));
	access->writing = true;
}

static inline void go_on_accessing(struct side *side, struct access *access)
{
	struct pm_event event;
	while (pm_next_event(side->endpoint, &event)) {
		CHECK_IS(event.status, 0);
		if (event.type == PM_WRITE_DONE) {
			access->writing = false;
			access->reading = true;
			surely(pm_read(side->peer, access->back, sizeof(access->back), access->address, access->key, NULL));
		} else {
			CHECK_IS(event.type, PM_READ_DONE);
			CHECK(!memcmp(access->here, access->back, sizeof(access->here)));
			access->reading = false;
		}
	}
}

/* Until both have ended what they had begun. */
static inline void end_all(struct side *side, struct stream *stream, struct access *access)
{
	struct pollfd other = {.fd = side->in, .events = POLLIN};
	uint64_t theirs = 0;
	bool said = false, heard = false;
	while (!said || !heard || stream->received < theirs) {
		take_next(side, stream);
		go_on_accessing(side, access);
		if (!said && !accessing(access)) {
			tell(side, &stream->sent, sizeof(stream->sent));
			said = true;
		}
		if (!heard && poll(&other, 1, 0) == 1) {
			hear(side, &theirs, sizeof(theirs));
			heard = true;
		}
	}
}

/* The rails are this one and udp, to which it is left. */
static inline void set_rails(const char *name)
{
	char rails[32];
	snprintf(rails, sizeof(rails), "%s,udp", name);
	setenv("PM_RAILS", rails, 1);
	rail_name = name;
}

#endif
