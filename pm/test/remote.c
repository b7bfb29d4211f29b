/* remote.c - remote memory is read and written whole, directly and by copies, and only where a key allows it. */
#include <stdbool.h>
#include <sys/mman.h>

#include "pair.h"

#define SIZE (3u << 20)

static uint8_t pattern(size_t i, unsigned seed)
{
	return (uint8_t)(i * 13 + (i >> 9) + seed);
}

struct offer {
	uint64_t address, key;
};

/* The child offers memory, and receives until the parent has done what it does with it. */
static void offering(struct side *side, unsigned access, uint8_t *memory, size_t size)
{
	struct pm_region *region;
	struct pm_message message;
	CHECK_IS(pm_register(side->context, memory, size, access, &region), 0);
	struct offer offer = {(uintptr_t)memory, pm_region_key(region)};
	tell(side, &offer, sizeof(offer));
	receive_surely(side, &message);
	pm_release(side->endpoint, &message);
	CHECK_IS(pm_deregister(region), 0);
}

static void finished(struct side *side)
{
	send_surely(side, 0, "", 0);
}

static int status_of(struct side *side, enum pm_event_type type, void *cookie)
{
	struct pm_event event;
	event_surely(side, &event);
	CHECK_IS(event.type, type);
	CHECK(event.cookie == cookie && event.peer == side->peer);
	return event.status;
}

static void whole(struct side *side)
{
	uint8_t *memory = malloc(SIZE);
	struct offer offer;
	if (side->number) {
		for (size_t i = 0; i < SIZE; i++)
			memory[i] = pattern(i, 1);
		offering(side, PM_REMOTE_READ | PM_REMOTE_WRITE, memory, SIZE);
		for (size_t i = 0; i < SIZE; i++)
			CHECK_IS(memory[i], i >= 5 && i < SIZE - 3 ? pattern(i, 2) : pattern(i, 1));
		free(memory);
		return;
	}
	hear(side, &offer, sizeof(offer));
	CHECK_IS(pm_read(side->peer, memory, SIZE, offer.address, offer.key, memory), 0);
	CHECK_IS(status_of(side, PM_READ_DONE, memory), 0);
	for (size_t i = 0; i < SIZE; i++)
		CHECK_IS(memory[i], pattern(i, 1));
	for (size_t i = 0; i < SIZE; i++)
		memory[i] = pattern(i, 2);
	CHECK_IS(pm_write(side->peer, memory + 5, SIZE - 8, offer.address + 5, offer.key, &offer), 0);
	CHECK_IS(status_of(side, PM_WRITE_DONE, &offer), 0);
	CHECK_IS(pm_write(side->peer, memory, 0, offer.address, offer.key, NULL), 0);
	CHECK_IS(status_of(side, PM_WRITE_DONE, NULL), 0);
	finished(side);
	free(memory);
}

/* Many at once, of all sizes, in both directions. */
static void many(struct side *side)
{
	enum { COUNT = 500, PART = 40000 };
	uint8_t *memory = malloc(COUNT * PART), *copy = malloc(COUNT * PART);
	struct pm_event event;
	struct pm_message message;
	struct offer offer;
	struct pm_region *region;
	for (size_t i = 0; i < COUNT * PART; i++)
		memory[i] = pattern(i, side->number);
	CHECK_IS(pm_register(side->context, memory, COUNT * PART, PM_REMOTE_READ, &region), 0);
	offer = (struct offer){(uintptr_t)memory, pm_region_key(region)};
	tell(side, &offer, sizeof(offer));
	hear(side, &offer, sizeof(offer));
	for (int i = 0; i < COUNT; i++)
		CHECK_IS(pm_read(side->peer, copy + i * PART, PART - i, offer.address + i * PART, offer.key, copy + i), 0);
	int other_finished = 0;
	for (int ended = 0; ended < COUNT;) {
		if (pm_receive(side->endpoint, &message)) {
			other_finished++;
			pm_release(side->endpoint, &message);
		}
		while (pm_next_event(side->endpoint, &event)) {
			CHECK_IS(event.status, 0);
			ended++;
		}
	}
	for (int i = 0; i < COUNT; i++)
		for (int j = 0; j < PART - i; j++)
			CHECK_IS(copy[i * PART + j], pattern(i * PART + j, !side->number));
	/* The other side may still read. */
	struct iovec nothing = {NULL, 0};
	bool told = false;
	while (!told || !other_finished) {
		told = told || !pm_send(side->peer, 0, &nothing, 1);
		if (pm_receive(side->endpoint, &message)) {
			other_finished++;
			pm_release(side->endpoint, &message);
		}
	}
	CHECK_IS(pm_deregister(region), 0);
	free(memory);
	free(copy);
	struct pm_statistics statistics;
	pm_statistics(side->endpoint, &statistics);
	CHECK_IS(statistics.reads, COUNT);
	check_rails(&statistics, true, COUNT, statistics.read_bytes);
}

static void refused(struct side *side)
{
	static uint8_t memory[4096];
	struct offer offer;
	if (side->number) {
		offering(side, PM_REMOTE_READ, memory, sizeof(memory) - 1);
		return;
	}
	hear(side, &offer, sizeof(offer));
	uint64_t bad[][3] = {
		/* address, length, key */
		{offer.address, sizeof(memory), offer.key}, {offer.address - 1, 8, offer.key},
		{offer.address + sizeof(memory), 0, offer.key}, {offer.address, 8, offer.key + 1},
		{offer.address, 8, offer.key + (1 << 14)}, {offer.address, 8, 0}, {offer.address, 8, UINT64_MAX},
		{UINT64_MAX - 2, 8, offer.key},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK_IS(pm_read(side->peer, memory, bad[i][1], bad[i][0], bad[i][2], NULL), 0);
		CHECK_IS(status_of(side, PM_READ_DONE, NULL), -EACCES);
	}
	CHECK_IS(pm_write(side->peer, memory, 8, offer.address, offer.key, NULL), 0);
	CHECK_IS(status_of(side, PM_WRITE_DONE, NULL), -EACCES);
	CHECK_IS(pm_read(side->peer, memory, sizeof(memory) - 1, offer.address, offer.key, NULL), 0);
	CHECK_IS(status_of(side, PM_READ_DONE, NULL), 0);
	finished(side);
}

/* A region ends; its key opens nothing, also when its place in the table is used again. */
static void stale(struct side *side)
{
	static uint8_t memory[64];
	struct pm_region *region;
	struct offer offer;
	if (side->number) {
		CHECK_IS(pm_register(side->context, memory, sizeof(memory), PM_REMOTE_READ, &region), 0);
		offer = (struct offer){(uintptr_t)memory, pm_region_key(region)};
		CHECK_IS(pm_deregister(region), 0);
		CHECK_IS(pm_register(side->context, memory, sizeof(memory), PM_REMOTE_READ, &region), 0);
		CHECK(pm_region_key(region) != offer.key);
		tell(side, &offer, sizeof(offer));
		struct pm_message message;
		receive_surely(side, &message);
		pm_release(side->endpoint, &message);
		return;
	}
	hear(side, &offer, sizeof(offer));
	CHECK_IS(pm_read(side->peer, memory, 8, offer.address, offer.key, NULL), 0);
	CHECK_IS(status_of(side, PM_READ_DONE, NULL), -EACCES);
	finished(side);
}

/* A region is taken away while it is read, and its memory with it: the read ends well or is refused, and who had the
 * memory looks there no more. */
static void taken_away(struct side *side)
{
	enum { LENGTH = 2 << 20, TIMES = 50 };
	uint64_t random = 11;
	uint8_t *copy = malloc(LENGTH);
	for (int i = 0; i < TIMES; i++) {
		struct offer offer;
		if (side->number) {
			struct pm_region *region;
			struct pm_message message;
			uint8_t *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			CHECK(memory != MAP_FAILED);
			for (size_t j = 0; j < LENGTH; j++)
				memory[j] = pattern(j, i);
			CHECK_IS(pm_register(side->context, memory, LENGTH, PM_REMOTE_READ, &region), 0);
			offer = (struct offer){(uintptr_t)memory, pm_region_key(region)};
			tell(side, &offer, sizeof(offer));
			for (int looks = random_next(&random) % 2000; looks; looks--)
				CHECK_IS(pm_receive(side->endpoint, &message), 0);
			CHECK_IS(pm_deregister(region), 0);
			CHECK(!munmap(memory, LENGTH));
			tell(side, "x", 1);
			receive_surely(side, &message);
			pm_release(side->endpoint, &message);
		} else {
			char gone;
			hear(side, &offer, sizeof(offer));
			CHECK_IS(pm_read(side->peer, copy, LENGTH, offer.address, offer.key, copy), 0);
			int status = status_of(side, PM_READ_DONE, copy);
			CHECK(!status || status == -EACCES);
			for (size_t j = 0; !status && j < LENGTH; j++)
				CHECK_IS(copy[j], pattern(j, i));
			hear(side, &gone, 1);
			finished(side);
		}
	}
	free(copy);
}

/* The table of regions is finite, and comes back. */
static void table(void)
{
	struct pm_context *context;
	enum { REGIONS = 262144 };
	struct pm_region **regions = calloc(REGIONS + 1, sizeof(*regions));
	int count = 0, error;
	CHECK_IS(pm_context_open(NULL, &context), 0);
	while (!(error = pm_register(context, &count, sizeof(count), PM_REMOTE_READ, &regions[count])))
		count++;
	CHECK_IS(error, -ENOSPC);
	CHECK_IS(count, REGIONS);
	while (count)
		CHECK_IS(pm_deregister(regions[--count]), 0);
	CHECK_IS(pm_register(context, &count, sizeof(count), PM_REMOTE_READ, &regions[0]), 0);
	CHECK_IS(pm_register(context, &count, sizeof(count), 4, &regions[1]), -EINVAL);
	CHECK_IS(pm_register(context, (void *)-2, 8, PM_REMOTE_READ, &regions[1]), -EINVAL);
	CHECK_IS(pm_deregister(regions[0]), 0);
	CHECK_IS(pm_context_close(context), 0);
	free(regions);
}

int main(void)
{
	struct pm_options copies = {.size = sizeof(copies), .no_direct = 1, .ring_bytes = 65536};
	table();
	pair_run(NULL, whole);
	pair_run(&copies, whole);
	pair_run(NULL, many);
	pair_run(&copies, many);
	pair_run(NULL, refused);
	pair_run(&copies, refused);
	pair_run(NULL, stale);
	pair_run(&copies, stale);
	pair_run(&copies, taken_away);
	return 0;
}
