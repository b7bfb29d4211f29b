/*
 * flow.c - the udp rail's streams over a network that loses, doubles, delays and reorders packets: all messages arrive,
 * whole and in order, and a silent peer costs few packets. No sockets: the time is the test's own.
 */
#include "flow.h"

#include "test.h"

#define RING 65536
#define SEGMENT 1200
#define MESSAGES 2000
#define LONGEST 16384

struct packet {
	uint64_t at;
	bool data;
	uint32_t sequence, offset, length, time_us;
	struct flow_news news;
	uint8_t bytes[SEGMENT];
	struct packet *next;
};

struct network {
	struct packet *packets; /* by time */
	uint64_t random;
	int loss, twice;        /* per thousand */
	uint64_t delay, jitter; /* ns */
	uint64_t sent;
};

struct end {
	struct flow flow;
	struct network network; /* towards this end */
	uint64_t random, other_random;
	uint64_t sent, received;
	bool frozen;
};

static void put_once(struct network *network, uint64_t now, const struct packet *packet)
{
	struct packet *copy = malloc(sizeof(*copy)), **place = &network->packets;
	*copy = *packet;
	copy->at = now + network->delay + (network->jitter ? random_next(&network->random) % network->jitter : 0);
	while (*place && (*place)->at <= copy->at)
		place = &(*place)->next;
	copy->next = *place;
	*place = copy;
}

static void put(struct network *network, uint64_t now, const struct packet *packet)
{
	network->sent++;
	if ((int)(random_next(&network->random) % 1000) >= network->loss)
		put_once(network, now, packet);
	if ((int)(random_next(&network->random) % 1000) < network->twice)
		put_once(network, now, packet);
}

static void say_news(struct end *end, struct end *other, uint64_t now)
{
	struct packet packet = {.time_us = now / 1000};
	flow_tell(&end->flow, &packet.news);
	put(&other->network, now, &packet);
}

static void receive_packets(struct end *end, struct end *other, uint64_t now)
{
	struct packet *packet;
	while ((packet = end->network.packets) && packet->at <= now) {
		end->network.packets = packet->next;
		end->flow.echo_us = packet->time_us;
		CHECK(flow_learn(&end->flow, now, &packet->news));
		if (packet->data)
			CHECK(flow_arrive(&end->flow, now, packet->sequence, packet->offset, packet->bytes, packet->length));
		else if (packet->sequence)
			flow_answer(&end->flow, now);
		free(packet);
	}
	if (flow_news_due(&end->flow, now))
		say_news(end, other, now);
}

static uint32_t next_length(uint64_t *random)
{
	static const int limits[] = {9, 100, 2000, LONGEST + 1};
	uint64_t value = random_next(random);
	return (value >> 8) % limits[value % 4];
}

static void fill(uint8_t *data, uint32_t length, uint64_t number)
{
	for (uint32_t i = 0; i < length; i++)
		data[i] = (uint8_t)(number * 17 + i * 5);
}

static void work(struct end *end, uint64_t messages)
{
	struct ring_message message;
	static uint8_t wanted[LONGEST];
	while (end->sent < messages) {
		uint64_t before = end->random;
		uint32_t length = next_length(&end->random);
		uint8_t *room = flow_reserve(&end->flow, length);
		if (!room) {
			end->random = before;
			break;
		}
		fill(room, length, end->sent);
		flow_commit(&end->flow, end->sent & 0xff, 0);
		end->sent++;
	}
	while (flow_peek(&end->flow, &message, LONGEST)) {
		uint32_t length = next_length(&end->other_random);
		CHECK_IS(message.length, length);
		CHECK_IS(message.kind, end->received & 0xff);
		fill(wanted, length, end->received);
		CHECK(!memcmp(message.data, wanted, length));
		flow_take(&end->flow, length);
		end->received++;
	}
}

static void send_packets(struct end *end, struct end *other, uint64_t now)
{
	struct flow_segment segment;
	if (flow_alarm(&end->flow, now)) {
		struct packet ping = {.time_us = now / 1000, .sequence = 1};
		flow_tell(&end->flow, &ping.news);
		put(&other->network, now, &ping);
	}
	while (flow_send(&end->flow, now, true, &segment)) {
		struct packet packet = {
			.data = true, .sequence = segment.sequence, .offset = segment.offset, .length = segment.length, .time_us = now / 1000,
		};
		flow_tell(&end->flow, &packet.news);
		memcpy(packet.bytes, segment.data, segment.length);
		put(&other->network, now, &packet);
	}
}

static void step(struct end *end, struct end *other, uint64_t now, uint64_t messages)
{
	if (end->frozen)
		return;
	receive_packets(end, other, now);
	work(end, messages);
	send_packets(end, other, now);
}

static void open_ends(struct end ends[2], struct network network, uint64_t seed)
{
	for (int i = 0; i < 2; i++) {
		ends[i] = (struct end){.network = network, .random = seed + i + 1, .other_random = seed + 2 - i};
		ends[i].network.random = seed * 77 + i + 3;
		CHECK_IS(flow_open(&ends[i].flow, RING, SEGMENT), 0);
	}
}

static void close_ends(struct end ends[2])
{
	for (int i = 0; i < 2; i++) {
		struct packet *packet;
		while ((packet = ends[i].network.packets)) {
			ends[i].network.packets = packet->next;
			free(packet);
		}
		CHECK_IS(ends[i].flow.dropped, 0);
		flow_close(&ends[i].flow);
	}
}

/* Both ends send until all has arrived; how long it took, s. */
static double converse(struct network network, uint64_t seed, uint64_t messages)
{
	struct end ends[2];
	uint64_t now = 1000000;
	uint64_t tick = network.delay / 50 < 5000 ? 5000 : network.delay / 50;
	open_ends(ends, network, seed);
	while (ends[0].received < messages || ends[1].received < messages) {
		now += tick;
		CHECK(now < 3600ull * 1000000000);
		for (int i = 0; i < 2; i++)
			step(&ends[i], &ends[!i], now, messages);
	}
	close_ends(ends);
	return now * 1e-9;
}

/* One end stands still for five minutes. */
static void frozen_peer(void)
{
	struct end ends[2];
	uint64_t now = 1000000;
	open_ends(ends, (struct network){.delay = 20000}, 5);
	for (; now < 100000000; now += 5000)
		for (int i = 0; i < 2; i++)
			step(&ends[i], &ends[!i], now, UINT64_MAX);
	ends[1].frozen = true;
	uint64_t before = ends[1].network.sent;
	for (uint64_t until = now + 300ull * 1000000000; now < until; now += 1000000)
		step(&ends[0], &ends[1], now, UINT64_MAX);
	CHECK(ends[1].network.sent - before < 1000);
	CHECK(ends[1].network.sent - before > 100);
	ends[1].frozen = false;
	uint64_t messages = ends[0].received, both = ends[1].received;
	for (uint64_t until = now + 1200000000ull; now < until; now += 20000)
		for (int i = 0; i < 2; i++)
			step(&ends[i], &ends[!i], now, ends[0].sent < messages + 3000 ? UINT64_MAX : 0);
	CHECK(ends[0].received > messages + 500 && ends[1].received > both + 500);
	close_ends(ends);
}

int main(void)
{
	converse((struct network){.delay = 20000}, 1, MESSAGES);
	converse((struct network){.delay = 20000, .loss = 10}, 2, MESSAGES);
	converse((struct network){.delay = 20000, .loss = 200, .twice = 100, .jitter = 300000}, 3, MESSAGES / 4);
	converse((struct network){.delay = 10000000, .loss = 10, .jitter = 1000000}, 4, MESSAGES / 4);
	for (uint64_t seed = 10; seed < 30; seed++)
		converse((struct network){
			.delay = seed * 1000, .loss = seed * 7 % 100, .twice = seed * 5 % 50, .jitter = seed * 31 % 7 * 50000,
		}, seed, 500);
	frozen_peer();
	return 0;
}
