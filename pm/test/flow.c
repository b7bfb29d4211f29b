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
	enum flow_kind kind;
	uint64_t name, bulk_offset;
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

/* Bulk, at its sender and its receiver; a message of kind BULK_END follows each. */
#define BULKS 60
#define LONGEST_BULK 100000
#define BULK_END 0x100

struct transfer {
	struct flow_bulk bulk;
	uint8_t *memory;    /* the sender's */
	uint8_t *placed;    /* the receiver's, and how often each byte was put there */
	bool begun, told, given_up, ended;
};

struct end {
	struct transfer transfers[BULKS];
	int bulks;          /* that this end is to send */
	uint64_t bulk_random;
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

static uint8_t byte_of(const struct transfer *transfer, uint64_t i)
{
	return transfer->bulk.name * 31 + i * 7 + (i >> 8);
}

static void place(struct transfer *transfer, const struct packet *packet)
{
	CHECK(!transfer->ended);
	for (uint32_t i = 0; i < packet->length; i++) {
		uint64_t at = packet->bulk_offset + i;
		CHECK(at < transfer->bulk.length);
		CHECK_IS(packet->bytes[i], byte_of(transfer, at));
		CHECK_IS(transfer->placed[at]++, 0);
	}
}

/* Now and then bulk begins, or is taken away; when all of it has a number, its end is told. */
static void work_bulk(struct end *end)
{
	for (int i = 0; i < end->bulks; i++) {
		struct transfer *transfer = &end->transfers[i];
		struct flow_bulk *bulk = &transfer->bulk;
		if (!transfer->begun && random_next(&end->bulk_random) % 200 == 0) {
			*bulk = (struct flow_bulk){.name = i, .length = 1 + random_next(&end->bulk_random) % LONGEST_BULK};
			bulk->memory = transfer->memory = malloc(bulk->length);
			transfer->placed = calloc(1, bulk->length);
			for (uint64_t at = 0; at < bulk->length; at++)
				transfer->memory[at] = byte_of(transfer, at);
			flow_bulk_add(&end->flow, bulk);
			transfer->begun = true;
		} else if (transfer->begun && !transfer->told && !transfer->given_up && random_next(&end->bulk_random) % 1000 == 0) {
			flow_bulk_remove(&end->flow, bulk);
			free(transfer->memory); /* who looks at it now is found by the address sanitizer */
			transfer->memory = NULL;
			transfer->given_up = true;
		}
		if (transfer->begun && !transfer->told && (transfer->given_up || bulk->cut == bulk->length)) {
			uint32_t *room = flow_reserve(&end->flow, sizeof(*room));
			if (!room)
				return;
			*room = i;
			flow_commit(&end->flow, 0, 1);
			transfer->told = true;
		}
	}
}

static void end_of_bulk(struct transfer *transfer)
{
	CHECK(transfer->told && !transfer->ended);
	for (uint64_t i = 0; i < transfer->bulk.length && !transfer->given_up; i++)
		CHECK_IS(transfer->placed[i], 1);
	transfer->ended = true;
}

static bool all_ended(const struct end *end)
{
	for (int i = 0; i < end->bulks; i++)
		if (!end->transfers[i].ended)
			return false;
	return true;
}

static void receive_packets(struct end *end, struct end *other, uint64_t now)
{
	struct packet *packet;
	while ((packet = end->network.packets) && packet->at <= now) {
		end->network.packets = packet->next;
		end->flow.echo_us = packet->time_us;
		CHECK(flow_learn(&end->flow, now, &packet->news));
		if (packet->data && packet->kind != FLOW_STREAM) {
			if (flow_arrive_bulk(&end->flow, now, packet->sequence) && packet->kind == FLOW_BULK)
				place(&other->transfers[packet->name], packet);
		} else if (packet->data)
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

static void work(struct end *end, struct end *other, uint64_t messages)
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
	work_bulk(end);
	while (flow_peek(&end->flow, &message, LONGEST)) {
		if (message.type == 1) {
			CHECK_IS(message.length, 4);
			end_of_bulk(&other->transfers[*(const uint32_t *)message.data]);
			flow_take(&end->flow, 4);
			continue;
		}
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
			.data = true, .kind = segment.kind, .sequence = segment.sequence, .offset = segment.offset, .length = segment.length, .time_us = now / 1000,
		};
		flow_tell(&end->flow, &packet.news);
		if (segment.kind == FLOW_BULK) {
			packet.name = segment.bulk->name;
			packet.bulk_offset = segment.offset;
		}
		if (segment.length)
			memcpy(packet.bytes, segment.data, segment.length);
		put(&other->network, now, &packet);
	}
}

static void step(struct end *end, struct end *other, uint64_t now, uint64_t messages)
{
	if (end->frozen)
		return;
	receive_packets(end, other, now);
	work(end, other, messages);
	send_packets(end, other, now);
}

static void open_ends(struct end ends[2], struct network network, uint64_t seed)
{
	for (int i = 0; i < 2; i++) {
		memset(&ends[i], 0, sizeof(ends[i]));
		ends[i].network = network;
		ends[i].random = seed + i + 1;
		ends[i].other_random = seed + 2 - i;
		ends[i].bulk_random = seed * 5 + i + 1;
		ends[i].network.random = seed * 77 + i + 3;
		CHECK_IS(flow_open(&ends[i].flow, RING, SEGMENT, FLOW_SEGMENTS), 0);
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
		for (int j = 0; j < BULKS; j++) {
			free(ends[i].transfers[j].memory);
			free(ends[i].transfers[j].placed);
		}
		CHECK_IS(ends[i].flow.dropped, 0);
		flow_close(&ends[i].flow);
	}
}

/* Both ends send until all has arrived; how long it took, s. */
static double converse(struct network network, uint64_t seed, uint64_t messages)
{
	static struct end ends[2];
	uint64_t now = 1000000;
	uint64_t tick = network.delay / 50 < 5000 ? 5000 : network.delay / 50;
	open_ends(ends, network, seed);
	ends[0].bulks = BULKS;
	ends[1].bulks = BULKS / 2;
	while (ends[0].received < messages || ends[1].received < messages || !all_ended(&ends[0]) || !all_ended(&ends[1])) {
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
	static struct end ends[2];
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

/* The end of what is sent is lost, and its being sent again has to wait for nobody: how long it takes, us. */
static double lost_end(int segments, int lost)
{
	static struct end ends[2];
	static uint8_t memory[20 * SEGMENT];
	struct flow_bulk bulk = {.memory = memory, .length = segments * (SEGMENT - FLOW_BULK_HEADER)};
	uint64_t now = 1000000, began = 0;
	open_ends(ends, (struct network){.delay = 20000}, 7);
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
		flow_tell(&ends[0].flow, &packet.news);
		if (i < segments - lost)
			put(&ends[1].network, now, &packet);
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
	converse((struct network){.delay = 20000}, 1, MESSAGES);
	converse((struct network){.delay = 20000, .loss = 10}, 2, MESSAGES);
	converse((struct network){.delay = 20000, .loss = 200, .twice = 100, .jitter = 300000}, 3, MESSAGES / 4);
	converse((struct network){.delay = 10000000, .loss = 10, .jitter = 1000000}, 4, MESSAGES / 4);
	for (uint64_t seed = 10; seed < 30; seed++)
		converse((struct network){
			.delay = seed * 1000, .loss = seed * 7 % 100, .twice = seed * 5 % 50, .jitter = seed * 31 % 7 * 50000,
		}, seed, 500);
	frozen_peer();
	/* Two round trips and the wait for news, and some more for what is found out about by what was probed with. */
	CHECK(lost_end(20, 1) < 600);
	CHECK(lost_end(20, 3) < 900);
	CHECK(lost_end(20, 20) < 1200);
	return 0;
}
