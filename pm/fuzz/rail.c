/*
 * rail.c - fuzzing: what a peer can say about rings, and another guest can write into the memory that both share, while
 * this side leaves that rail and comes back to it.
 */
#include <sys/mman.h>

#include "input.h"
#include "ivshmem.h"
#include "link.h"
#include "said.h"
#include "udp_hostile.h"
#include "verbs.h"

#define MEMORY ((uint8_t *)0x200000000000) /* where the address sanitizer lets programs have memory */
#define SHARED (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bed {
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_region *region;
	struct udp_link *link;
	int memory;
	uint8_t *shared;
};

/* What is said about a ring, in small numbers, and of any length. */
static void speak(struct bed *bed, struct input *input)
{
	struct {
		uint32_t generation, rail;
		uint64_t cells, bytes;
		uint8_t more[256 - 24];
	} news = {take(input) % 8, take(input) % 5, take(input), 64ull * take(input), {0}};
	uint8_t type = RING_OPEN + take(input) % 8, length = take(input);
	for (unsigned i = 0; length > sizeof(news) - sizeof(news.more) && i < length % 64; i++)
		news.more[i] = take(input);
	hostile_arrive(bed->link, type, &news, length ? length : sizeof(news) - sizeof(news.more));
}

/* What a device would need to be told, of the lengths that are right. */
static void speak_of_devices(struct bed *bed, struct input *input)
{
	struct verbs_where where = {
		.queue_pair = take(input), .sequence = take(input), .mtu = take(input) % 8, .gid = {[15] = take(input)},
	};
	struct verbs_wanted wanted = {take(input) % 8, RAIL_VERBS, where};
	struct verbs_offer offer = {
		.generation = take(input) % 8, .rail = RAIL_VERBS, .where = where, .key = take(input), .data_bytes = take(input) << 10,
		.address = (uintptr_t)bed->shared,
	};
	if (take(input) % 2)
		hostile_arrive(bed->link, RING_WANTED, &wanted, sizeof(wanted));
	else
		hostile_arrive(bed->link, RING_OFFER, &offer, sizeof(offer));
}

/* What is said about memory, spoiled here and there. */
static void speak_of_memory(struct bed *bed, struct input *input)
{
	struct subject of = {
		.peer = bed->link->peer, .address = (uintptr_t)MEMORY, .key = pm_region_key(bed->region), .place = (uintptr_t)MEMORY,
	};
	uint8_t type = 1 + take(input) % REGION_IS, spoilt[SAID_MOST] = {0}, message[SAID_MOST + 256] = {0};
	uint8_t at = take(input) % SAID_MOST;
	uint32_t more = take(input) % 128;
	spoilt[at] = take(input);
	hostile_arrive(bed->link, type, message, misspoken(&of, type, spoilt, sizeof(spoilt), message) + more);
}

/* An offer of memory that this side has, or has not. */
static void offer(struct bed *bed, struct input *input)
{
	struct ring_offer offer = {
		.generation = take(input) % 8, .rail = RAIL_IVSHMEM, .offset = 4096ull * take(input), .size = SHARED, .data_bytes = 128 << 10,
	};
	struct place *place = (struct place *)(bed->shared + offer.offset);
	if (offer.offset + sizeof(*place) <= SHARED) {
		memcpy(offer.nonce, place->nonce, sizeof(offer.nonce));
		atomic_store(&place->writer, MAY_WRITE);
	}
	offer.size ^= take(input) == 255;
	hostile_arrive(bed->link, RING_OFFER, &offer, sizeof(offer));
}

static void leave_or_join(struct bed *bed, enum rail rail)
{
	pthread_mutex_lock(&bed->context->lock);
	if (!bed->context->area && ivshmem_open(bed->context, dup(bed->memory), 0, 1))
		abort();
	atomic_fetch_xor(&bed->context->rails, 1u << rail);
	pthread_mutex_unlock(&bed->context->lock);
	rail_notice(bed->endpoint);
}

static void act(struct bed *bed, struct input *input)
{
	static uint8_t answer[70000];
	uint32_t at;
	switch (take(input) % 11) {
	case 0:
		speak(bed, input);
		break;
	case 1:
		offer(bed, input);
		break;
	case 2:
		leave_or_join(bed, take(input) % 4 ? RAIL_IVSHMEM : RAIL_VERBS);
		break;
	case 3:
		pm_send(bed->link->peer, 0, &(struct iovec){answer, take(input) * 64}, 1);
		break;
	case 4:
		pm_read(bed->link->peer, answer, sizeof(answer), (uintptr_t)MEMORY, pm_region_key(bed->region), NULL);
		break;
	case 5: /* the other guest writes */
		at = take(input) * 4096 + 64 * (take(input) % 64) + take(input) % 64;
		for (uint8_t n = take(input) % 16; n && at < SHARED; n--, at++)
			bed->shared[at] = take(input);
		break;
	case 6:
		hostile_arrive(bed->link, MESSAGE, "hello", 6);
		break;
	case 7:
		speak_of_devices(bed, input);
		break;
	case 8:
		speak_of_memory(bed, input);
		break;
	case 9:
		pm_write(bed->link->peer, answer, 1 + take(input) * 256, (uintptr_t)MEMORY, pm_region_key(bed->region), NULL);
		break;
	default:
		bed->link->peer->over_udp = true;
		bed->link->peer->rings_wanted |= 1u << (take(input) % 4 ? RAIL_IVSHMEM : RAIL_VERBS);
		rail_notice(bed->endpoint);
	}
}

static void open_bed(struct bed *bed)
{
	struct pm_options options = {.size = sizeof(options), .ring_bytes = 65536};
	setenv("PM_RAILS", "udp", 1);
	setenv("PM_ADDRESS", "127.0.0.1", 1);
	bed->memory = memfd_create("shared", MFD_CLOEXEC);
	if (bed->memory < 0 || ftruncate(bed->memory, SHARED) ||
	    mmap(MEMORY, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MEMORY ||
	    pm_context_open(&options, &bed->context) || pm_endpoint_open(bed->context, &bed->endpoint) || !bed->endpoint->udp ||
	    pm_register(bed->context, MEMORY, 4096, PM_REMOTE_READ | PM_REMOTE_WRITE, &bed->region))
		abort();
	bed->shared = mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED, bed->memory, 0);
	if (bed->shared == MAP_FAILED)
		abort();
	bed->link = hostile_meet(bed->endpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bed bed = {0};
	struct input input = {data, size};
	open_bed(&bed);
	while (input.size && !pm_peer_status(bed.link->peer)) {
		act(&bed, &input);
		hostile_receive_all(bed.endpoint);
	}
	hostile_part(bed.link);
	pm_context_close(bed.context);
	munmap(bed.shared, SHARED);
	close(bed.memory);
	return 0;
}
