/*
 * flow_network.h - two ends of the udp rail's streams (flow.h) and a simulated network between them, which loses, doubles,
 * delays and reorders packets, of one path or several: each has its own rate and delay. The time is the test's own.
 */
#ifndef FLOW_NETWORK_H
#define FLOW_NETWORK_H

#include "flow.h"

#include "test.h"

#define RING 65536
#define SEGMENT 1200
#define LONGEST 16384

struct packet {
	uint64_t at;
	bool data;
	unsigned path;
	enum flow_kind kind;
	uint64_t name, bulk_offset;
	uint32_t sequence, offset, length, time_us;
	struct flow_news news;
	uint8_t bytes[SEGMENT];
	struct packet *next;
};

/* One path in one direction. */
struct network {
	struct packet *packets; /* by time */
	uint64_t random;
	int loss, twice;        /* per thousand */
	uint64_t delay, jitter; /* ns */
	uint64_t rate, queue;   /* bytes a second, 0: as fast as they come; and bytes that wait at most */
	uint64_t free_at;       /* when all that waits has gone off, ns */
	bool cut;
	uint64_t sent, arrived; /* packets */
};

#define HEADERS 80 /* bytes of a packet beside what it carries */

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
	struct network networks[FLOW_PATHS]; /* towards this end, by path */
	unsigned heard;         /* path by which something came last */
	uint64_t random, other_random;
	uint64_t sent, received;
	bool frozen;
};

static inline void put_once(struct network *network, uint64_t now, const struct packet *packet)
{
	if (network->rate) {
		uint64_t begins = network->free_at > now ? network->free_at : now;
		if ((begins - now) * 1e-9 * network->rate > network->queue)
			return;
		now = network->free_at = begins + (HEADERS + packet->length) * 1000000000ull / network->rate;
	}
	struct packet *copy = malloc(sizeof(*copy)), **place = &network->packets;
	*copy = *packet;
	copy->at = now + network->delay + (network->jitter ? random_next(&network->random) % network->jitter : 0);
	while (*place && (*place)->at <= copy->at)
		place = &(*place)->next;
	copy->next = *place;
	*place = copy;
}

static inline void put(struct end *to, uint64_t now, const struct packet *packet)
{
	struct network *network = &to->networks[packet->path];
	network->sent++;
	if (network->cut)
		return;
	if ((int)(random_next(&network->random) % 1000) >= network->loss)
		put_once(network, now, packet);
	if ((int)(random_next(&network->random) % 1000) < network->twice)
		put_once(network, now, packet);
}

/* Tells what has arrived by the path by which something came last, or asks by another for the same. */
static inline void say(struct end *end, struct end *other, uint64_t now, unsigned path, bool ask)
{
	struct packet packet = {.time_us = now / 1000, .path = path, .sequence = ask};
	flow_tell(&end->flow, path, &packet.news);
	put(other, now, &packet);
}

static inline uint8_t byte_of(const struct transfer *transfer, uint64_t i)
{
	return transfer->bulk.name * 31 + i * 7 + (i >> 8);
}

static inline void place(struct transfer *transfer, const struct packet *packet)
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
static inline void work_bulk(struct end *end)
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

static inline void end_of_bulk(struct transfer *transfer)
{
	CHECK(transfer->told && !transfer->ended);
	for (uint64_t i = 0; i < transfer->bulk.length && !transfer->given_up; i++)
		CHECK_IS(transfer->placed[i], 1);
	transfer->ended = true;
}

static inline bool all_ended(const struct end *end)
{
	for (int i = 0; i < end->bulks; i++)
		if (!end->transfers[i].ended)
			return false;
	return true;
}

static inline void receive_packet(struct end *end, struct end *other, uint64_t now, const struct packet *packet)
{
	end->heard = packet->path;
	flow_heard(&end->flow, now, packet->path, packet->time_us, packet->news.echo_us);
	CHECK(flow_learn(&end->flow, now, packet->path, &packet->news));
	if (packet->data && packet->kind != FLOW_STREAM) {
		if (flow_arrive_bulk(&end->flow, now, packet->sequence) && packet->kind == FLOW_BULK)
			place(&other->transfers[packet->name], packet);
	} else if (packet->data) {
		CHECK(flow_arrive(&end->flow, now, packet->sequence, packet->offset, packet->bytes, packet->length));
	} else if (packet->sequence) {
		say(end, other, now, packet->path, false);
	}
}

static inline void receive_packets(struct end *end, struct end *other, uint64_t now)
{
	struct packet *packet;
	for (unsigned i = 0; i < end->flow.path_count; i++) {
		while ((packet = end->networks[i].packets) && packet->at <= now) {
			end->networks[i].packets = packet->next;
			end->networks[i].arrived++;
			receive_packet(end, other, now, packet);
			free(packet);
		}
	}
	if (flow_news_due(&end->flow, now))
		say(end, other, now, end->heard, false);
}

static inline uint32_t next_length(uint64_t *random)
{
	static const int limits[] = {9, 100, 2000, LONGEST + 1};
	uint64_t value = random_next(random);
	return (value >> 8) % limits[value % 4];
}

static inline void fill(uint8_t *data, uint32_t length, uint64_t number)
{
	for (uint32_t i = 0; i < length; i++)
		data[i] = (uint8_t)(number * 17 + i * 5);
}

static inline void work(struct end *end, struct end *other, uint64_t messages)
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

static inline void send_packets(struct end *end, struct end *other, uint64_t now)
{
	struct flow_segment segment;
	unsigned ask = flow_alarm(&end->flow, now);
	for (unsigned i = 0; i < end->flow.path_count; i++)
		if (ask >> i & 1)
			say(end, other, now, i, true);
	while (flow_send(&end->flow, now, true, &segment)) {
		struct packet packet = {
			.data = true, .kind = segment.kind, .sequence = segment.sequence, .offset = segment.offset,
			.length = segment.length, .time_us = now / 1000, .path = segment.path,
		};
		flow_tell(&end->flow, segment.path, &packet.news);
		if (segment.kind == FLOW_BULK) {
			packet.name = segment.bulk->name;
			packet.bulk_offset = segment.offset;
		}
		if (segment.length)
			memcpy(packet.bytes, segment.data, segment.length);
		put(other, now, &packet);
	}
}

static inline void step(struct end *end, struct end *other, uint64_t now, uint64_t messages)
{
	if (end->frozen)
		return;
	receive_packets(end, other, now);
	work(end, other, messages);
	send_packets(end, other, now);
}

/* By as many paths as there are networks, each the same in both directions. */
static inline void open_ends(struct end ends[2], const struct network *networks, unsigned paths, uint64_t seed)
{
	for (int i = 0; i < 2; i++) {
		memset(&ends[i], 0, sizeof(ends[i]));
		ends[i].random = seed + i + 1;
		ends[i].other_random = seed + 2 - i;
		ends[i].bulk_random = seed * 5 + i + 1;
		for (unsigned j = 0; j < paths; j++) {
			ends[i].networks[j] = networks[j];
			ends[i].networks[j].random = seed * 77 + i + 3 + 10 * j;
		}
		CHECK_IS(flow_open(&ends[i].flow, RING, SEGMENT, FLOW_SEGMENTS, paths), 0);
	}
}

static inline void close_ends(struct end ends[2])
{
	for (int i = 0; i < 2; i++) {
		for (unsigned j = 0; j < ends[i].flow.path_count; j++) {
			struct packet *packet;
			while ((packet = ends[i].networks[j].packets)) {
				ends[i].networks[j].packets = packet->next;
				free(packet);
			}
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
static inline double converse(const struct network *networks, unsigned paths, uint64_t seed, uint64_t messages)
{
	static struct end ends[2];
	uint64_t now = 1000000, quick = UINT64_MAX;
	for (unsigned i = 0; i < paths; i++)
		quick = networks[i].delay < quick ? networks[i].delay : quick;
	uint64_t tick = quick / 50 < 5000 ? 5000 : quick / 50;
	open_ends(ends, networks, paths, seed);
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

#endif
