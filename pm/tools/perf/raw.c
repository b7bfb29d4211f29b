/*
 * raw.c - what PM is compared with: a flag that goes to and fro in one cache line, and memcpy.
 */
#include "perf.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct flag_line {
	_Alignas(64) _Atomic uint64_t flag; /* odd: the client wrote last */
};

struct flag_line *flag_line_map(void)
{
	struct flag_line *line = mmap(NULL, sizeof *line, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (line == MAP_FAILED)
		fail(-errno, "map a shared cache line");
	return line;
}

static void wait_for(struct flag_line *line, uint64_t value)
{
	while (atomic_load_explicit(&line->flag, memory_order_acquire) != value)
		if (give_way)
			sched_yield();
}

/* Each batch begins where the one before ended, so that no value is ever seen twice. */
double flag_round_trips(struct flag_line *line, long count)
{
	uint64_t value = atomic_load(&line->flag);
	double begin = now();
	for (long i = 0; i < count; i++, value += 2) {
		atomic_store_explicit(&line->flag, value + 1, memory_order_release);
		wait_for(line, value + 2);
	}
	return now() - begin;
}

void flag_answer(struct flag_line *line, long count)
{
	/* The client may have begun already: the batch's first value is the even one. */
	uint64_t value = atomic_load(&line->flag) & ~UINT64_C(1);
	for (long i = 0; i < count; i++, value += 2) {
		wait_for(line, value + 1);
		atomic_store_explicit(&line->flag, value + 2, memory_order_release);
	}
}

double memory_copies(size_t size, long count)
{
	static char *from, *to;
	static size_t room;
	if (size > room) {
		free(from);
		free(to);
		from = malloc(size);
		to = malloc(size);
		if (!from || !to)
			fail(-ENOMEM, "two buffers of %zu bytes", size);
		memset(from, 1, size);
		memset(to, 2, size);
		room = size;
	}
	double begin = now();
	for (long i = 0; i < count; i++) {
		memcpy(to, from, size);
		__asm__ volatile("" : : "r"(to), "r"(from) : "memory"); /* lest the copies be merged */
	}
	return now() - begin;
}
