/* fi_torture.h - what fi_torture's processes send: it follows from the seed; and what has come of it. */
#ifndef FI_TORTURE_H
#define FI_TORTURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "fi_test.h"

enum {
	ENDPOINTS = 2, MOST_PROCESSES = 8, MOST = MOST_PROCESSES * ENDPOINTS,
	MOST_THREADS = 3,
	STREAMS = 3, UNTAGGED = STREAMS, /* of each thread to each endpoint: tagged ones, and one that is not */
	SENDS = 8, RECEIVES = 24, /* buffers of a thread at an endpoint, and of an endpoint */
	LONGEST = 100000, LONGEST_UNTAGGED = 20000, MULTI_BYTES = 200000,
	ORDER_MS = 20000,
};

/* What all processes see. */
struct board {
	_Atomic int present, sent_all, received_all;
	_Atomic bool no_orders; /* any more */
	char name[MOST][48];
	uint32_t sent[MOST][MOST][MOST_THREADS][STREAMS + 1]; /* by whom, to whom */
	int processes, count, threads;
	uint64_t seed;
	double seconds;
};

/* A message and where it is from. */
struct message {
	unsigned sender, receiver, thread, stream;
	uint32_t number;
};

struct buffer {
	struct bird *bird;
	bool sends, many, wild; /* what it is for: sending, several messages, any message */
	_Atomic bool busy;
	uint64_t posted; /* number of the receive among those of the endpoint */
	char *bytes;
	struct buffer *older;
};

/* What has come of a stream: by its number, where it went. */
struct stream {
	uint32_t arrived, room;
	uint64_t *place;
};

struct bird {
	struct board *board;
	unsigned number;
	struct fid_ep *ep;
	struct fid_cq *cq;
	fi_addr_t address[MOST];
	pthread_mutex_t mutex; /* of what follows */
	uint64_t posted, arrived, cancelled;
	struct buffer receives[RECEIVES];
	struct buffer *multi; /* the newest; none is used twice, as another thread may still look into it */
	struct stream streams[MOST * MOST_THREADS * (STREAMS + 1)];
};

struct nest {
	struct board *board;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct bird birds[ENDPOINTS];
};

struct flier {
	struct nest *nest;
	unsigned thread;
	uint64_t random;
	bool lazy; /* posts few receives for a while */
	struct buffer sends[ENDPOINTS * SENDS];
};

static inline uint64_t mixed(const struct board *board, struct message message)
{
	uint64_t state = board->seed ^ (uint64_t)message.number << 32 ^ message.sender << 24 ^ message.receiver << 16 ^
			 message.thread << 8 ^ message.stream ^ 1ull << 63;

	random_next(&state);
	return random_next(&state) | 1;
}

static inline uint64_t tag_of(const struct board *board, struct message message)
{
	message.number = ~0u;
	return mixed(board, message);
}

static inline size_t length_of(const struct board *board, struct message message)
{
	static const unsigned limits[] = { 1, 60, 1000, 16340, 16380, LONGEST };
	uint64_t random = mixed(board, message);
	size_t limit = limits[random >> 8 & 63 ? (random >> 8) % 5 : 5], length = (random >> 32) % (limit + 1);

	if (random >> 16 & 7)
		length = length % 2000;
	if (message.stream != UNTAGGED)
		return length;
	return !length ? 1 : length > LONGEST_UNTAGGED ? LONGEST_UNTAGGED : length; /* each at a place of its own */
}

static inline void make_bytes(const struct board *board, struct message message, char *bytes)
{
	uint64_t state = mixed(board, message);
	size_t length = length_of(board, message);

	for (size_t i = 0; i < length; i += 8) {
		uint64_t random = random_next(&state);

		memcpy(bytes + i, &random, length - i < 8 ? length - i : 8);
	}
}

static inline bool right_bytes(const struct board *board, struct message message, const char *bytes)
{
	uint64_t state = mixed(board, message);
	size_t length = length_of(board, message);

	for (size_t i = 0; i < length; i += 8) {
		uint64_t random = random_next(&state);

		if (memcmp(bytes + i, &random, length - i < 8 ? length - i : 8))
			return false;
	}
	return true;
}

/* Called with the mutex held. Messages of a stream are told in any order, but have gone to places in their own. */
static inline void note(struct bird *bird, struct message message, uint64_t place)
{
	struct stream *stream = &bird->streams[(message.sender * MOST_THREADS + message.thread) * (STREAMS + 1) + message.stream];

	while (message.number >= stream->room) {
		size_t room = stream->room ? 2 * stream->room : 256;

		stream->place = realloc(stream->place, room * sizeof(*stream->place));
		CHECK(stream->place);
		memset(stream->place + stream->room, 0, (room - stream->room) * sizeof(*stream->place));
		stream->room = room;
	}
	CHECK(!stream->place[message.number]); /* once */
	stream->place[message.number] = place;
	CHECK(!message.number || stream->place[message.number - 1] < place);
	CHECK(message.number + 1 == stream->room || !stream->place[message.number + 1] ||
	      stream->place[message.number + 1] > place);
	stream->arrived++;
	bird->arrived++;
}

#endif
