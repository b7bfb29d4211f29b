/*
 * udp.c - fuzzing: what can come in packets of the udp rail. The input is a train of packets, greetings among them,
 * whose checksums and seals are made right here, as a process of the same job could.
 */
#include <netinet/udp.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "udp_hostile.h"

#define LINKS 3
#define MEMORY ((uint8_t *)0x200000000000) /* where the address sanitizer lets programs have memory */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As if $PM_LINKS named a file with the loopback, so many times. */
static void add_links(struct pm_context *context)
{
	struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	context->links = calloc(1, sizeof(*context->links));
	if (!context->links)
		abort();
	context->links->count = LINKS;
	for (int i = 0; i < LINKS; i++)
		memcpy(&context->links->own[i].address, &loopback, sizeof(loopback));
}

static void greet(struct pm_endpoint *endpoint, const struct pm_address *far, const uint8_t *data, size_t size)
{
	struct udp_greeting greeting = {
		.check = GREETING_MAGIC, .link = GREETING_LINK, .type = UDP_GREETING, .version = GREETING_VERSION,
		.from = *far, .to = endpoint->address, .ring_bytes = 65536, .more = LINKS - 1,
	};
	pthread_mutex_lock(&endpoint->udp->lock);
	if (endpoint->udp->count)
		memcpy(greeting.echo, endpoint->udp->links[0]->nonce, UDP_NONCE);
	for (size_t i = 0; i < size && i < offsetof(struct udp_greeting, seal); i++)
		((uint8_t *)&greeting)[i] ^= data[i];
	crypto_auth(greeting.seal, (uint8_t *)&greeting, offsetof(struct udp_greeting, seal), endpoint->context->job_key);
	udp_greeted(endpoint, (uint8_t *)&greeting, sizeof(greeting), clock_ns(), true);
	pthread_mutex_unlock(&endpoint->udp->lock);
}

#define MOST_PAYLOAD 300
/* Octets of the input that a packet takes: what its header differs by from a good one's, of bulk, and how long it is. */
#define TAKEN (24 + sizeof(struct udp_bulk) - sizeof(struct udp_packet) + 1)

/* A packet of which the header begins as a good one's would; its length. Under the rail's lock. */
static uint32_t make(struct udp_link *link, uint64_t key, const uint8_t *data, uint8_t made[sizeof(struct udp_bulk) + MOST_PAYLOAD])
{
	struct udp_bulk head = {
		.packet = {.link = link->number, .type = UDP_DATA, .sequence = link->flow.in_next, .offset = link->flow.contiguous},
	};
	const struct operation *read = TAILQ_FIRST(&link->peer->reads);
	for (size_t i = 0; i < 24; i++)
		((uint8_t *)&head.packet)[12 + i] ^= data[i];
	if (head.packet.type == UDP_WRITE) {
		head.name = key;
		head.at = (uintptr_t)MEMORY;
	} else if (read) {
		head.name = read->id;
	}
	for (size_t i = 24; i < TAKEN - 1; i++)
		((uint8_t *)&head.name)[i - 24] ^= data[i];
	uint32_t size = udp_header_size(head.packet.type);
	head.packet.length = data[TAKEN - 1] < 250 ? data[TAKEN - 1] : MOST_PAYLOAD;
	memset(made + size, data[TAKEN - 1], head.packet.length);
	memcpy(made, &head, size);
	size += head.packet.length;
	uint64_t check = hash_secret(made + 8, size - 8, link->secret_in);
	memcpy(made, &check, 8);
	return size;
}

static void packet(struct pm_endpoint *endpoint, struct udp_link *link, uint64_t key, const uint8_t *data, size_t size)
{
	uint8_t taken[TAKEN] = {0}, made[sizeof(struct udp_bulk) + MOST_PAYLOAD];
	memcpy(taken, data, size < TAKEN ? size : TAKEN);
	pthread_mutex_lock(&endpoint->udp->lock);
	uint32_t length = make(link, key, taken, made);
	udp_take_packet(endpoint, link, made, length, clock_ns());
	pthread_mutex_unlock(&endpoint->udp->lock);
}

/* Packets on end, as the socket gives a train of them. */
static void train(struct pm_endpoint *endpoint, struct udp_link *link, uint64_t key, const uint8_t *data, size_t size)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	uint8_t all[8 * (sizeof(struct udp_bulk) + MOST_PAYLOAD)];
	uint32_t length = 0, first = 0;
	pthread_mutex_lock(&endpoint->udp->lock);
	for (int i = 0; i < 8 && size >= TAKEN; i++, data += TAKEN, size -= TAKEN) {
		length += make(link, key, data, all + length);
		first = first ? first : length;
	}
	pthread_mutex_unlock(&endpoint->udp->lock);
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(uint16_t))];
	} control = {.header = {.cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))}};
	struct iovec part = {all, length};
	struct msghdr message = {
		.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &part, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = sizeof(control),
	};
	memcpy(CMSG_DATA(&control.header), &(uint16_t){first}, sizeof(uint16_t));
	memcpy(&to.sin_addr, endpoint->address.bytes + 36, 4);
	memcpy(&to.sin_port, endpoint->address.bytes + 40, 2);
	if (length)
		sendmsg(endpoint->udp->fd, &message, MSG_DONTWAIT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pm_options options = {.size = sizeof(options), .ring_bytes = 65536};
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_address far;
	struct pm_region *region;
	static uint8_t answer[300 * 256];
	setenv("PM_RAILS", "udp", 1);
	setenv("PM_ADDRESS", "127.0.0.1", 1);
	if (mmap(MEMORY, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MEMORY ||
	    pm_context_open(&options, &context))
		abort();
	add_links(context);
	if (pm_endpoint_open(context, &endpoint) || !endpoint->udp ||
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
			pm_read(link->peer, answer, length * 300, (uintptr_t)MEMORY, pm_region_key(region), NULL);
		else if (what % 8 == 2)
			pm_write(link->peer, answer, length * 300, (uintptr_t)MEMORY, pm_region_key(region), NULL);
		else if (what % 8 == 3 && link->open)
			train(endpoint, link, pm_region_key(region), data + 2, length);
		else if (link->open)
			packet(endpoint, link, pm_region_key(region), data + 2, length);
		hostile_receive_all(endpoint);
		data += 2 + length;
		size -= 2 + length;
	}
	/* Nobody will acknowledge anything: it is not waited for. */
	pthread_mutex_lock(&endpoint->udp->lock);
	for (uint32_t i = 0; i < endpoint->udp->count; i++)
		endpoint->udp->links[i]->goodbye = true;
	pthread_mutex_unlock(&endpoint->udp->lock);
	pm_context_close(context);
	return 0;
}
