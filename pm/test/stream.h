/* stream.h - streams of messages of which each side can tell whether they have come once, in order and whole. */
#ifndef STREAM_H
#define STREAM_H

#include "pair.h"

static inline struct pm_address address_of(struct pm_endpoint *endpoint)
{
	struct pm_address address;
	pm_endpoint_address(endpoint, &address);
	return address;
}

static inline struct pm_address other_address(const struct side *side)
{
	struct pm_address address;
	pm_peer_address(side->peer, &address);
	return address;
}

/* Messages with their number in front, and of a length and content that follow from it. */
static inline size_t make_numbered(uint64_t number, uint8_t *data)
{
	uint64_t random = number * 0x9e3779b97f4a7c15u + 1;
	size_t length = 8 + (random_next(&random) % 5 ? random % 100 : random % (PM_MAX_MESSAGE - 8));
	memcpy(data, &number, 8);
	memset(data + 8, (int)number, length - 8);
	return length;
}

struct stream {
	uint64_t sent, received;
};

static inline bool send_next(struct side *side, struct stream *stream)
{
	uint8_t data[PM_MAX_MESSAGE];
	struct iovec part = {data, make_numbered(stream->sent, data)};
	int error = pm_send(side->peer, 3, &part, 1);
	CHECK(!error || error == -EAGAIN);
	stream->sent += !error;
	return !error;
}

static inline bool take_next(struct side *side, struct stream *stream)
{
	uint8_t wanted[PM_MAX_MESSAGE];
	struct pm_message message;
	if (!pm_receive(side->endpoint, &message))
		return false;
	CHECK_IS(message.length, make_numbered(stream->received, wanted));
	CHECK(!memcmp(message.data, wanted, message.length));
	CHECK_IS(message.kind, 3);
	CHECK(message.peer == side->peer);
	pm_release(side->endpoint, &message);
	stream->received++;
	return true;
}

#endif
