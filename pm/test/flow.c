/*
 * flow.c - the udp rail's streams over a network that loses, doubles, delays and reorders packets: all messages arrive,
 * whole and in order, and a silent peer costs few packets.
 */
#include "flow_network.h"

#define MESSAGES 2000

/* One end stands still for five minutes. */
static void frozen_peer(void)
{
	static struct end ends[2];
	uint64_t now = 1000000;
	open_ends(ends, &(struct network){.delay = 20000}, 1, 5);
	for (; now < 100000000; now += 5000)
		for (int i = 0; i < 2; i++)
			step(&ends[i], &ends[!i], now, UINT64_MAX);
	ends[1].frozen = true;
	uint64_t before = ends[1].networks[0].sent;
	for (uint64_t until = now + 300ull * 1000000000; now < until; now += 1000000)
		step(&ends[0], &ends[1], now, UINT64_MAX);
	CHECK(ends[1].networks[0].sent - before < 1000);
	CHECK(ends[1].networks[0].sent - before > 100);
	ends[1].frozen = false;
	uint64_t messages = ends[0].received, both = ends[1].received;
	for (uint64_t until = now + 1200000000ull; now < until; now += 20000)
		for (int i = 0; i < 2; i++)
			step(&ends[i], &ends[!i], now, ends[0].sent < messages + 3000 ? UINT64_MAX : 0);
	CHECK(ends[0].received > messages + 500 && ends[1].received > both + 500);
	close_ends(ends);
}

/* The end of what is sent is lost, and its being sent again has to wait for nobody: how long it takes, us. */
static double lost_end(int segments, int lost)
{
	static struct end ends[2];
	static uint8_t memory[20 * SEGMENT];
	struct flow_bulk bulk = {.memory = memory, .length = segments * (SEGMENT - FLOW_BULK_HEADER)};
	uint64_t now = 1000000, began = 0;
	open_ends(ends, &(struct network){.delay = 20000}, 1, 7);
	for (; now < 20000000; now += 5000) /* the way is known */
		for (int i = 0; i < 2; i++)
			step(&ends[i], &ends[!i], now, 20);
	ends[0].transfers[0].placed = calloc(1, sizeof(memory));
	ends[0].transfers[0].bulk.length = sizeof(memory);
	for (size_t i = 0; i < sizeof(memory); i++)
		memory[i] = byte_of(&ends[0].transfers[0], i);
	struct flow_segment segment;
	began = now;
	flow_bulk_add(&ends[0].flow, &bulk);
	for (int i = 0; flow_send(&ends[0].flow, now, true, &segment); i++) {
		struct packet packet = {.data = true, .kind = FLOW_EMPTY, .sequence = segment.sequence, .time_us = now / 1000};
		flow_tell(&ends[0].flow, 0, &packet.news);
		if (i < segments - lost)
			put(&ends[1], now, &packet);
	}
	CHECK_IS(bulk.cut, bulk.length);
	while (bulk.listed) {
		now += 5000;
		CHECK(now < began + 1000000000);
		for (int i = 0; i < 2; i++)
			step(&ends[i], &ends[!i], now, 20);
	}
	close_ends(ends);
	return (now - began) * 1e-3;
}

int main(void)
{
	converse(&(struct network){.delay = 20000}, 1, 1, MESSAGES);
	converse(&(struct network){.delay = 20000, .loss = 10}, 1, 2, MESSAGES);
	converse(&(struct network){.delay = 20000, .loss = 200, .twice = 100, .jitter = 300000}, 1, 3, MESSAGES / 4);
	converse(&(struct network){.delay = 10000000, .loss = 10, .jitter = 1000000}, 1, 4, MESSAGES / 4);
	for (uint64_t seed = 10; seed < 30; seed++)
		converse(&(struct network){
			.delay = seed * 1000, .loss = seed * 7 % 100, .twice = seed * 5 % 50, .jitter = seed * 31 % 7 * 50000,
		}, 1, seed, 500);
	frozen_peer();
	/* A round trip, somewhat more, and the wait for news, and some more for what is found out about by what was probed with. */
	CHECK(lost_end(20, 1) < 600);
	CHECK(lost_end(20, 3) < 900);
	CHECK(lost_end(20, 20) < 1200);
	return 0;
}
