/*
 * help.c - large reads that both sides share are whole, whatever the owner of the data does meanwhile: it helps, it
 * does not come, it comes late, it is stopped or ends with a part in hand, it fails, it lies.
 *
 * Looks inside the library to see, and to be, an owner at a certain point.
 */
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "../src/internal.h"
#include "pair.h"

#define SIZE (24u << 20)
#define PATIENCE 25.0

struct offer {
	uint64_t address, key;
};

/* What both sides of a test see. */
static struct board {
	_Atomic bool claimed, proceed, finished;
} *board;

static uint8_t pattern(size_t i)
{
	return (uint8_t)(i * 13 + (i >> 9) + (i >> 17));
}

static void check_pattern(const uint8_t *data, size_t from, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (data[i] != pattern(from + i))
			CHECK_IS(i, length);
}

static uint8_t *new_memory(size_t size)
{
	uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	return memory;
}

/* Both sides know each other, and the child has offered its memory. */
static uint8_t *introduce(struct side *side, size_t size, struct offer *offer, struct pm_region **region)
{
	struct pm_message message;
	uint8_t *memory = new_memory(size);
	if (side->number) {
		for (size_t i = 0; i < size; i++)
			memory[i] = pattern(i);
		CHECK_IS(pm_register(side->context, memory, size, PM_REMOTE_READ, region), 0);
		*offer = (struct offer){(uintptr_t)memory, pm_region_key(*region)};
		send_surely(side, 0, offer, sizeof(*offer));
		receive_surely(side, &message);
		pm_release(side->endpoint, &message);
	} else {
		receive_surely(side, &message);
		memcpy(offer, message.data, sizeof(*offer));
		pm_release(side->endpoint, &message);
		send_surely(side, 0, "", 0);
		if (!side->peer->out->direct) {
			puts("cross-memory attach");
			exit(SKIPPED);
		}
	}
	return memory;
}

/* Chunks that the child has copied in the last read. */
static uint32_t helped(struct side *side)
{
	return (uint32_t)atomic_load(&side->peer->out->ring.memory->help.done);
}

static void end_of_read(struct side *side, int status)
{
	struct pm_event event;
	event_surely(side, &event);
	CHECK_IS(event.type, PM_READ_DONE);
	CHECK_IS(event.status, status);
}

static void stay_until_told(struct side *side)
{
	struct pm_message message;
	receive_surely(side, &message);
	pm_release(side->endpoint, &message);
}

/* Reads of many sizes, one and several at once, while the owner receives: it helps with some. */
static void shared(struct side *side)
{
	enum { MOST = 5 << 20, AT_ONCE = 3 };
	struct offer offer;
	struct pm_region *region;
	uint64_t random = 77, chunks = 0;
	uint8_t *memory = introduce(side, MOST, &offer, &region), *copies[AT_ONCE];
	if (side->number) {
		stay_until_told(side);
		check_pattern(memory, 0, MOST);
		return;
	}
	for (int i = 0; i < AT_ONCE; i++)
		copies[i] = new_memory(MOST + 2);
	double began = seconds();
	for (int round = 0; !chunks || (round < 100 && seconds() - began < 5); round++) {
		int n = 1 + random_next(&random) % AT_ONCE;
		size_t length[AT_ONCE], from[AT_ONCE];
		CHECK(seconds() - began < PATIENCE);
		for (int i = 0; i < n; i++) {
			length[i] = random_next(&random) % (round % 20 ? 400000 : MOST) + 1;
			if (round % 3 == 0 && length[i] < MOST - 4096)
				length[i] = length[i] & ~4095ull ? length[i] & ~4095ull : 4096;
			from[i] = random_next(&random) % (MOST - length[i] + 1);
			memset(copies[i], 1, length[i] + 2);
			CHECK_IS(pm_read(side->peer, copies[i] + 1, length[i], offer.address + from[i], offer.key, NULL), 0);
		}
		for (int i = 0; i < n; i++)
			end_of_read(side, 0);
		for (int i = 0; i < n; i++) {
			check_pattern(copies[i] + 1, from[i], length[i]);
			CHECK(copies[i][0] == 1 && copies[i][length[i] + 1] == 1);
		}
		chunks += helped(side);
	}
	struct pm_statistics statistics;
	pm_statistics(side->endpoint, &statistics);
	CHECK_IS(statistics.direct_bytes, (long long)statistics.read_bytes);
	send_surely(side, 0, "", 0);
}

/* The owner does not receive; when it does, it finds a request that is long over, and writes nothing. */
static void late(struct side *side)
{
	enum { LENGTH = 1 << 20 };
	struct offer offer;
	struct pm_region *region;
	char c;
	uint8_t *memory = introduce(side, LENGTH, &offer, &region);
	if (side->number) {
		hear(side, &c, 1);
		stay_until_told(side);
		return;
	}
	for (int i = 0; i < 20; i++) {
		memset(memory, 0, LENGTH);
		CHECK_IS(pm_read(side->peer, memory, LENGTH, offer.address, offer.key, NULL), 0);
		end_of_read(side, 0);
		check_pattern(memory, 0, LENGTH);
		CHECK_IS(helped(side), 0);
	}
	CHECK_IS(side->peer->out->help.serial, 1); /* it was not asked again */
	memset(memory, 0, LENGTH);
	tell(side, "x", 1);
	for (double began = seconds(); seconds() - began < 0.1;)
		for (int i = 0; i < LENGTH; i += 4096)
			CHECK_IS(memory[i], 0);
	send_surely(side, 0, "", 0);
}

/* The region ends in the middle of a read, which ends well or not; nothing comes after its end. */
static void deregistered(struct side *side)
{
	struct offer offer;
	struct pm_region *region;
	struct pm_message message;
	struct pm_event event;
	char c;
	uint8_t *memory = introduce(side, SIZE, &offer, &region);
	if (side->number) {
		for (int i = 0; i < 100000 && !side->endpoint->helping; i++)
			CHECK_IS(pm_receive(side->endpoint, &message), 0);
		CHECK_IS(pm_deregister(region), 0);
		tell(side, "x", 1);
		stay_until_told(side);
		return;
	}
	CHECK_IS(pm_read(side->peer, memory, SIZE, offer.address, offer.key, NULL), 0);
	event_surely(side, &event);
	hear(side, &c, 1); /* the other no longer waits to be asked */
	CHECK(event.status == 0 || event.status == -EACCES);
	memset(memory, 0, SIZE);
	for (double began = seconds(); seconds() - began < 0.05;)
		for (size_t i = 0; i < SIZE; i += 4096)
			CHECK_IS(memory[i], 0);
	send_surely(side, 0, "", 0);
}

/* A connection that another process has made in the peer's name gets no help. */
static void other_process(struct side *side)
{
	enum { LENGTH = 1 << 20 };
	struct offer offer;
	struct pm_region *region;
	uint8_t *memory = introduce(side, LENGTH, &offer, &region);
	if (side->number) {
		side->endpoint->inbound[0]->pid = 1;
		meet(side);
		stay_until_told(side);
		CHECK_IS(side->endpoint->inbound[0]->help.serial, 0);
		return;
	}
	meet(side);
	for (int i = 0; i < 20; i++) {
		CHECK_IS(pm_read(side->peer, memory, LENGTH, offer.address, offer.key, NULL), 0);
		end_of_read(side, 0);
		CHECK_IS(helped(side), 0);
	}
	send_surely(side, 0, "", 0);
}

/* What follows is about an owner at a certain point: it is played by the child, which does not receive until that read has ended. */

/* Claims a chunk of a read that is under way; its number. */
static uint32_t claim_one(struct side *side, uint32_t *serial)
{
	struct ring_help *words = &side->endpoint->inbound[0]->ring.memory->help;
	for (double began = seconds(); seconds() - began < PATIENCE;) {
		uint64_t claim = atomic_load(&words->claim);
		*serial = claim >> 32;
		if (*serial && (uint32_t)claim < 100 && atomic_compare_exchange_strong(&words->claim, &claim, claim + 1)) {
			atomic_store(&board->claimed, true);
			return (uint32_t)claim;
		}
		atomic_store(&words->seen, *serial); /* that one has been missed: the reader may ask again */
	}
	CHECK(!"no read to be shared has come");
	return 0;
}

static void write_one(struct side *side, uint8_t *memory, uint32_t number)
{
	struct ring_message message;
	struct { uint32_t serial, chunk; uint64_t address, key, length, destination; } help;
	size_t moved;
	/* The last of what is in the ring is the request. */
	struct ring_reader reader = side->endpoint->inbound[0]->ring;
	while (ring_peek(&reader, &message, PM_MAX_MESSAGE)) {
		CHECK_IS(message.type, HELP);
		memcpy(&help, message.data, sizeof(help));
		ring_take(&reader, message.length);
	}
	size_t at = (size_t)help.chunk * number;
	CHECK_IS(direct_write(side->peer->out, memory + at, help.destination + at, help.chunk, &moved), 0);
	CHECK_IS(moved, help.chunk);
}

static void say_done(struct side *side, uint32_t serial, uint32_t done)
{
	atomic_store(&side->endpoint->inbound[0]->ring.memory->help.done, (uint64_t)serial << 32 | done);
}

/* Reads until the child has claimed something of a read. */
static void read_until_claimed(struct side *side, uint8_t *memory, const struct offer *offer)
{
	struct pm_event event;
	struct pm_message message;
	while (!atomic_load(&board->claimed)) {
		memset(memory, 0, SIZE);
		CHECK_IS(pm_read(side->peer, memory, SIZE, offer->address, offer->key, NULL), 0);
		while (!atomic_load(&board->claimed) && !pm_next_event(side->endpoint, &event))
			CHECK_IS(pm_receive(side->endpoint, &message), 0);
	}
}

static void no_end_for(struct side *side, double time)
{
	struct pm_event event;
	struct pm_message message;
	for (double began = seconds(); seconds() - began < time;) {
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
		CHECK_IS(pm_next_event(side->endpoint, &event), 0);
	}
}

/* The child waits here until the parent lets it go on. */
static void await_proceed(void)
{
	while (!atomic_load(&board->proceed))
		usleep(1000);
}

static void stopped(struct side *side)
{
	struct offer offer;
	struct pm_region *region;
	uint32_t serial, number;
	uint8_t *memory = introduce(side, SIZE, &offer, &region);
	if (side->number) {
		number = claim_one(side, &serial);
		raise(SIGSTOP);
		write_one(side, memory, number);
		say_done(side, serial, 1);
		meet(side);
		return;
	}
	read_until_claimed(side, memory, &offer);
	pid_t child = waitpid(-1, NULL, WUNTRACED);
	CHECK(child > 0);
	no_end_for(side, 0.3);
	CHECK_IS(pm_peer_status(side->peer), 0);
	kill(child, SIGCONT);
	end_of_read(side, 0);
	check_pattern(memory, 0, SIZE);
	meet(side);
}

static void ended(struct side *side)
{
	struct offer offer;
	struct pm_region *region;
	uint32_t serial;
	uint8_t *memory = introduce(side, SIZE, &offer, &region);
	if (side->number) {
		claim_one(side, &serial);
		await_proceed();
		_exit(0);
	}
	read_until_claimed(side, memory, &offer);
	no_end_for(side, 0.05);
	atomic_store(&board->proceed, true);
	end_of_read(side, -EHOSTDOWN);
	CHECK_IS(pm_context_close(side->context), 0);
	side->context = NULL;
}

/* An owner that could not write what it had claimed says so, and the reader reads all by itself. */
static void failed(struct side *side)
{
	struct offer offer;
	struct pm_region *region;
	uint32_t serial;
	uint8_t *memory = introduce(side, SIZE, &offer, &region);
	if (side->number) {
		claim_one(side, &serial);
		say_done(side, serial, 1u << 31 | 1);
		meet(side);
		return;
	}
	read_until_claimed(side, memory, &offer);
	end_of_read(side, 0);
	check_pattern(memory, 0, SIZE);
	meet(side);
}

/* The ring is to be left while the owner copies, so claims are closed before all of them were made. The read is not taken for
 * whole when the owner is done. */
static void left(struct side *side)
{
	struct offer offer;
	struct pm_region *region;
	uint32_t serial, number;
	uint8_t *memory = introduce(side, SIZE, &offer, &region);
	if (side->number) {
		number = claim_one(side, &serial);
		await_proceed();
		write_one(side, memory, number);
		say_done(side, serial, 1);
		meet(side);
		return;
	}
	read_until_claimed(side, memory, &offer);
	CHECK(!help_leave(side->peer->out));

	atomic_store(&board->proceed, true);
	end_of_read(side, 0);
	check_pattern(memory, 0, SIZE);
	meet(side);
}

/* More is said to be done than was claimed: nothing of it is believed, and the owner is not asked again. */
static void lying(struct side *side)
{
	struct offer offer;
	struct pm_region *region;
	uint32_t serial;
	uint8_t *memory = introduce(side, SIZE, &offer, &region);
	if (side->number) {
		claim_one(side, &serial);
		say_done(side, serial, 2);
		meet(side);
		return;
	}
	read_until_claimed(side, memory, &offer);
	end_of_read(side, -EPROTO);
	uint32_t asked = side->peer->out->help.serial;
	CHECK_IS(pm_read(side->peer, memory, SIZE, offer.address, offer.key, NULL), 0);
	end_of_read(side, 0);
	check_pattern(memory, 0, SIZE);
	CHECK_IS(side->peer->out->help.serial, asked);
	meet(side);
}

/* An endpoint is not closed while somebody may still write. */
static void closing(struct side *side)
{
	struct offer offer;
	struct pm_region *region;
	uint32_t serial, number;
	uint8_t *memory = introduce(side, SIZE, &offer, &region);
	if (side->number) {
		number = claim_one(side, &serial);
		await_proceed();
		usleep(100000);
		write_one(side, memory, number);
		atomic_store(&board->finished, true);
		say_done(side, serial, 1);
		return;
	}
	read_until_claimed(side, memory, &offer);
	atomic_store(&board->proceed, true);
	CHECK_IS(pm_endpoint_close(side->endpoint), 0);
	CHECK(atomic_load(&board->finished));
}

int main(void)
{
	static void (*const played[])(struct side *) = {stopped, ended, failed, left, lying, closing};
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(board != MAP_FAILED);
	pair_run(NULL, shared);
	pair_run(NULL, late);
	pair_run(NULL, deregistered);
	pair_run(NULL, other_process);
	for (size_t i = 0; i < sizeof(played) / sizeof(played[0]); i++) {
		memset(board, 0, sizeof(*board));
		pair_run(NULL, played[i]);
	}
	return 0;
}
