/*
 * rail.c - fuzzing: what a peer can say about rings, and another guest can write into the memory that both share, while
 * this side leaves that rail and comes back to it.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ivshmem.h"
#include "link.h"
#include "udp.h"

#define MEMORY ((uint8_t *)0x100000000)
#define SHARED (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input: what is not there is zero. */
struct input {
	const uint8_t *data;
	size_t size;
};

static uint8_t take(struct input *input)
{
	if (!input->size)
		return 0;
	input->size--;
	return *input->data++;
}

struct bed {
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_region *region;
	struct udp_link *link;
	int memory;
	uint8_t *shared;
};

static void greet(struct bed *bed, const struct pm_address *far)
{
	struct udp_greeting greeting = {
		.check = GREETING_MAGIC, .link = GREETING_LINK, .type = UDP_GREETING, .version = GREETING_VERSION,
		.from = *far, .to = bed->endpoint->address, .ring_bytes = 65536,
	};
	if (bed->endpoint->udp->count)
		memcpy(greeting.echo, bed->endpoint->udp->links[0]->nonce, UDP_NONCE);
	crypto_auth(greeting.seal, (uint8_t *)&greeting, offsetof(struct udp_greeting, seal), bed->context->job_key);
	pthread_mutex_lock(&bed->endpoint->udp->lock);
	udp_greeted(bed->endpoint, (uint8_t *)&greeting, sizeof(greeting), clock_ns(), true);
	pthread_mutex_unlock(&bed->endpoint->udp->lock);
}

/* A message has come in the peer's stream, and all that was sent has arrived there. */
static void arrive(struct bed *bed, uint8_t type, const void *data, uint32_t length)
{
	struct flow *flow = &bed->link->flow;
	struct flow_news news = {.next = flow->next, .consumed = flow->head};
	struct {
		uint32_t length;
		uint8_t kind, type;
		uint16_t mark;
		uint8_t data[256];
	} frame = {.length = length, .type = type, .mark = 0x4d50};
	memcpy(frame.data, data, length);
	pthread_mutex_lock(&bed->endpoint->udp->lock);
	flow_arrive(flow, clock_ns(), flow->in_next, flow->contiguous, (uint8_t *)&frame, (FLOW_FRAME + length + 7) & ~7u);
	flow_learn(flow, clock_ns(), 0, &news);
	pthread_mutex_unlock(&bed->endpoint->udp->lock);
}

static void receive(struct bed *bed)
{
	struct pm_message message;
	struct pm_event event;
	volatile uint8_t sum __attribute__((unused)) = 0;
	for (int i = 0; i < 64 && pm_receive(bed->endpoint, &message); i++) {
		for (uint32_t j = 0; j < message.length; j++)
			sum += ((const uint8_t *)message.data)[j];
		pm_release(bed->endpoint, &message);
	}
	while (pm_next_event(bed->endpoint, &event))
		;
}

/* What is said about a ring, in small numbers. */
static void speak(struct bed *bed, struct input *input)
{
	struct {
		uint32_t generation, rail;
		uint64_t cells, bytes;
	} news = {take(input) % 8, take(input) % 4, take(input), 64ull * take(input)};
	uint8_t type = RING_OPEN + take(input) % 8;
	arrive(bed, type, &news, type == RING_OFFER ? 8 : sizeof(news));
}

/* An offer of memory that this side has, or has not. */
static void offer(struct bed *bed, struct input *input)
{
	struct ring_offer offer = {
		.generation = take(input) % 8, .rail = RAIL_IVSHMEM, .offset = 4096ull * take(input), .size = SHARED, .data_bytes = 128 << 10,
	};
	if (offer.offset + IVSHMEM_NONCE <= SHARED)
		memcpy(offer.nonce, bed->shared + offer.offset, IVSHMEM_NONCE);
	offer.size ^= take(input) == 255;
	arrive(bed, RING_OFFER, &offer, sizeof(offer));
}

static void leave_or_join(struct bed *bed)
{
	pthread_mutex_lock(&bed->context->lock);
	if (!bed->context->area && ivshmem_open(bed->context, dup(bed->memory), 0, 1))
		abort();
	atomic_fetch_xor(&bed->context->rails, 1u << RAIL_IVSHMEM);
	pthread_mutex_unlock(&bed->context->lock);
	rail_notice(bed->endpoint);
}

static void act(struct bed *bed, struct input *input)
{
	static uint8_t answer[70000];
	uint32_t at;
	switch (take(input) % 8) {
	case 0:
		speak(bed, input);
		break;
	case 1:
		offer(bed, input);
		break;
	case 2:
		leave_or_join(bed);
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
		arrive(bed, MESSAGE, "hello", 6);
		break;
	default:
		bed->link->peer->over_udp = true;
		bed->link->peer->rings_wanted |= 1u << RAIL_IVSHMEM;
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
	struct pm_address far = bed->endpoint->address;
	far.bytes[9] ^= 1;
	far.bytes[40] = 0; /* port 9 of the loopback: nobody */
	far.bytes[41] = 9;
	greet(bed, &far);
	greet(bed, &far);
	bed->link = bed->endpoint->udp->links[0];
	if (bed->shared == MAP_FAILED || !bed->link->sure)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bed bed = {0};
	struct input input = {data, size};
	open_bed(&bed);
	while (input.size && !pm_peer_status(bed.link->peer)) {
		act(&bed, &input);
		receive(&bed);
	}
	/* Nobody will acknowledge anything: it is not waited for. */
	bed.link->goodbye = true;
	pm_context_close(bed.context);
	munmap(bed.shared, SHARED);
	close(bed.memory);
	return 0;
}
