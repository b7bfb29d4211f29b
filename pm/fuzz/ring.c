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

#include "internal.h"

#define BYTES 65536
#define MEMORY ((uint8_t *)0x200000000000) /* where the address sanitizer lets programs have memory */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bed {
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_peer *peer;
	struct inbound *in;
	struct outbound *out;
	struct shared_page page; /* of the hostile process */
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
	bed->out->pid = bed->in->pid = far_process();
	bed->page.id_address = (uintptr_t)far_id;
	bed->page.regions[0] = (struct shared_region){1, (uintptr_t)far_memory, FAR_BYTES, PM_REMOTE_READ | PM_REMOTE_WRITE};
	bed->out->page = &bed->page;
	bed->out->direct = true;
}

static void *make_ring(void)
{
	void *memory = aligned_alloc(128, ring_size(BYTES));
	memset(memory, 0, ring_size(BYTES));
	return memory;
}

/* An endpoint of which the other side of both rings is in the input's hands. */
static void open_bed(struct bed *bed)
{
	struct pm_options options = {.size = sizeof(options), .no_direct = 1, .ring_bytes = BYTES};
	struct pm_address address;
	if (mmap(MEMORY, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MEMORY ||
	    pm_context_open(&options, &bed->context) || pm_endpoint_open(bed->context, &bed->endpoint))
		abort();
	pm_endpoint_address(bed->endpoint, &address);
	memcpy(address.bytes + 8, far_id, sizeof(far_id));
	if (pm_peer_get(bed->endpoint, &address, &bed->peer) ||
	    pm_register(bed->context, MEMORY, 4096, PM_REMOTE_READ | PM_REMOTE_WRITE, &bed->region))
		abort();
	bed->in = calloc(1, sizeof(*bed->in));
	ring_reader_open(&bed->in->ring, make_ring(), BYTES);
	bed->in->peer = bed->peer;
	bed->peer->rings = 1;
	bed->endpoint->inbound = calloc(1, sizeof(bed->in));
	bed->endpoint->inbound[0] = bed->in;
	bed->endpoint->inbound_count = bed->endpoint->inbound_room = 1;
	bed->out = calloc(1, sizeof(*bed->out));
	ring_writer_open(&bed->out->ring, make_ring(), BYTES);
	bed->out->peer = bed->peer;
	bed->out->asleep = &bed->page.endpoints[0].asleep;
	bed->out->statistics = bed->endpoint->statistics;
	bed->out->doorbell = -1;
	atomic_store(&bed->out->ready, true);
	bed->peer->out = bed->peer->outbound = bed->out;
}

static void close_bed(struct bed *bed)
{
	bed->endpoint->inbound_count = 0;
	bed->peer->out = bed->peer->outbound = NULL;
	free(bed->in->ring.memory);
	free(bed->out->ring.memory);
	free(bed->in);
	free(bed->out);
	pm_context_close(bed->context);
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
	if (bed->in->ring.broken)
		bed->endpoint->inbound_count = 0;
}

/* The next message as a good writer would write it, so that the input gets beyond the number of the cell. */
static size_t write_message(struct bed *bed, const uint8_t *data, size_t size)
{
	struct ring_reader *reader = &bed->in->ring;
	if (size < 3)
		return size;
	uint8_t type = data[0] % 7;
	uint32_t length = data[1] | (data[2] & 0x3f) << 8, given = size - 3 < length ? size - 3 : length;
	uint8_t *place = reader->memory->cells[reader->cell & reader->cell_mask].payload;
	if (length > RING_INLINE)
		place = reader->data + (ring_place(reader->byte, length, reader->data_mask) & reader->data_mask);
	memcpy(place, data + 3, given);
	atomic_store(&reader->memory->cells[reader->cell & reader->cell_mask].control,
		     ring_control(reader->cell, 0, type, length));
	return 3 + given;
}

static size_t overwrite(struct ring_memory *memory, const uint8_t *data, size_t size)
{
	if (size < 4)
		return size;
	size_t at = (data[0] | data[1] << 8 | data[2] << 16) % (ring_size(BYTES) - 256), length = data[3];
	length = length < size - 4 ? length : size - 4;
	memcpy((uint8_t *)memory + at, data + 4, length);
	return 4 + length;
}

/* Asks for help with a read that makes sense, but for what the input gives; the words make sense, too, at first. */
static size_t ask_for_help(struct bed *bed, const uint8_t *data, size_t size)
{
	struct { uint32_t serial, chunk; uint64_t address, key, length, destination; } help;
	struct ring_reader *reader = &bed->in->ring;
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
	while (size && !bed->in->ring.broken) {
		uint8_t what = *data++;
		size_t used = 0;
		size--;
		switch (what % 7) {
		case 0:
			used = write_message(bed, data, size);
			break;
		case 1:
			used = overwrite(bed->in->ring.memory, data, size);
			break;
		case 2:
			used = overwrite(bed->out->ring.memory, data, size);
			break;
		case 3:
			pm_read(bed->peer, bed->answer, 70000, 5, key, NULL);
			break;
		case 4:
			pm_write(bed->peer, bed->answer, 70000, 5, key, NULL);
			break;
		case 5:
			if (bed->out->direct && what & 0x10)
				pm_read(bed->peer, large, sizeof(large), (uintptr_t)far_memory, FAR_KEY, NULL);
			break;
		case 6:
			used = ask_for_help(bed, data, size);
			break;
		}
		data += used;
		size -= used;
		receive(bed);
		/* The hostile reader takes all there is, most of the time, so that there is room again. */
		if (what & 0x80) {
			atomic_store(&bed->out->ring.memory->taken.cells, bed->out->ring.cell);
			atomic_store(&bed->out->ring.memory->taken.bytes, bed->out->ring.byte);
		}
	}
	close_bed(bed);
	free(bed);
	return 0;
}
