/*
 * network.h - a bad network between the processes of a test. Where $PM_TEST_NETWORK is a number, so many percent of the
 * packets of the udp rail that a process sends are lost, as many come twice, as many after others that were sent later, and
 * as many with a bit flipped; and in each second one path from it, or all of them, is cut for some hundred milliseconds.
 */
#ifndef NETWORK_H
#define NETWORK_H

#include <pthread.h>

#include "wire.h"

#define NETWORK_HELD 16

enum { NETWORK_LOST, NETWORK_REPEATED, NETWORK_HELD_BACK, NETWORK_DAMAGED, NETWORK_CUT, NETWORK_HARMS };

static struct {
	pthread_mutex_t lock;
	uint64_t seed, random;
	unsigned percent;
	int fd; /* to send what was held back by: the socket that it was for may be closed by then */
	struct {
		size_t length; /* 0: none */
		struct sockaddr_storage to;
		uint8_t packet[UDP_TRAIN_BYTES];
	} held[NETWORK_HELD];
	_Atomic unsigned *harmed; /* packets, by what was done to them */
} network = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline bool network_is_bad(void)
{
	return getenv("PM_TEST_NETWORK");
}

/* Each second has a time to be cut in, and a path, or all. */
static bool network_is_cut(unsigned path)
{
	uint64_t now_ms = seconds() * 1000, random = (network.seed + now_ms / 1000) * 0x9e3779b97f4a7c15u | 1;
	unsigned which = random_next(&random) % 4, from_ms = random_next(&random) % 800, long_ms = 100 + random_next(&random) % 200;
	return now_ms % 1000 - from_ms < long_ms && (which == path || which > 1);
}

static void network_hold(const struct udp_packet *packet, size_t length, unsigned at)
{
	socklen_t to_length = sizeof(network.held[at].to);
	network.held[at].length = length;
	memcpy(network.held[at].packet, packet, length);
	if (wire_way.to)
		memcpy(&network.held[at].to, wire_way.to, wire_way.to_length);
	else if (getpeername(wire_way.fd, (struct sockaddr *)&network.held[at].to, &to_length))
		network.held[at].length = 0;
}

static void network_let_go(unsigned at)
{
	size_t length = network.held[at].length;
	struct sockaddr_storage *to = &network.held[at].to;
	if (length)
		wire_call(SYS_sendto, network.fd, network.held[at].packet, length, MSG_DONTWAIT, to, sizeof(struct sockaddr_in));
	network.held[at].length = 0;
}

static void network_send_damaged(const struct udp_packet *packet, size_t length, uint64_t random)
{
	static uint8_t bad[UDP_TRAIN_BYTES];
	memcpy(bad, packet, length);
	bad[random / 8 % length] ^= 1 << random % 8;
	wire_send(bad, length);
}

/* What becomes of a packet, NETWORK_HARMS: nothing. */
static unsigned network_fate(const struct udp_packet *packet)
{
	unsigned fate = random_next(&network.random) % 100 / network.percent;
	if (network_is_cut(packet->type == UDP_GREETING ? 0 : packet->path))
		return NETWORK_CUT;
	return fate < NETWORK_CUT ? fate : NETWORK_HARMS;
}

static bool network_carry(const struct udp_packet *packet, size_t length)
{
	pthread_mutex_lock(&network.lock);
	unsigned fate = network_fate(packet), at = random_next(&network.random) % NETWORK_HELD;
	network_let_go(at);
	if (fate == NETWORK_REPEATED)
		wire_send(packet, length);
	else if (fate == NETWORK_HELD_BACK)
		network_hold(packet, length, at);
	else if (fate == NETWORK_DAMAGED)
		network_send_damaged(packet, length, random_next(&network.random));
	if (fate < NETWORK_HARMS)
		atomic_fetch_add(&network.harmed[fate], 1);
	pthread_mutex_unlock(&network.lock);
	return fate == NETWORK_REPEATED || fate == NETWORK_HARMS;
}

/* From here on, for this process; harmed is where it counts what it does to packets. */
static inline void network_begin(uint64_t seed, _Atomic unsigned harmed[NETWORK_HARMS])
{
	network.seed = network.random = seed | 1;
	network.percent = atoi(getenv("PM_TEST_NETWORK"));
	network.fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	network.harmed = harmed;
	CHECK(network.percent > 0 && network.percent * NETWORK_CUT < 100 && network.fd >= 0);
	wire = network_carry;
}

#endif
