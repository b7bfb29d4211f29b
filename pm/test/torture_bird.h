/* torture_bird.h - what each thread of torture does with its endpoint, and what all processes see. */
#ifndef TORTURE_BIRD_H
#define TORTURE_BIRD_H

#include <pm.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "network.h"

#define THREADS 2
#define MOST_PROCESSES 16
#define MOST (MOST_PROCESSES * THREADS)
#define LEAST_MESSAGES 100
#define MORE_SECONDS 30 /* for those, on a busy machine */
#define SLOT 100000 /* bytes that one other may write */
#define READABLE (1u << 20) /* bytes that all others may read */

enum { PLAIN, WRITTEN, CHECKED, FINISHED };

/* What all processes see. */
struct board {
	_Atomic int present, flying, finished;
	_Atomic bool no_orders; /* any more */
	_Atomic bool killed[MOST], served[MOST];
	struct pm_address address[MOST];
	uint64_t memory[MOST], key[MOST];
	int processes, doomed;
	uint64_t seed;
	double seconds;
	_Atomic unsigned harmed[NETWORK_HARMS];
	_Atomic uint64_t dropped;
};

struct header {
	uint64_t sequence, seed;
	uint32_t length, where;
};

struct other {
	struct pm_peer *peer;
	uint64_t sent, received;
	bool finished, told, gone;
	bool written, asked; /* the write has ended; the other has been asked to look */
	bool checked;        /* what the other wrote, and not yet said so */
	uint8_t copy[SLOT];
	struct header write; /* of which the check is awaited, unless its length is 0 */
};

struct bird {
	struct board *board;
	int number, count;
	uint64_t random;
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	uint8_t *memory; /* a slot for each other, and one that all may read */
	struct other *others;
	int reading;
	uint64_t operations, messages;
};

static inline void fill(uint8_t *data, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++)
		data[i] = (seed >> (i & 31)) + i * 3;
}

static inline bool filled(const uint8_t *data, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++)
		if (data[i] != (uint8_t)((seed >> (i & 31)) + i * 3))
			return false;
	return true;
}

static inline int random_below(struct bird *bird, int limit)
{
	return random_next(&bird->random) % limit;
}

static inline bool all_finished(const struct bird *bird)
{
	return atomic_load(&bird->board->finished) >= bird->count - (bird->board->doomed >= 0 ? THREADS : 0);
}

static inline void gone(struct bird *bird, struct other *other)
{
	CHECK(atomic_load(&bird->board->killed[other - bird->others]) || all_finished(bird));
	other->gone = true;
}

static inline bool say(struct bird *bird, struct other *other, uint8_t kind, struct header header)
{
	static const int limits[] = {20, 60, 300, PM_MAX_MESSAGE - sizeof(header)};
	uint8_t *buffer;
	header.sequence = other->sent;
	if (kind == PLAIN)
		header.length = random_below(bird, limits[random_below(bird, 4)]);
	size_t body = kind == PLAIN ? header.length : 0;
	int error = pm_reserve(other->peer, sizeof(header) + body, (void **)&buffer);
	if (error == -EHOSTDOWN || error == -EHOSTUNREACH)
		gone(bird, other);
	else
		CHECK(!error || error == -EAGAIN);
	if (error)
		return false;
	memcpy(buffer, &header, sizeof(header));
	fill(buffer + sizeof(header), body, header.seed);
	pm_commit(other->peer, kind);
	other->sent++;
	return true;
}

static inline void take(struct bird *bird, const struct pm_message *message)
{
	struct other *other = pm_peer_data(message->peer);
	struct header header;
	if (!other) {
		struct pm_address from;
		pm_peer_address(message->peer, &from);
		for (int i = 0; i < bird->count; i++)
			if (!memcmp(&from, &bird->board->address[i], sizeof(from)))
				other = &bird->others[i];
		CHECK(other && other->peer == message->peer);
	}
	CHECK(message->length >= sizeof(header));
	memcpy(&header, message->data, sizeof(header));
	CHECK_IS(header.sequence, other->received++);
	bird->messages++;
	if (message->kind == PLAIN) {
		CHECK_IS(message->length, sizeof(header) + header.length);
		CHECK(filled((const uint8_t *)message->data + sizeof(header), header.length, header.seed));
	} else if (message->kind == WRITTEN) {
		CHECK(filled(bird->memory + (other - bird->others) * SLOT + header.where, header.length, header.seed));
		other->checked = true;
	} else if (message->kind == CHECKED) {
		CHECK(other->asked);
		other->written = other->asked = false;
		other->write.length = 0;
	} else {
		other->finished = true;
	}
}

/* Writes into the own slot of the other's memory; when that has ended, the other is told to look. */
static inline void write_there(struct bird *bird, struct other *other)
{
	struct board *board = bird->board;
	int number = other - bird->others;
	if (other->write.length)
		return;
	struct header header = {.length = 1 + random_below(bird, SLOT), .seed = random_next(&bird->random)};
	header.where = random_below(bird, SLOT - header.length + 1);
	fill(other->copy, header.length, header.seed);
	other->write = header;
	int error = pm_write(other->peer, other->copy, header.length, board->memory[number] + bird->number * SLOT + header.where,
			     board->key[number], other);
	if (error)
		other->write.length = 0;
	if (error && error != -EAGAIN) { /* put aside */
		CHECK(error == -EHOSTDOWN || error == -EHOSTUNREACH);
		gone(bird, other);
	}
}

struct reading {
	uint32_t length;
	uint8_t data[];
};

static inline void read_there(struct bird *bird, struct other *other)
{
	struct board *board = bird->board;
	int number = other - bird->others;
	uint32_t length = 1 + random_below(bird, random_below(bird, 4) ? 20000 : READABLE);
	struct reading *reading = calloc(1, sizeof(*reading) + length);
	reading->length = length;
	if (!pm_read(other->peer, reading->data, length, board->memory[number] + MOST * SLOT, board->key[number], reading))
		bird->reading++;
	else
		free(reading);
}

static inline void handle(struct bird *bird, const struct pm_event *event)
{
	struct other *other = NULL;
	for (int i = 0; i < bird->count; i++)
		if (bird->others[i].peer == event->peer)
			other = &bird->others[i];
	CHECK(other);
	bird->operations++;
	if (event->type == PM_PEER_GONE) {
		gone(bird, other);
	} else if (event->type == PM_WRITE_DONE) {
		if (event->status)
			CHECK(atomic_load(&bird->board->killed[other - bird->others]));
		else
			other->written = true;
	} else {
		struct reading *reading = event->cookie;
		bird->reading--;
		if (event->status)
			CHECK(atomic_load(&bird->board->killed[other - bird->others]));
		else
			CHECK(filled(reading->data, reading->length, bird->board->seed + (other - bird->others)));
		free(reading);
	}
}

/* Receives and handles all there is. */
static inline void look(struct bird *bird)
{
	struct pm_message message;
	struct pm_event event;
	while (pm_receive(bird->endpoint, &message)) {
		take(bird, &message);
		pm_release(bird->endpoint, &message);
	}
	while (pm_next_event(bird->endpoint, &event))
		handle(bird, &event);
	for (int i = 0; i < bird->count; i++) {
		struct other *other = &bird->others[i];
		if (other->written && !other->asked && !other->gone)
			other->asked = say(bird, other, WRITTEN, other->write);
		if (other->checked && !other->gone)
			other->checked = !say(bird, other, CHECKED, (struct header){0});
	}
}

static inline bool all_done(struct bird *bird)
{
	bool done = !bird->reading;
	for (int i = 0; i < bird->count; i++) {
		struct other *other = &bird->others[i];
		if (i == bird->number || other->gone)
			continue;
		/* Of a peer that was killed before it could answer, PM knows only if something is said to it. */
		if (other->asked && random_below(bird, 100) == 0)
			say(bird, other, PLAIN, (struct header){.seed = random_next(&bird->random)});
		if (!other->told && !other->write.length && !other->checked && !bird->reading)
			other->told = say(bird, other, FINISHED, (struct header){0});
		done = done && other->told && other->finished;
	}
	return done;
}

static inline void act(struct bird *bird)
{
	struct other *other = &bird->others[random_below(bird, bird->count)];
	if (other->gone || other - bird->others == bird->number)
		return;
	switch (random_below(bird, 16)) {
	case 0:
		write_there(bird, other);
		break;
	case 1:
		if (bird->reading < 32)
			read_there(bird, other);
		break;
	case 2:
		if (random_below(bird, 50) == 0)
			pm_wait(bird->endpoint, 1);
		break;
	default:
		say(bird, other, PLAIN, (struct header){.seed = random_next(&bird->random)});
	}
}

/* Whether so many messages as there have to be have come to each that lives. */
static inline bool all_served(const struct board *board)
{
	for (int i = 0; i < board->processes * THREADS; i++)
		if (!atomic_load(&board->killed[i]) && !atomic_load(&board->served[i]))
			return false;
	return true;
}

static inline void *fly(void *argument)
{
	struct bird *bird = argument;
	struct board *board = bird->board;
	double until = seconds() + board->seconds, longest = until + (network_is_bad() ? 0 : MORE_SECONDS);
	while (seconds() < until || (seconds() < longest && !all_served(board))) {
		if (bird->messages > LEAST_MESSAGES)
			atomic_store(&board->served[bird->number], true);
		for (int i = 0; i < 20; i++)
			act(bird);
		look(bird);
	}
	while (!all_done(bird)) {
		look(bird);
		pm_wait(bird->endpoint, 1);
	}
	/* The others may still read from here. */
	atomic_fetch_add(&board->finished, 1);
	while (!all_finished(bird)) {
		look(bird);
		pm_wait(bird->endpoint, 1);
	}
	return NULL;
}

static inline void open_bird(struct bird *bird, struct board *board, int number, struct pm_context *context)
{
	struct pm_region *region;
	size_t size = MOST * SLOT + READABLE;
	/* Zeroed, as valgrind does not see what others write. */
	*bird = (struct bird){
		.board = board, .number = number, .count = board->processes * THREADS, .random = board->seed + 7919 * number + 1,
		.context = context, .memory = calloc(1, size), .others = calloc(MOST, sizeof(struct other)),
	};
	fill(bird->memory + MOST * SLOT, READABLE, board->seed + number);
	CHECK_IS(pm_endpoint_open(context, &bird->endpoint), 0);
	pm_endpoint_address(bird->endpoint, &board->address[number]);
	CHECK_IS(pm_register(context, bird->memory, size, PM_REMOTE_READ | PM_REMOTE_WRITE, &region), 0);
	board->memory[number] = (uintptr_t)bird->memory;
	board->key[number] = pm_region_key(region);
}

#endif
