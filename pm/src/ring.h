/*
 * ring.h - the queue through which one process sends messages to one other: memory that both map, written by one
 * side and read by the other, without locks, system calls or atomic read-modify-writes.
 *
 * The memory is, in this order: a line that the reader writes (how much it has taken), a line for help.c, cells of one cache line each,
 * and data, a byte ring. A message takes one cell. Its control word holds the cell's number, so that what a cell held
 * one lap earlier is never taken for a message, and it is written last: a short message arrives with the one cache
 * line that its reader polls. A message that does not fit into the cell lies in the data ring, whole and in order;
 * its place is not told but counted by both sides, so that nothing a hostile writer can write makes the reader look
 * outside. The same holds the other way: what a reader claims to have taken is checked before it is believed.
 */
#ifndef PM_RING_H
#define PM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_LINE 64
/* Bytes of a message that fit into its cell. */
#define RING_INLINE 56
/* A cell for so many bytes of data. */
#define RING_DATA_PER_CELL 512

struct ring_cell {
	_Atomic uint64_t control; /* number of the cell + 1 (low 32 bits), kind, type, length: see ring_control */
	uint8_t payload[RING_INLINE];
};

/* What the reader tells: both count up for ever. */
struct ring_taken {
	_Alignas(RING_LINE) _Atomic uint64_t cells;
	_Atomic uint64_t bytes;
};

/* Who does which part of a large read that both sides share (help.c). Two words have the read's serial above. */
struct ring_help {
	_Alignas(RING_LINE) _Atomic uint64_t claim; /* the next part that nobody has claimed */
	_Atomic uint64_t done;                      /* parts that the ring's reader has claimed and is done with */
	_Atomic uint32_t seen;                      /* serial of the last request that it has found in the ring */
};

struct ring_memory {
	_Alignas(2 * RING_LINE) struct ring_taken taken;
	struct ring_help help;
	_Alignas(2 * RING_LINE) struct ring_cell cells[];
};

struct ring_writer {
	struct ring_memory *memory;
	uint8_t *data;
	uint64_t cell, byte;             /* next to be written */
	uint64_t cells_taken, bytes_taken; /* as last seen */
	uint64_t start;                  /* byte at which the reserved message begins */
	uint32_t cell_mask, data_mask;
	uint32_t length;                 /* of the reserved message */
	bool broken;                     /* the reader has claimed what cannot be */
	bool far;                        /* the next cell's line has not been asked for (ring_fetch) */
};

struct ring_reader {
	struct ring_memory *memory;
	uint8_t *data;
	uint64_t cell, byte;             /* next to be read */
	uint64_t cells_told, bytes_told; /* as last told to the writer */
	uint32_t cell_mask, data_mask;
	bool broken;                     /* the writer has written what cannot be */
};

static inline uint32_t ring_cells(uint32_t data_bytes)
{
	return data_bytes / RING_DATA_PER_CELL;
}

/* Bytes of memory for a ring with so much data, a power of two. */
static inline size_t ring_size(uint32_t data_bytes)
{
	return offsetof(struct ring_memory, cells) + (size_t)ring_cells(data_bytes) * sizeof(struct ring_cell) + data_bytes;
}

static inline uint8_t *ring_data(struct ring_memory *memory, uint32_t data_bytes)
{
	return (uint8_t *)(memory->cells + ring_cells(data_bytes));
}

static inline void ring_writer_open(struct ring_writer *writer, void *memory, uint32_t data_bytes)
{
	*writer = (struct ring_writer){
		.memory = memory, .data = ring_data(memory, data_bytes),
		.cell_mask = ring_cells(data_bytes) - 1, .data_mask = data_bytes - 1,
	};
}

static inline void ring_reader_open(struct ring_reader *reader, void *memory, uint32_t data_bytes)
{
	*reader = (struct ring_reader){
		.memory = memory, .data = ring_data(memory, data_bytes),
		.cell_mask = ring_cells(data_bytes) - 1, .data_mask = data_bytes - 1,
	};
}

static inline uint64_t ring_control(uint64_t cell, uint8_t kind, uint8_t type, uint32_t length)
{
	return (uint64_t)(uint32_t)(cell + 1) << 32 | (uint64_t)kind << 24 | (uint64_t)type << 16 | (length & 0xffff);
}

static inline uint64_t ring_lines(uint32_t length)
{
	return (length + (uint64_t)RING_LINE - 1) & ~(uint64_t)(RING_LINE - 1);
}

/* Where a message of so many bytes begins, if the next free byte of the data ring is this: never over the end. */
static inline uint64_t ring_place(uint64_t byte, uint32_t length, uint32_t data_mask)
{
	uint64_t left = (uint64_t)data_mask + 1 - (byte & data_mask);
	return ring_lines(length) > left ? byte + left : byte;
}

/* Looks how far the reader is. The bytes may be newer than the cells, so both are acquired: what is written over has been read. */
static inline void ring_writer_look(struct ring_writer *writer)
{
	uint64_t cells = atomic_load_explicit(&writer->memory->taken.cells, memory_order_acquire);
	uint64_t bytes = atomic_load_explicit(&writer->memory->taken.bytes, memory_order_acquire);
	if (writer->cell - cells > (uint64_t)writer->cell_mask + 1 || writer->byte - bytes > (uint64_t)writer->data_mask + 1) {
		writer->broken = true;
		return;
	}
	writer->cells_taken = cells;
	writer->bytes_taken = bytes;
}

static inline bool ring_has_cell(const struct ring_writer *writer)
{
	return writer->cell - writer->cells_taken <= writer->cell_mask;
}

static inline bool ring_has_bytes(const struct ring_writer *writer)
{
	return writer->start + ring_lines(writer->length) - writer->bytes_taken <= (uint64_t)writer->data_mask + 1;
}

/* Room for a message of length bytes, at most half of the data ring; NULL: none now. */
static inline void *ring_reserve(struct ring_writer *writer, uint32_t length)
{
	if (__builtin_expect(!ring_has_cell(writer), 0)) {
		ring_writer_look(writer);
		if (!ring_has_cell(writer))
			return NULL;
	}
	writer->length = length;
	if (__builtin_expect(length <= RING_INLINE, 1))
		return writer->memory->cells[writer->cell & writer->cell_mask].payload;
	writer->start = ring_place(writer->byte, length, writer->data_mask);
	if (!ring_has_bytes(writer)) {
		ring_writer_look(writer);
		if (!ring_has_bytes(writer))
			return NULL;
	}
	return writer->data + (writer->start & writer->data_mask);
}

/* Hands the reserved message to the reader. */
static inline void ring_commit(struct ring_writer *writer, uint8_t kind, uint8_t type)
{
	uint64_t cell = writer->cell++;
	if (writer->length > RING_INLINE)
		writer->byte = writer->start + ring_lines(writer->length);
	writer->far = true;
	atomic_store_explicit(&writer->memory->cells[cell & writer->cell_mask].control,
			      ring_control(cell, kind, type, writer->length), memory_order_release);
}

/* Has the line of the next cell come here while the caller looks at a message, which it may answer: the reader of that
 * cell has it, as it looks for the answer there, and a write would have to wait for it. Once for each message sent, so
 * that who only receives leaves it to those who look (docs/design/pm-latency.md). */
static inline void ring_fetch(struct ring_writer *writer)
{
	if (!writer->far)
		return;
	writer->far = false;
	const struct ring_cell *next = &writer->memory->cells[writer->cell & writer->cell_mask];
#ifdef __x86_64__
	/* That of the compiler asks for no more than reading, where it does not know that the processor can do better; one
	 * that cannot takes it for nothing. */
	__asm__ volatile("prefetchw (%0)" : : "r"(next));
#else
	__builtin_prefetch(next, 1);
#endif
}

/* A message in a ring. */
struct ring_message {
	void *data;
	uint32_t length;
	uint8_t kind, type;
};

static inline bool ring_ready(const struct ring_reader *reader)
{
	uint64_t control = atomic_load_explicit(&reader->memory->cells[reader->cell & reader->cell_mask].control,
						memory_order_acquire);
	return control >> 32 == (uint32_t)(reader->cell + 1);
}

/* The next message, left where it is until ring_take; false: none now. longest: no message may be longer. */
static inline bool ring_peek(struct ring_reader *reader, struct ring_message *message, uint32_t longest)
{
	struct ring_cell *cell = &reader->memory->cells[reader->cell & reader->cell_mask];
	uint64_t control = atomic_load_explicit(&cell->control, memory_order_acquire);
	if (control >> 32 != (uint32_t)(reader->cell + 1))
		return false;
	message->length = control & 0xffff;
	message->type = control >> 16;
	message->kind = control >> 24;
	message->data = cell->payload;
	if (message->length > RING_INLINE) {
		if (__builtin_expect(message->length > longest || reader->broken, 0)) {
			reader->broken = true;
			return false;
		}
		message->data = reader->data + (ring_place(reader->byte, message->length, reader->data_mask) & reader->data_mask);
	}
	return true;
}

/* Tells the writer what has been taken. */
static inline void ring_tell(struct ring_reader *reader)
{
	reader->cells_told = reader->cell;
	reader->bytes_told = reader->byte;
	atomic_store_explicit(&reader->memory->taken.bytes, reader->byte, memory_order_release);
	atomic_store_explicit(&reader->memory->taken.cells, reader->cell, memory_order_release);
}

/* Gives the message that was peeked at back, length as it was. The writer is told of every quarter of the ring, so
 * that the line that both use seldom moves between their caches. */
static inline void ring_take(struct ring_reader *reader, uint32_t length)
{
	reader->cell++;
	if (length > RING_INLINE)
		reader->byte = ring_place(reader->byte, length, reader->data_mask) + ring_lines(length);
	if (reader->cell - reader->cells_told > reader->cell_mask / 4 || reader->byte - reader->bytes_told > reader->data_mask / 4)
		ring_tell(reader);
}

#endif
