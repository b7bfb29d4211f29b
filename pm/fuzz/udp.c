/*
 * udp.c - fuzzing: what can come in packets of the udp rail. The input is a train of packets, greetings among them,
 * whose checksums and seals are made right here, as a process of the same job could.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "udp.h"

#define MEMORY ((uint8_t *)0x100000000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void receive(struct pm_endpoint *endpoint)
{
	struct pm_message message;
	struct pm_event event;
	volatile uint8_t sum __attribute__((unused)) = 0;
	for (int i = 0; i < 64 && pm_receive(endpoint, &message); i++) {
		for (uint32_t j = 0; j < message.length; j++)
			sum += ((const uint8_t *)message.data)[j];
		pm_release(endpoint, &message);
	}
	while (pm_next_event(endpoint, &event))
		;
}

static void greet(struct pm_endpoint *endpoint, const struct pm_address *far, const uint8_t *data, size_t size)
{
	struct udp_greeting greeting = {
		.check = GREETING_MAGIC, .link = GREETING_LINK, .type = UDP_GREETING, .version = GREETING_VERSION,
		.from = *far, .to = endpoint->address, .ring_bytes = 65536,
	};
	if (endpoint->udp->count)
		memcpy(greeting.echo, endpoint->udp->links[0]->nonce, UDP_NONCE);
	for (size_t i = 0; i < size && i < offsetof(struct udp_greeting, seal); i++)
		((uint8_t *)&greeting)[i] ^= data[i];
	crypto_auth(greeting.seal, (uint8_t *)&greeting, offsetof(struct udp_greeting, seal), endpoint->context->job_key);
	udp_greeted(endpoint, (uint8_t *)&greeting, sizeof(greeting), clock_ns(), true);
}

/* A packet of which the header begins as a good one's would. */
static void packet(struct pm_endpoint *endpoint, struct udp_link *link, const uint8_t *data, size_t size)
{
	struct {
		struct udp_packet header;
		uint8_t payload[300];
	} all = {.header = {.type = UDP_DATA, .sequence = link->flow.in_next, .offset = link->flow.contiguous}};
	size_t payload = size > 24 ? size - 24 : 0;
	if (payload > sizeof(all.payload))
		payload = sizeof(all.payload);
	for (size_t i = 0; i < size && i < 24; i++)
		((uint8_t *)&all.header)[12 + i] ^= data[i];
	all.header.length = payload;
	memcpy(all.payload, data + size - payload, payload);
	const uint8_t *from = (uint8_t *)&all.header + 8;
	uint64_t first = XXH3_64bits_withSeed(from, sizeof(all.header) - 8, link->seed_in);
	all.header.check = payload ? XXH3_64bits_withSeed(all.payload, payload, first) : first;
	udp_take_packet(endpoint, link, (uint8_t *)&all, sizeof(all.header) + payload, clock_ns());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pm_options options = {.size = sizeof(options), .ring_bytes = 65536};
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_address far;
	struct pm_region *region;
	static uint8_t answer[70000];
	setenv("PM_RAILS", "udp", 1);
	setenv("PM_ADDRESS", "127.0.0.1", 1);
	if (mmap(MEMORY, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MEMORY ||
	    pm_context_open(&options, &context) || pm_endpoint_open(context, &endpoint) || !endpoint->udp ||
	    pm_register(context, MEMORY, 4096, PM_REMOTE_READ | PM_REMOTE_WRITE, &region))
		abort();
	far = endpoint->address;
	far.bytes[9] ^= 1;
	far.bytes[40] = 0; /* port 9 of the loopback: nobody */
	far.bytes[41] = 9;
	greet(endpoint, &far, NULL, 0);
	greet(endpoint, &far, NULL, 0);
	while (size > 1) {
		uint8_t what = data[0], length = data[1] < size - 2 ? data[1] : size - 2;
		struct udp_link *link = endpoint->udp->links[what / 8 % endpoint->udp->count];
		if (what % 8 == 0)
			greet(endpoint, &far, data + 2, length);
		else if (what % 8 == 1)
			pm_read(link->peer, answer, sizeof(answer), (uintptr_t)MEMORY, pm_region_key(region), NULL);
		else if (link->open)
			packet(endpoint, link, data + 2, length);
		receive(endpoint);
		data += 2 + length;
		size -= 2 + length;
	}
	/* Nobody will acknowledge anything: it is not waited for. */
	for (uint32_t i = 0; i < endpoint->udp->count; i++)
		endpoint->udp->links[i]->goodbye = true;
	pm_context_close(context);
	return 0;
}
