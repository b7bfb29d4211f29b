/*
 * link.c - the two processes' endpoints, how they find each other, and how they send and receive.
 */
#include "perf.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POLLS_PER_CHECK 4096 /* looks for a message between two looks at the peer's health */

struct hello {
	uint64_t largest;
	struct pm_address addresses[SIDES];
};

struct welcome {
	uint64_t address, keys[SIDES];
	struct pm_address addresses[SIDES];
};

char *map_memory(size_t length)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail(-errno, "%zu bytes of memory", length);
	memset(memory, 0xa5, length);
	return memory;
}

static void sizes_known(struct link *link, size_t largest)
{
	link->largest = largest;
	link->memory = map_memory(largest);
	link->buffer = map_memory(largest);
}

void side_open(struct side *side, bool no_direct)
{
	struct pm_options options = { .size = sizeof options, .no_direct = no_direct };
	int result = pm_context_open(&options, &side->context);
	if (result)
		fail(result, "open a context");
	result = pm_endpoint_open(side->context, &side->endpoint);
	if (result)
		fail(result, "open an endpoint");
}

void side_close(struct side *side)
{
	if (side->region)
		pm_deregister(side->region);
	pm_endpoint_close(side->endpoint);
	pm_context_close(side->context);
}

/* largest is 0 at the server, which learns it from its client. */
void link_open(struct link *link, size_t largest)
{
	for (int i = 0; i < SIDES; i++)
		side_open(&link->sides[i], i == SIDE_NO_DIRECT);
	if (largest)
		sizes_known(link, largest);
}

void link_close(struct link *link)
{
	for (int i = 0; i < SIDES; i++)
		side_close(&link->sides[i]);
	munmap(link->memory, link->largest);
	munmap(link->buffer, link->largest);
}

void peer_fail(int result, const char *what)
{
	switch (result) {
	case -EACCES:
		fail(0, "the other process has another job key (PM_JOB_KEY)");
	case -EHOSTUNREACH:
		fail(0, "no process of this machine answers to that address, and those of others need PM_JOB_KEY, both of them");
	case -EHOSTDOWN:
		fail(0, "the other process has ended");
	default:
		fail(result, "%s", what);
	}
}

bool side_poll(struct side *side, struct pm_message *message, unsigned *tries)
{
	int result = pm_receive(side->endpoint, message);
	if (result < 0)
		fail(result, "receive");
	if (result)
		return true;
	if (++*tries % POLLS_PER_CHECK == 0 && side->peer) {
		int status = pm_peer_status(side->peer);
		if (status && pm_receive(side->endpoint, message) == 1) /* its last words */
			return true;
		if (status)
			peer_fail(status, "receive");
	}
	if (give_way)
		sched_yield();
	return false;
}

void side_expect(struct side *side, enum kind kind, void *data, size_t length)
{
	struct pm_message message;
	unsigned tries = 0;
	while (!side_poll(side, &message, &tries))
		;
	if (message.kind != kind || message.length != length)
		fail(0, "the other process sent kind %d with %u bytes, where kind %d with %zu was due (is it another version?)",
			message.kind, message.length, (int)kind, length);
	if (length)
		memcpy(data, message.data, length);
	pm_release(side->endpoint, &message);
}

static void send_one(struct side *side, enum kind kind, const struct iovec *part)
{
	int result;
	unsigned tries = 0;
	struct pm_message message;
	while ((result = pm_send(side->peer, (uint8_t)kind, part, 1)) == -EAGAIN)
		if (side_poll(side, &message, &tries)) /* the two take turns */
			fail(0, "the other process sent kind %d out of turn", message.kind);
	if (result)
		peer_fail(result, "send");
}

void side_send(struct side *side, enum kind kind, const void *data, size_t length)
{
	struct iovec part = { .iov_base = (void *)data, .iov_len = length };
	send_one(side, kind, &part);
}

void transfer_send(struct side *side, char *buffer, size_t size)
{
	for (size_t sent = 0; sent < size;) {
		struct iovec part = { buffer + sent, size - sent < PM_MAX_MESSAGE ? size - sent : PM_MAX_MESSAGE };
		memcpy(part.iov_base, &side->sequence_out, sizeof side->sequence_out);
		side->sequence_out++;
		send_one(side, KIND_DATA, &part);
		sent += part.iov_len;
	}
}

void transfer_receive(struct side *side, size_t size, char *copy_to)
{
	unsigned tries = 0;
	for (size_t received = 0; received < size;) {
		struct pm_message message;
		size_t expected = size - received < PM_MAX_MESSAGE ? size - received : PM_MAX_MESSAGE;
		uint32_t sequence;
		if (!side_poll(side, &message, &tries))
			continue;
		if (message.kind != KIND_DATA || message.length != expected)
			fail(0, "got kind %d with %u bytes in place of %zu bytes of data", message.kind, message.length, expected);
		memcpy(&sequence, message.data, sizeof sequence);
		if (sequence != side->sequence_in++)
			fail(0, "got message %u in place of %u", sequence, side->sequence_in - 1);
		if (copy_to)
			memcpy(copy_to + received, message.data, expected);
		pm_release(side->endpoint, &message);
		received += expected;
	}
}

void side_find(struct side *side, const struct pm_address *address)
{
	int result = pm_peer_get(side->endpoint, address, &side->peer);
	if (result)
		fail(result, "take up the other process's address");
}

static void own_addresses(struct link *link, struct pm_address *addresses)
{
	for (int i = 0; i < SIDES; i++) {
		int result = pm_endpoint_address(link->sides[i].endpoint, &addresses[i]);
		if (result)
			fail(result, "an endpoint's address");
	}
}

void link_greet(struct link *link, const struct pm_address *server)
{
	struct hello hello = { .largest = link->largest };
	struct welcome welcome;
	own_addresses(link, hello.addresses);
	side_find(&link->sides[SIDE_DIRECT], server);
	side_send(&link->sides[SIDE_DIRECT], KIND_HELLO, &hello, sizeof hello);
	side_expect(&link->sides[SIDE_DIRECT], KIND_WELCOME, &welcome, sizeof welcome);
	side_find(&link->sides[SIDE_NO_DIRECT], &welcome.addresses[SIDE_NO_DIRECT]);
	link->remote_address = welcome.address;
	for (int i = 0; i < SIDES; i++)
		link->sides[i].remote_key = welcome.keys[i];
}

void link_welcome(struct link *link)
{
	struct side *first = &link->sides[SIDE_DIRECT];
	struct pm_message message;
	struct hello hello;
	int result;
	while ((result = pm_receive(first->endpoint, &message)) == 0) {
		result = pm_wait(first->endpoint, -1);
		if (result < 0 && result != -EINTR)
			fail(result, "wait for a client");
	}
	if (result < 0)
		fail(result, "receive");
	if (message.kind != KIND_HELLO || message.length != sizeof hello)
		fail(0, "a process that is not pm-perf, or another version of it, has sent %u bytes", message.length);
	memcpy(&hello, message.data, sizeof hello);
	pm_release(first->endpoint, &message);

	sizes_known(link, hello.largest);
	struct welcome welcome = { .address = (uintptr_t)link->memory };
	own_addresses(link, welcome.addresses);
	for (int i = 0; i < SIDES; i++) {
		struct side *side = &link->sides[i];
		side_find(side, &hello.addresses[i]);
		result = pm_register(side->context, link->memory, link->largest, PM_REMOTE_READ | PM_REMOTE_WRITE, &side->region);
		if (result)
			fail(result, "register %zu bytes", link->largest);
		welcome.keys[i] = pm_region_key(side->region);
	}
	side_send(first, KIND_WELCOME, &welcome, sizeof welcome);
}
