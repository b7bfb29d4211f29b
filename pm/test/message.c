/* message.c - messages arrive whole, once, in order, of every length, and say who sent them. */
#include "pair.h"

static void fill(uint8_t *data, size_t length, uint32_t seed)
{
	for (size_t i = 0; i < length; i++)
		data[i] = (uint8_t)(seed * 31 + i * 7);
}

static void one_way(struct side *side)
{
	uint8_t data[PM_MAX_MESSAGE];
	struct pm_message message;
	for (uint32_t length = 0; length <= PM_MAX_MESSAGE; length += length < 300 ? 1 : 977) {
		fill(data, length, length);
		if (side->number == 0) {
			send_surely(side, length & 0xff, data, length);
			continue;
		}
		receive_surely(side, &message);
		CHECK(message.peer == side->peer);
		CHECK_IS(message.length, length);
		CHECK_IS(message.kind, length & 0xff);
		CHECK_IS((uintptr_t)message.data % 8, 0);
		CHECK(!memcmp(message.data, data, length));
		pm_release(side->endpoint, &message);
	}
}

static void both_ways(struct side *side)
{
	enum { COUNT = 200000 };
	uint64_t seed = 1 + side->number, other = 2 - side->number, sent = 0, received = 0;
	uint64_t value[16];
	uint32_t length = 8 + random_next(&seed) % 120;
	struct pm_message message;
	while (sent < COUNT || received < COUNT) {
		value[0] = sent;
		struct iovec part = {value, length};
		if (sent < COUNT && pm_send(side->peer, 1, &part, 1) == 0) {
			sent++;
			length = 8 + random_next(&seed) % 120;
		}
		if (pm_receive(side->endpoint, &message)) {
			CHECK_IS(*(uint64_t *)message.data, received);
			CHECK_IS(message.length, 8 + random_next(&other) % 120);
			received++;
			pm_release(side->endpoint, &message);
		}
	}
	struct pm_statistics statistics;
	pm_statistics(side->endpoint, &statistics);
	CHECK_IS(statistics.messages_sent, COUNT);
	CHECK_IS(statistics.messages_received, COUNT);
	CHECK_IS(statistics.dropped, 0);
	check_rails(&statistics, false, COUNT, statistics.message_bytes_sent);
}

static void to_itself(void)
{
	struct side side = {0};
	struct pm_address own;
	struct pm_message message;
	CHECK_IS(pm_context_open(NULL, &side.context), 0);
	CHECK_IS(pm_endpoint_open(side.context, &side.endpoint), 0);
	pm_endpoint_address(side.endpoint, &own);
	CHECK_IS(pm_peer_get(side.endpoint, &own, &side.peer), 0);
	send_surely(&side, 9, "bird", 5);
	receive_surely(&side, &message);
	CHECK(!strcmp(message.data, "bird"));
	CHECK(message.peer == side.peer);
	pm_release(side.endpoint, &message);
	CHECK_IS(pm_context_close(side.context), 0);
}

static void too_long(struct side *side)
{
	static uint8_t data[PM_MAX_MESSAGE + 1];
	struct iovec parts[2] = {{data, PM_MAX_MESSAGE}, {data, 1}};
	void *room;
	CHECK_IS(pm_send(side->peer, 0, parts, 2), -EMSGSIZE);
	int error;
	struct pm_message message;
	while ((error = pm_reserve(side->peer, PM_MAX_MESSAGE + 1, &room)) == -EAGAIN)
		pm_receive(side->endpoint, &message);
	CHECK_IS(error, -EMSGSIZE);
}

int main(void)
{
	pair_run(NULL, one_way);
	pair_run(NULL, both_ways);
	pair_run(&(struct pm_options){.size = sizeof(struct pm_options), .ring_bytes = 65536}, both_ways);
	pair_run(NULL, too_long);
	to_itself();
	return 0;
}
