/* ring.c - the queue of src/ring.h by itself, both ends in one thread: laps, long messages among short ones, a full ring,
 * and when the line of the next cell is asked for. */
#include <stdlib.h>

#include "ring.h"
#include "test.h"

#define DATA 65536
#define CELLS (DATA / RING_DATA_PER_CELL)
#define LONG (2 * RING_INLINE)

struct pair {
	struct ring_writer writer;
	struct ring_reader reader;
};

static void open_pair(struct pair *pair)
{
	void *memory = aligned_alloc(_Alignof(struct ring_memory), ring_size(DATA));
	CHECK(memory);
	memset(memory, 0, ring_size(DATA));
	ring_writer_open(&pair->writer, memory, DATA);
	ring_reader_open(&pair->reader, memory, DATA);
}

static bool put(struct pair *pair, uint8_t kind, uint32_t length)
{
	void *room = ring_reserve(&pair->writer, length);
	if (!room)
		return false;
	memset(room, kind, length);
	ring_commit(&pair->writer, kind, 0);
	return true;
}

static void get(struct pair *pair, uint8_t kind, uint32_t length)
{
	struct ring_message message;
	CHECK(ring_peek(&pair->reader, &message, DATA / 2));
	CHECK_IS(message.kind, kind);
	CHECK_IS(message.length, length);
	for (uint32_t i = 0; i < length; i++)
		CHECK_IS(((uint8_t *)message.data)[i], kind);
	ring_take(&pair->reader, length);
}

static uint32_t length_of(unsigned number)
{
	return number % 3 ? number % RING_INLINE : LONG;
}

/* Filled up and emptied at each place of the ring. */
static void test_laps(void)
{
	struct pair pair;
	struct ring_message message;
	unsigned written = 0, read = 0;
	open_pair(&pair);
	while (read < 3 * CELLS) {
		while (put(&pair, written, length_of(written)))
			written++;
		CHECK_IS(written - read, CELLS);
		do
			get(&pair, read, length_of(read));
		while (++read % (CELLS / 4 + 1));
		ring_tell(&pair.reader);
	}
	for (; read < written; read++)
		get(&pair, read, length_of(read));
	CHECK(!ring_peek(&pair.reader, &message, DATA / 2));
	free(pair.writer.memory);
}

/* Once for each message that is written, and not before the first. */
static void test_fetch(void)
{
	struct pair pair;
	open_pair(&pair);
	for (unsigned i = 0; i < 2 * CELLS; i++) {
		ring_fetch(&pair.writer);
		CHECK(!pair.writer.far);
		CHECK(put(&pair, i, 1));
		CHECK(pair.writer.far);
		get(&pair, i, 1);
	}
	free(pair.writer.memory);
}

int main(void)
{
	test_laps();
	test_fetch();
	return 0;
}
