/*
 * help.c - large direct reads are shared: one process copies less than memory gives, so the reader asks the owner of
 * the data to copy, too. It sends a HELP and begins at once; if the owner comes, it writes into the reader's memory.
 *
 * Both take chunks from one word of the ring's memory, {serial of the read, next chunk}, by compare-and-swap. A chunk
 * that the owner has claimed it owes: the read does not end, and its memory is not given back, before the owner has
 * counted it in the second word, {serial, done}, or its process is gone. So no write comes late: who claims, holds
 * the read open, and after the last claim, or when the reader closes it early, the word of that serial gives nothing.
 *
 * The owner tells which HELP it has found in the ring, and until it has the reader asks no more: an owner that computes
 * finds one HELP when it comes, not a ring full of them, and reads that it does not see are as they would be without
 * all this. It also means that no owner can sleep until a serial comes again.
 *
 * Checked for all interleavings by model/help.pml.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "internal.h"

struct help {
	uint32_t serial, chunk;
	uint64_t address, key, length, destination;
};

/* Chunks, bytes: a read is cut into two at least, then by these, and by larger ones where that makes more than so many.
 * They are small enough for both sides to end at about the same time, and large enough for a system call each. */
#define LEAST_CHUNK (HELP_LEAST / 2)
#define GOOD_CHUNK (64u << 10)
#define MOST_CHUNK (128u << 10)
#define MANY 16
/* Bytes that are copied in one turn: by the reader for itself, and by the owner, which has other things to do. */
#define OWN_TURN (4u << 20)
#define HELPING_TURN (256u << 10)
/* How often the reader looks for the end of the owner's last chunk before it does something else. */
#define LOOKS 500

/* In the word of what is done: the owner could not copy something that it had claimed. */
#define FAILED (1u << 31)

static inline uint64_t word(uint32_t serial, uint32_t value)
{
	return (uint64_t)serial << 32 | value;
}

static inline uint32_t serial_of(uint64_t of)
{
	return of >> 32;
}

static inline uint32_t value_of(uint64_t of)
{
	return (uint32_t)of;
}

static uint32_t chunk_length(uint64_t length, uint32_t chunk, uint32_t number)
{
	uint64_t left = length - (uint64_t)chunk * number;
	return left < chunk ? left : chunk;
}

static uint32_t chunk_for(uint64_t length)
{
	uint64_t chunk = length < 2 * GOOD_CHUNK ? length / 2 : length < MANY * GOOD_CHUNK ? GOOD_CHUNK : length / MANY;
	chunk = (chunk + 4095) & ~4095ull;
	return chunk < MOST_CHUNK ? chunk : MOST_CHUNK;
}

/* Asks the owner for help with a read that begins; false: it goes on alone. An owner that sleeps is not woken: what it
 * sleeps for may need the processor more. */
bool help_ask(struct outbound *outbound, struct operation *operation)
{
	struct help_wanted *help = &outbound->help;
	struct ring_help *shared = &outbound->ring.memory->help;
	if (operation->alone || operation->done || help->operation || help->forbidden ||
	    atomic_load_explicit(&shared->seen, memory_order_relaxed) != help->serial ||
	    atomic_load_explicit(outbound->asleep, memory_order_relaxed))
		return false;
	operation->alone = true; /* it is asked once */
	uint32_t chunk = chunk_for(operation->length);
	uint64_t chunks = (operation->length + chunk - 1) / chunk;
	void *buffer = chunks < FAILED ? ring_reserve(&outbound->ring, sizeof(struct help)) : NULL;
	if (!buffer)
		return false;
	uint32_t serial = help->serial + 1 ? help->serial + 1 : 1;
	*help = (struct help_wanted){.operation = operation, .serial = serial, .chunk = chunk, .chunks = chunks};
	struct help message = {
		serial, chunk, operation->address, operation->key, operation->length, (uintptr_t)operation->local,
	};
	memcpy(buffer, &message, sizeof(message));
	atomic_store_explicit(&shared->done, word(serial, 0), memory_order_relaxed);
	atomic_store_explicit(&shared->claim, word(serial, 0), memory_order_release);
	ring_commit(&outbound->ring, 0, HELP);
	return true;
}

/* Nothing can be claimed from now on. The word, as it was before, must make sense, or the owner has no say in this
 * read: it can do harm by itself, and has to be believed nothing. */
static int close_claims(struct help_wanted *help, uint64_t before)
{
	uint32_t next = value_of(before);
	help->closed = true;
	help->early = next < help->chunks;
	if (serial_of(before) != help->serial || next > help->chunks || next < help->mine) {
		help->forbidden = true;
		help->theirs = 0;
		return help->status = -EPROTO;
	}
	help->theirs = next - help->mine;
	return 0;
}

static void close_early(struct ring_help *shared, struct help_wanted *help)
{
	if (!help->closed)
		close_claims(help, atomic_exchange(&shared->claim, word(help->serial, help->chunks)));
}

/* Claims a chunk for the reader; false: there are no more. */
static bool claim_mine(struct ring_help *shared, struct help_wanted *help, uint32_t *number)
{
	uint64_t claim = atomic_load_explicit(&shared->claim, memory_order_relaxed);
	do {
		if (serial_of(claim) != help->serial || value_of(claim) >= help->chunks || value_of(claim) < help->mine) {
			close_claims(help, claim);
			return false;
		}
	} while (!atomic_compare_exchange_weak(&shared->claim, &claim, claim + 1));
	help->mine++;
	*number = value_of(claim);
	return true;
}

static int read_chunk(struct outbound *outbound, struct operation *operation, uint32_t number)
{
	struct help_wanted *help = &outbound->help;
	uint64_t offset = (uint64_t)help->chunk * number;
	size_t length = chunk_length(operation->length, help->chunk, number), moved;
	for (; length; length -= moved, offset += moved, operation->done += moved) {
		uint64_t there = operation->address + offset;
		int error = region_check(outbound->page, operation->key, there, length, PM_REMOTE_READ);
		if (!error)
			error = direct_read(outbound, operation->local + offset, there, length, &moved);
		if (error)
			return error;
		count(&outbound->statistics->direct_bytes, moved);
	}
	return 0;
}

/* Whether the owner is done with what it has claimed. */
static bool settled(struct ring_help *shared, struct help_wanted *help, bool *failed)
{
	uint64_t done = atomic_load_explicit(&shared->done, memory_order_acquire);
	uint32_t number = value_of(done) & ~FAILED;
	*failed = value_of(done) & FAILED;
	if (!help->theirs)
		return true;
	if (serial_of(done) != help->serial || number > help->theirs) {
		help->forbidden = true;
		help->status = -EPROTO;
		return true;
	}
	return number == help->theirs;
}

/* All is claimed, by one side or the other: the end, when the owner is done as well. */
static int end(struct outbound *outbound, struct operation *operation)
{
	struct ring_help *shared = &outbound->ring.memory->help;
	struct help_wanted *help = &outbound->help;
	bool failed;
	for (int i = 0; !settled(shared, help, &failed); i++) {
		if (i == LOOKS)
			return 0;
		__builtin_ia32_pause();
	}
	help->operation = NULL;
	if (help->status)
		return help->status;
	if (failed || help->early) {
		/* What is missing is not known, or nobody has it to copy: the reader begins again, alone. Claims are closed
		 * early when the ring is to be left. If the owner was copying just then, the ring is left later, and the read
		 * goes on until it is. */
		operation->done = 0;
		return 0;
	}
	count(&outbound->statistics->direct_bytes, operation->length - operation->done);
	return 1;
}

/* Moves a shared read on, as direct_step does. */
int help_step(struct outbound *outbound, struct operation *operation)
{
	struct ring_help *shared = &outbound->ring.memory->help;
	struct help_wanted *help = &outbound->help;
	uint32_t number;
	for (size_t moved = 0; !help->closed; moved += help->chunk) {
		if (moved >= OWN_TURN)
			return 0;
		if (!claim_mine(shared, help, &number))
			break;
		int error = read_chunk(outbound, operation, number);
		if (error) {
			close_early(shared, help);
			help->status = error;
		}
	}
	return end(outbound, operation);
}

/* The owner's process is gone, and cannot write any more; or it has broken the protocol, and may do what it likes. */
void help_peer_gone(struct pm_peer *peer)
{
	struct outbound *outbound = peer->out;
	if (!outbound || !outbound->help.operation)
		return;
	close_early(&outbound->ring.memory->help, &outbound->help);
	outbound->help.operation = NULL;
}

/* A ring is to be left; false: the owner is copying right now, and end() finds that what is missing has to be copied. What
 * has been copied is copied again. */
bool help_leave(struct outbound *outbound)
{
	bool failed;
	if (!outbound->help.operation)
		return true;
	close_early(&outbound->ring.memory->help, &outbound->help);
	if (!settled(&outbound->ring.memory->help, &outbound->help, &failed))
		return false;
	outbound->help.operation->done = 0;
	outbound->help.operation = NULL;
	return true;
}

/* Before an endpoint is closed, and the memory of its reads given back: nobody may still be writing there. That takes
 * as long as a chunk takes, unless the owner is stopped right there: then it takes until it goes on, or ends. */
void help_settle(struct pm_endpoint *endpoint)
{
	struct pm_peer *peer, *next;
	bool failed;
	HASH_ITER(hh, endpoint->peers, peer, next) {
		struct outbound *outbound = peer->out;
		if (!outbound || !outbound->help.operation)
			continue;
		struct ring_help *shared = &outbound->ring.memory->help;
		close_early(shared, &outbound->help);
		while (!settled(shared, &outbound->help, &failed) && !atomic_load(&outbound->gone))
			sched_yield();
		outbound->help.operation = NULL;
	}
}

/* The owner's side. */

void help_forget(struct pm_endpoint *endpoint, struct inbound *inbound)
{
	if (inbound->help.serial)
		endpoint->helping--;
	inbound->help.serial = 0;
}

/* A peer asks for help. One request at a time: when there is another, the one before has ended. */
void help_handle(struct inbound *inbound, const struct ring_message *message)
{
	struct pm_endpoint *endpoint = inbound->peer->endpoint;
	struct outbound *outbound = inbound->peer->out;
	struct help help;
	if (message->length != sizeof(help)) {
		count_both(&endpoint->statistics->dropped, 1);
		return;
	}
	memcpy(&help, message->data, sizeof(help));
	if (!help.serial || help.chunk < LEAST_CHUNK || help.chunk > MOST_CHUNK || help.length / help.chunk >= FAILED - 1) {
		count_both(&endpoint->statistics->dropped, 1);
		return;
	}
	help_forget(endpoint, inbound);
	/* Only into the process that asks: who made this connection could have named another as the sender. */
	if (outbound && (!outbound->direct || outbound->pid != inbound->pid))
		return; /* and is not asked again */
	atomic_store_explicit(&inbound->ring.memory->help.seen, help.serial, memory_order_relaxed);
	if (!outbound)
		return;
	inbound->help = (struct help_asked){
		.serial = help.serial, .chunk = help.chunk, .chunks = (help.length + help.chunk - 1) / help.chunk,
		.address = help.address, .key = help.key, .length = help.length, .destination = help.destination,
	};
	endpoint->helping++;
	endpoint->busy = true;
}

static bool claim_for_peer(struct ring_help *shared, const struct help_asked *help, uint32_t *number)
{
	uint64_t claim = atomic_load_explicit(&shared->claim, memory_order_relaxed);
	if (help->done >= help->chunks)
		return false;
	do {
		if (serial_of(claim) != help->serial || value_of(claim) >= help->chunks)
			return false;
	} while (!atomic_compare_exchange_weak(&shared->claim, &claim, claim + 1));
	*number = value_of(claim);
	return true;
}

static bool write_chunk(struct outbound *outbound, const struct help_asked *help, uint32_t number)
{
	uint64_t offset = (uint64_t)help->chunk * number;
	size_t length = chunk_length(help->length, help->chunk, number), moved;
	for (; length; length -= moved, offset += moved)
		if (direct_write(outbound, (void *)(uintptr_t)(help->address + offset), help->destination + offset, length, &moved))
			return false;
	return true;
}

/* Copies some of what a peer reads; false: there is no more to do. What would forbid it is looked for before a chunk
 * is claimed, each time: the peer may have ended, or the region may have. */
static bool help_one(struct pm_endpoint *endpoint, struct inbound *inbound)
{
	struct ring_help *shared = &inbound->ring.memory->help;
	struct help_asked *help = &inbound->help;
	struct outbound *outbound = inbound->peer->out;
	size_t nothing;
	uint32_t number;
	if (!outbound || atomic_load(&outbound->gone) || atomic_load(&inbound->gone) || direct_read(outbound, NULL, 0, 0, &nothing))
		return false;
	for (size_t moved = 0; moved < HELPING_TURN; moved += help->chunk) {
		if (region_check(endpoint->context->page, help->key, help->address, help->length, PM_REMOTE_READ) ||
		    !claim_for_peer(shared, help, &number))
			return false;
		bool written = write_chunk(outbound, help, number);
		help->done++;
		atomic_store_explicit(&shared->done, word(help->serial, help->done | (written ? 0 : FAILED)), memory_order_release);
		if (!written)
			return false;
	}
	return true;
}

void help_progress(struct pm_endpoint *endpoint)
{
	for (unsigned i = 0; i < endpoint->inbound_count; i++) {
		struct inbound *inbound = endpoint->inbound[i];
		if (inbound->help.serial && !help_one(endpoint, inbound))
			help_forget(endpoint, inbound);
	}
}
