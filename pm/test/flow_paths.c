/*
 * flow_paths.c - the udp rail's streams over several paths at once: their rates add up, what overtakes is not taken for
 * lost, a slow path makes nothing slower, and one that dies is done without, and used again when it is back.
 */
#include "flow_network.h"

#define US 1000ull
#define MS 1000000ull
#define MB 1000000ull
#define CABLE {.rate = 25 * MB, .queue = 100000, .delay = 50 * US}

static struct end ends[2];
static uint64_t now;

static void begin(const struct network *networks, unsigned paths)
{
	now = MS;
	open_ends(ends, networks, paths, 9);
}

static void run_for(uint64_t time)
{
	for (uint64_t until = now + time; now < until; now += 5 * US)
		for (int i = 0; i < 2; i++)
			step(&ends[i], &ends[!i], now, 0);
}

/* Has so much memory begun to be sent, after what is sent already. */
static struct flow_bulk *send_bulk(int number, uint64_t length)
{
	struct transfer *transfer = &ends[0].transfers[number];
	transfer->bulk = (struct flow_bulk){.name = number, .length = length};
	transfer->bulk.memory = transfer->memory = malloc(length);
	transfer->placed = calloc(1, length);
	for (uint64_t i = 0; i < length; i++)
		transfer->memory[i] = byte_of(transfer, i);
	flow_bulk_add(&ends[0].flow, &transfer->bulk);
	return &transfer->bulk;
}

/* Sends so much from the one end to the other, which checks it; bytes a second. */
static double send_all(int number, uint64_t length)
{
	uint64_t began = now;
	struct flow_bulk *bulk = send_bulk(number, length);
	while (bulk->listed) {
		run_for(5 * US);
		CHECK(now - began < 100000 * MS);
	}
	for (uint64_t i = 0; i < length; i++)
		CHECK_IS(ends[0].transfers[number].placed[i], 1);
	return length / ((now - began) * 1e-9);
}

/* The rate over the first so many of these paths, when they are known. */
static double rate(const struct network *networks, unsigned paths)
{
	begin(networks, paths);
	send_all(0, 4 * MB);
	double measured = send_all(1, 20 * MB);
	close_ends(ends);
	return measured;
}

static void rates_add_up(void)
{
	struct network same[2] = {CABLE, CABLE};
	struct network other[2] = {same[0], {.rate = 12 * MB, .queue = 100000, .delay = 500 * US}};
	struct network lossy[2] = {same[0], same[0]};
	lossy[1].loss = 10;
	double one = rate(same, 1);
	CHECK(one > 20 * MB && one < 25 * MB);
	CHECK(rate(same, 2) > 1.8 * one);
	CHECK(rate(other, 2) > 1.3 * one);
	CHECK(rate(lossy, 2) > 1.6 * one);
}

/* What comes by a quick path overtakes what has gone by a slow one. */
static void overtaking_is_no_loss(void)
{
	struct network networks[2] = {CABLE, CABLE};
	networks[0].queue = networks[1].queue = 10 * MB;
	networks[1].delay = 2 * MS;
	begin(networks, 2);
	send_all(0, 20 * MB);
	for (int i = 0; i < 2; i++)
		CHECK(ends[1].networks[i].arrived > 2000);
	CHECK(ends[0].flow.sent_again < 5); /* an end that takes long may be asked for */
	close_ends(ends);
}

static void slow_path_is_no_burden(void)
{
	struct network networks[2] = {CABLE, {.rate = MB / 2, .queue = MB, .delay = 20 * MS}};
	double one = rate(networks, 1), both = rate(networks, 2);
	CHECK(both > 0.9 * one); /* the last may wait for a round trip of the slow one, which is a twentieth of all the time */
}

/* Few bytes go by the quickest path. */
static void short_messages(void)
{
	struct network networks[2] = {{.delay = 200 * US}, {.delay = 50 * US}};
	begin(networks, 2);
	send_all(0, MB);
	uint64_t before = ends[1].networks[0].sent, began = now;
	for (int i = 0; i < 20; i++)
		send_all(1 + i, 100);
	CHECK_IS(ends[1].networks[0].sent, before);
	CHECK(now - began < 20 * 300 * US);
	close_ends(ends);
}

/* A cable is cut in the midst, for so long. */
static void cut_for(unsigned path, uint64_t time)
{
	struct network networks[2] = {CABLE, CABLE};
	begin(networks, 2);
	send_all(0, 4 * MB);
	struct flow_bulk *bulk = send_bulk(1, 20 * MB);
	run_for(50 * MS);
	for (int i = 0; i < 2; i++)
		ends[i].networks[path].cut = true;
	run_for(20 * MS);
	CHECK(ends[0].flow.paths[path].aside && !ends[0].flow.paths[!path].aside);
	CHECK_IS(ends[0].flow.set_aside, 1);
	/* It goes on at the other's rate, and the first is asked now and then. */
	uint64_t cut = bulk->cut, sent = ends[1].networks[path].sent;
	run_for(time);
	CHECK(bulk->cut - cut > 20 * MB * time / 1000000000 || bulk->cut == bulk->length);
	CHECK(ends[1].networks[path].sent - sent < 10 + time / (100 * MS));
	for (int i = 0; i < 2; i++)
		ends[i].networks[path].cut = false;
	uint64_t left = bulk->length - bulk->cut;
	double after = send_all(2, 40 * MB) * (40 * MB + left) / (40 * MB);
	CHECK(!ends[0].flow.paths[path].aside);
	CHECK_IS(ends[0].flow.set_aside, 1);
	CHECK(after > 40 * MB);
	for (uint64_t i = 0; i < 20 * MB; i++)
		CHECK_IS(ends[0].transfers[1].placed[i], 1);
	close_ends(ends);
}

/* The one by which little is sent as it is slower dies, and is known to be dead before it is needed. */
static void cut_unused(void)
{
	struct network networks[2] = {CABLE, CABLE};
	networks[1].delay = 500 * US;
	begin(networks, 2);
	send_all(0, 4 * MB);
	CHECK(!ends[0].flow.paths[1].aside);
	for (int i = 0; i < 2; i++)
		ends[i].networks[1].cut = true;
	for (int i = 1; i < BULKS; i++) {
		send_all(i, 100);
		run_for(20 * MS);
	}
	CHECK(ends[0].flow.paths[1].aside && !ends[0].flow.paths[0].aside);
	close_ends(ends);
}

/* The last segments are lost after the network was full, and round trips long: they are sent again soon after they should
 * have arrived. */
static void end_is_lost(void)
{
	struct network network = CABLE;
	begin(&network, 1);
	struct flow_bulk *bulk = send_bulk(0, 4 * MB);
	while (bulk->length - bulk->cut > 3 * SEGMENT)
		run_for(5 * US);
	CHECK(ends[0].flow.paths[0].rtt_us > 3000);
	ends[1].networks[0].cut = true;
	while (ends[0].flow.on_its_way > 3)
		run_for(5 * US);
	ends[1].networks[0].cut = false;
	uint64_t began = now;
	while (bulk->listed)
		run_for(5 * US);
	CHECK(now - began < 2 * MS);
	close_ends(ends);
}

/* What is slow is not lost: little is sent again to a peer that looks each 2 ms, after it has been quick, or over a network
 * that takes 1 ms for each segment. */
static void slow_is_not_lost(void)
{
	struct network quick = {.delay = 20 * US}, slow = {.delay = 50 * US, .rate = MB, .queue = MB};
	begin(&quick, 1);
	for (int i = 0; i < 200; i++)
		for (uint64_t until = now + MS; now < until; now += 5 * US)
			for (int j = 0; j < 2; j++)
				step(&ends[j], &ends[!j], now, 10 * (i + 1));
	uint64_t again = ends[0].flow.sent_again;
	for (int i = 0; i < 100; i++)
		for (uint64_t until = now + 10 * MS; now < until; now += 5 * US) {
			step(&ends[0], &ends[1], now, 2000 + i + 1);
			if (now % (2 * MS) < 5 * US)
				step(&ends[1], &ends[0], now, 2000);
		}
	CHECK(ends[1].received > 2090);
	CHECK(ends[0].flow.sent_again - again < 30); /* until the round trip is known to have become longer */
	close_ends(ends);
	begin(&slow, 1);
	for (int i = 0; i < 10; i++) {
		send_all(i, 20 * SEGMENT);
		run_for(100 * MS);
	}
	CHECK(ends[0].flow.sent_again < 3);
	close_ends(ends);
}

/* The last path is never set aside, when it works in one direction and the other end goes on sending. */
static void last_path_one_way(void)
{
	struct network networks[2] = {CABLE, CABLE};
	begin(networks, 2);
	send_all(0, 4 * MB);
	for (int i = 0; i < 2; i++)
		ends[i].networks[1].cut = true;
	send_all(1, MB);
	CHECK(ends[0].flow.paths[1].aside);
	ends[1].networks[0].cut = true;
	struct flow_bulk *bulk = send_bulk(2, 100);
	for (uint64_t began = now; now - began < 1500 * MS; now += 5 * US) {
		step(&ends[0], &ends[1], now, 0);
		step(&ends[1], &ends[0], now, (now - began) / (20 * MS));
		CHECK(!ends[0].flow.paths[0].aside);
	}
	CHECK(ends[0].received > 3 && bulk->listed);
	ends[1].networks[0].cut = false;
	run_for(1000 * MS);
	CHECK(!bulk->listed);
	close_ends(ends);
}

/* Nobody is given up, and no path for good, when all are dead for some time. */
static void all_cut(void)
{
	struct network networks[2] = {{.delay = 50 * US}, {.delay = 50 * US}};
	begin(networks, 2);
	send_all(0, MB);
	struct flow_bulk *bulk = send_bulk(1, 50 * MB);
	run_for(MS);
	for (int i = 0; i < 4; i++)
		ends[i / 2].networks[i % 2].cut = true;
	run_for(5000 * MS);
	CHECK(bulk->listed);
	CHECK(!ends[0].flow.paths[0].aside || !ends[0].flow.paths[1].aside);
	for (int i = 0; i < 4; i++)
		ends[i / 2].networks[i % 2].cut = false;
	run_for(3000 * MS);
	CHECK(!bulk->listed);
	send_all(2, MB);
	CHECK(!ends[0].flow.paths[0].aside && !ends[0].flow.paths[1].aside);
	close_ends(ends);
}

/* One that never was there, as when the other end has no way to it. */
static void never_there(void)
{
	struct network networks[2] = {{.delay = 50 * US}, {.cut = true}};
	begin(networks, 2);
	send_all(0, 10 * MB);
	run_for(3000 * MS);
	CHECK(ends[0].flow.paths[1].aside);
	CHECK(ends[1].networks[1].sent < 10);
	close_ends(ends);
}

/* It works in one direction only. */
static void one_way(void)
{
	struct network networks[2] = {CABLE, CABLE};
	for (int i = 0; i < 2; i++) {
		begin(networks, 2);
		send_all(0, 4 * MB);
		ends[i].networks[1].cut = true;
		CHECK(send_all(1, 20 * MB) > 15 * MB);
		close_ends(ends);
	}
}

int main(void)
{
	const struct network plain = {.delay = 20 * US}, poor = {.delay = 300 * US, .loss = 100, .twice = 100, .jitter = 300 * US};
	converse((struct network[]){plain, plain}, 2, 1, 1000);
	converse((struct network[]){plain, poor}, 2, 2, 500);
	converse((struct network[]){poor, poor, plain}, 3, 3, 500);
	for (uint64_t seed = 10; seed < 20; seed++)
		converse((struct network[]){
			{.delay = seed * US, .loss = seed * 7 % 100, .twice = seed * 5 % 50, .jitter = seed * 31 % 7 * 50000},
			{.delay = seed * 7 % 11 * 30 * US, .loss = seed * 5 % 50, .twice = seed, .jitter = seed % 3 * 20000},
		}, 2, seed, 300);
	rates_add_up();
	overtaking_is_no_loss();
	slow_path_is_no_burden();
	short_messages();
	cut_for(0, 30 * MS);
	cut_for(1, 2000 * MS);
	cut_unused();
	end_is_lost();
	slow_is_not_lost();
	last_path_one_way();
	all_cut();
	never_there();
	one_way();
	return 0;
}
