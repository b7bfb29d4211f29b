/*
 * ring.c - fuzzing: what a hostile writer can put into a ring, at any time, and a hostile reader into its part of
 * another. The input is a program: overwrite a piece of the memory, have the endpoint receive, ask for remote memory.
 */
#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "rings.h"
#include "said.h"

#define MEMORY ((uint8_t *)0x200000000000) /* where the address sanitizer lets programs have memory */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bed {
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct rings rings;
	struct pm_region *region;
	uint8_t answer[100000];
};

/* The hostile process, where memory is accessed directly: it is there for its memory only, which may be overwritten. */
static const uint8_t far_id[CONTEXT_ID_SIZE] = {7};
static uint8_t *far_memory; /* at the same place in both */
#define FAR_BYTES (5u << 20)

static pid_t far_process(void)
{
	static pid_t pid;
	if (pid)
		return pid;
	far_memory = mmap(NULL, FAR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (far_memory == MAP_FAILED || (pid = fork()) < 0)
		abort();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}

/* The page of the hostile process has one region, of which the key is FAR_KEY. */
#define FAR_KEY (1ull << REGION_BITS)
static void make_direct(struct bed *bed)
{
	bed->rings.out->pid = bed->rings.in->pid = far_process();
	bed->rings.page.id_address = (uintptr_t)far_id;
	bed->rings.page.regions[0] = (struct shared_region){1, (uintptr_t)far_memory, FAR_BYTES, PM_REMOTE_READ | PM_REMOTE_WRITE};
	bed->rings.out->page = &bed->rings.page;
	bed->rings.out->direct = true;
}

/* An endpoint of which the other side of both rings is in the input's hands. */
static void open_bed(struct bed *bed)
{
	struct pm_options options = {.size = sizeof(options), .no_direct = 1, .ring_bytes = RINGS_BYTES};
	struct pm_address address;
	struct pm_peer *peer;
	if (mmap(MEMORY, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MEMORY ||
	    pm_context_open(&options, &bed->context) || pm_endpoint_open(bed->context, &bed->endpoint))
		abort();
	pm_endpoint_address(bed->endpoint, &address);
	memcpy(address.bytes + 8, far_id, sizeof(far_id));
	if (pm_peer_get(bed->endpoint, &address, &peer) ||
	    pm_register(bed->context, MEMORY, 4096, PM_REMOTE_READ | PM_REMOTE_WRITE, &bed->region))
		abort();
	rings_open(&bed->rings, peer);
}

static void receive(struct bed *bed)
{
	struct pm_message message;
	struct pm_event event;
	volatile uint8_t sum = 0; /* read, so that reading is not left out */
	for (int i = 0; i < 64 && bed->endpoint->inbound_count && pm_receive(bed->endpoint, &message); i++) {
		assert(message.length <= PM_MAX_MESSAGE);
		for (uint32_t j = 0; j < message.length; j++)
			sum += ((const uint8_t *)message.data)[j];
		pm_release(bed->endpoint, &message);
	}
	(void)sum;
	while (pm_next_event(bed->endpoint, &event))
		;
	/* A ring that is found to be broken is closed by link_news, which would free what is this program's. */
	if (bed->rings.in->ring.broken)
		bed->endpoint->inbound_count = 0;
}

/* Types that there are, and some that there are not. */
static uint8_t type_of(uint8_t data)
{
	return data < 240 ? data % (RING_REFUSED + 2) : data;
}

/* Has the next message of that length found; where its octets belong. */
static uint8_t *make_message(struct bed *bed, uint8_t type, uint32_t length)
{
	struct ring_reader *reader = &bed->rings.in->ring;
	struct ring_cell *cell = &reader->memory->cells[reader->cell & reader->cell_mask];
	atomic_store(&cell->control, ring_control(reader->cell, 0, type, length));
	if (length <= RING_INLINE)
		return cell->payload;
	return reader->data + (ring_place(reader->byte, length, reader->data_mask) & reader->data_mask);
}

/* The next message as a good writer would write it, so that the input gets beyond the number of the cell. */
static size_t write_message(struct bed *bed, const uint8_t *data, size_t size)
{
	if (size < 3)
		return size;
	uint32_t length = data[1] | (data[2] & 0x3f) << 8, given = size - 3 < length ? size - 3 : length;
	memcpy(make_message(bed, type_of(data[0]), length), data + 3, given);
	return 3 + given;
}

/* One that makes sense, but for what the input spoils; as much data comes with it as the input says. */
static size_t write_sense(struct bed *bed, const uint8_t *data, size_t size)
{
	struct subject of = {
		.peer = bed->rings.peer, .address = (uintptr_t)MEMORY, .key = pm_region_key(bed->region), .place = (uintptr_t)MEMORY,
	};
	uint8_t message[SAID_MOST];
	if (size < 3)
		return size;
	uint8_t type = 1 + data[0] % REGION_IS;
	size_t spoilt = data[2] < size - 3 ? data[2] : size - 3;
	uint32_t length = misspoken(&of, type, data + 3, spoilt, message);
	memcpy(make_message(bed, type, length + data[1]), message, length);
	return 3 + spoilt;
}

static size_t overwrite(struct ring_memory *memory, const uint8_t *data, size_t size)
{
	if (size < 4)
		return size;
	size_t at = (data[0] | data[1] << 8 | data[2] << 16) % (ring_size(RINGS_BYTES) - 256), length = data[3];
	length = length < size - 4 ? length : size - 4;
	memcpy((uint8_t *)memory + at, data + 4, length);
	return 4 + length;
}

/* Asks for help with a read that makes sense, but for what the input gives; the words make sense, too, at first. */
static size_t ask_for_help(struct bed *bed, const uint8_t *data, size_t size)
{
	struct { uint32_t serial, chunk; uint64_t address, key, length, destination; } help;
	struct ring_reader *reader = &bed->rings.in->ring;
	struct ring_cell *cell = &reader->memory->cells[reader->cell & reader->cell_mask];
	if (size < 6)
		return size;
	help.serial = data[0];
	help.chunk = 4096 * data[1];
	help.address = (uintptr_t)MEMORY + data[2];
	help.key = pm_region_key(bed->region) + (data[3] & 1);
	help.length = 4096 - 16 * data[4];
	help.destination = data[5] & 1 ? (uintptr_t)far_memory + 1 : (uint64_t)data[5] << 40;
	memcpy(cell->payload, &help, sizeof(help));
	atomic_store(&reader->memory->help.claim, (uint64_t)help.serial << 32);
	atomic_store(&cell->control, ring_control(reader->cell, 0, HELP, sizeof(help)));
	return 6;
}

static uint8_t large[FAR_BYTES];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bed *bed = calloc(1, sizeof(*bed));
	uint64_t key;
	open_bed(bed);
	key = pm_region_key(bed->region);
	if (size && *data & 1)
		make_direct(bed);
	while (size && !bed->rings.in->ring.broken) {
		uint8_t what = *data++;
		size_t used = 0;
		size--;
		switch (what % 8) {
		case 0:
			used = write_message(bed, data, size);
			break;
		case 1:
			used = overwrite(bed->rings.in->ring.memory, data, size);
			break;
		case 2:
			used = overwrite(bed->rings.out->ring.memory, data, size);
			break;
		case 3:
			pm_read(bed->rings.peer, bed->answer, 70000, 5, key, NULL);
			break;
		case 4:
			pm_write(bed->rings.peer, bed->answer, 70000, 5, key, NULL);
			break;
		case 5:
			if (bed->rings.out->direct && what & 0x10)
				pm_read(bed->rings.peer, large, sizeof(large), (uintptr_t)far_memory, FAR_KEY, NULL);
			break;
		case 6:
			used = ask_for_help(bed, data, size);
			break;
		case 7:
			used = write_sense(bed, data, size);
			break;
		}
		data += used;
		size -= used;
		receive(bed);
		if (what & 0x80)
			rings_take_all(&bed->rings);
	}
	rings_close(&bed->rings);
	pm_context_close(bed->context);
	free(bed);
	return 0;
}
