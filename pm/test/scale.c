/*
 * scale.c - an endpoint may know very many others: one it has nothing to do with takes some memory and nothing else, and
 * what a connection needs is made when the first message goes.
 */
#include <dirent.h>

#include "allocated.h"
#include "pair.h"

#define PEERS 100000
#define MOST 400 /* bytes that each takes */

static int descriptors(void)
{
	int count = 0;
	DIR *directory = opendir("/proc/self/fd");
	CHECK(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* Mapped memory, bytes; rings are part of it. */
static size_t mapped(void)
{
	size_t pages;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%zu", &pages) == 1);
	fclose(file);
	return pages * 4096;
}

/* The address of an endpoint that is nowhere. */
static struct pm_address nobody(const struct pm_address *like, uint32_t number)
{
	struct pm_address address = *like;
	for (int i = 0; i < 4; i++)
		address.bytes[8 + i] ^= (uint8_t)((number + 1) >> 8 * i);
	return address;
}

static void know_many(struct side *side)
{
	struct pm_address own;
	struct pm_peer *peer, *again;
	struct pm_message message;
	int open = descriptors();
	size_t before = allocated(), memory = mapped();
	CHECK_IS(pm_endpoint_address(side->endpoint, &own), 0);
	for (uint32_t i = 0; i < PEERS; i++) {
		struct pm_address address = nobody(&own, i);
		CHECK_IS(pm_peer_get(side->endpoint, &address, &peer), 0);
		CHECK_IS(pm_peer_get(side->endpoint, &address, &again), 0);
		CHECK(peer == again);
	}
	size_t each = (allocated() - before) / PEERS;
	printf("%zu bytes for each of %d\n", each, PEERS);
	CHECK(each < MOST);
	for (int i = 0; i < 1000; i++)
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
	CHECK_IS(descriptors(), open);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which take memory of their own */
	CHECK(mapped() - memory < (size_t)PEERS * 2 * MOST);
#else
	(void)memory;
#endif
}

/* Nothing has been connected yet; the first message does. */
static void each(struct side *side)
{
	CHECK_IS(statistics_of(side).links_out, 0);
	if (side->number == 0)
		know_many(side);
	CHECK_IS(statistics_of(side).links_out, 0);
	CHECK_IS(statistics_of(side).links_in, 0);
	meet(side);
	if (side->number == 0) {
		send_surely(side, 7, "hello", 6);
		CHECK_IS(statistics_of(side).links_out, 1);
	} else {
		struct pm_message message;
		receive_surely(side, &message);
		CHECK_IS(message.kind, 7);
		pm_release(side->endpoint, &message);
		CHECK_IS(statistics_of(side).links_in, 1);
	}
}

int main(void)
{
	setenv("PM_RAILS", "shm,udp", 1);
	setenv("PM_ADDRESS", "127.0.0.1", 1);
	pair_run(NULL, each);
	setenv("PM_RAILS", "udp", 1);
	pair_run(NULL, each);
	return 0;
}
