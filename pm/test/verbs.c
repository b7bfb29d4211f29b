/*
 * verbs.c - what is true of the verbs rail alone, on a device of software (test/stub): large remote accesses go from where
 * the bytes lie to where they belong, by way of the pin-down cache; keys that are no longer good; memory that cannot be
 * registered; queue pairs that fail; devices that are not there.
 */
#include "over_verbs.h"

#define SIZE (256 << 10)
#define ROUNDS 30

static void fill(uint64_t *memory, uint64_t with)
{
	for (size_t i = 0; i < SIZE / sizeof(*memory); i++)
		memory[i] = with + i;
}

static void check_filled(const uint64_t *memory, uint64_t with)
{
	for (size_t i = 0; i < SIZE / sizeof(*memory); i++)
		CHECK_IS(memory[i], (long long)(with + i));
}

/* Offers the memory to the other side, which writes to it and reads from it in turns. */
static void serve(struct side *side, uint64_t *memory)
{
	struct pm_region *region = offer(side, memory, SIZE, PM_REMOTE_READ | PM_REMOTE_WRITE);
	for (int i = 0; i < ROUNDS; i++) {
		await_number(side, i);
		check_filled(memory, 1000 * i);
		fill(memory, 1000 * i + 1);
		send_number(side, i);
	}
	await_number(side, ROUNDS);
	CHECK_IS(pm_deregister(region), 0);
}

/* Writes and reads from and to the same memory, which is pinned once. */
static void again_and_again(struct side *side)
{
	uint64_t address, key, *memory = map(SIZE);
	warm_up(side);
	if (side->number == 1) {
		serve(side, memory);
		send_number(side, 0);
		await_number(side, 0);
		return;
	}
	learn(side, &address, &key);
	for (int i = 0; i < ROUNDS; i++) {
		fill(memory, 1000 * i);
		CHECK_IS(write_to(side, memory, SIZE, address, key), 0);
		send_number(side, i);
		await_number(side, i);
		CHECK_IS(read_from(side, memory, SIZE, address, key), 0);
		check_filled(memory, 1000 * i + 1);
	}
	struct pm_statistics statistics = statistics_of(side);
	CHECK_IS(statistics.direct_bytes, 2ll * ROUNDS * SIZE);
	CHECK_IS(statistics.rails[PM_RAIL_VERBS].access_bytes, 2ll * ROUNDS * SIZE);
	CHECK_IS(statistics.pin_misses, 1);
	CHECK_IS(statistics.pin_hits, 2 * ROUNDS - 1);
	CHECK_IS(statistics.pinned_bytes, SIZE);
	/* Beyond the end, which is known here; and what the message after it goes by is still the ring. */
	CHECK_IS(write_to(side, memory, SIZE, address + 8, key), -EACCES);
	CHECK_IS(read_from(side, memory, SIZE, address + 8, key), -EACCES);
	CHECK_IS(statistics_of(side).switches, 1);
	send_number(side, ROUNDS);
	await_number(side, 0);
	/* The key is known to the ring, and to the device no more: the ring fails, and not the peer. */
	CHECK_IS(write_to(side, memory, SIZE, address, key), -EACCES);
	CHECK_IS(read_from(side, memory, SIZE, address, key), -EACCES);
	CHECK_IS(statistics_of(side).switches, 2);
	send_number(side, 0);
}

/* Memory is mapped, and mapped anew at the same address: nothing goes to or from what was there before. */
static void new_memory(struct side *side)
{
	uint64_t address, key, *memory = map(SIZE);
	warm_up(side);
	if (side->number == 1) {
		serve(side, memory);
		return;
	}
	learn(side, &address, &key);
	for (int i = 0; i < ROUNDS; i++) {
		fill(memory, 1000 * i);
		CHECK_IS(write_to(side, memory, SIZE, address, key), 0);
		send_number(side, i);
		await_number(side, i);
		CHECK(mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
		CHECK_IS(read_from(side, memory, SIZE, address, key), 0);
		check_filled(memory, 1000 * i + 1);
		CHECK(!munmap(memory, SIZE));
		CHECK(mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
	}
	CHECK_IS(statistics_of(side).direct_bytes, 2ll * ROUNDS * SIZE);
	send_number(side, ROUNDS);
}

/* Memory that can only be read, on either side, and memory of which a part is not there. */
static void odd_memory(struct side *side)
{
	uint64_t address, key, hole, hole_key, *memory = map(SIZE), *copy = map(SIZE);
	warm_up(side);
	fill(memory, 7);
	CHECK(!mprotect(memory, SIZE, PROT_READ));
	if (side->number == 1) {
		struct pm_region *region = offer(side, memory, SIZE, PM_REMOTE_READ);
		uint8_t *half = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(half != MAP_FAILED && !munmap(half + SIZE, SIZE));
		struct pm_region *partly = offer(side, half, 2 * SIZE, PM_REMOTE_READ | PM_REMOTE_WRITE);
		await_number(side, 1);
		check_filled((uint64_t *)half, 7);
		CHECK_IS(pm_deregister(region), 0);
		CHECK_IS(pm_deregister(partly), 0);
		return;
	}
	learn(side, &address, &key);
	learn(side, &hole, &hole_key);
	CHECK_IS(read_from(side, copy, SIZE, address, key), 0);
	check_filled(copy, 7);
	CHECK_IS(write_to(side, copy, SIZE, address, key), -EACCES);
	CHECK_IS(write_to(side, memory, SIZE, hole, hole_key), 0); /* by copies */
	memset(copy, 0, SIZE);
	CHECK_IS(read_from(side, copy, SIZE, hole, hole_key), 0);
	check_filled(copy, 7);
	CHECK_IS(statistics_of(side).switches, 1);
	send_number(side, 1);
}

/* Who closes its endpoint right after it has sent has sent it all. */
static void last_words(struct side *side)
{
	struct pm_message message;
	struct pm_event event;
	uint8_t words[4000] = {0};
	uint64_t heard = 0;
	warm_up(side);
	if (side->number == 0) {
		for (uint64_t i = 0; i < 300; i++) {
			memcpy(words, &i, sizeof(i));
			send_surely(side, 0, words, 8 + i * 13 % 3000);
		}
		CHECK_IS(pm_endpoint_close(side->endpoint), 0);
		return;
	}
	while (!pm_next_event(side->endpoint, &event)) {
		while (pm_receive(side->endpoint, &message)) {
			CHECK(!memcmp(message.data, &heard, sizeof(heard)));
			CHECK_IS(message.length, 8 + heard * 13 % 3000);
			heard++;
			pm_release(side->endpoint, &message);
		}
	}
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, -EHOSTDOWN);
	CHECK_IS(heard, 300);
}

/* The device gives up now and then: messages and accesses go on by udp, and come back when the rail is joined. */
static void broken(struct side *side)
{
	struct pm_address own;
	uint64_t address = 0, key = 0, *memory = map(SIZE);
	CHECK_IS(pm_endpoint_address(side->endpoint, &own), 0);
	warm_up(side);
	struct pm_region *region = NULL;
	if (side->number == 1)
		region = offer(side, memory, SIZE, PM_REMOTE_READ | PM_REMOTE_WRITE);
	else
		learn(side, &address, &key);
	for (int i = 0; i < 3 * ROUNDS; i++) {
		if (side->number == 0) {
			fill(memory, i);
			CHECK_IS(write_to(side, memory, SIZE, address, key), 0);
			CHECK_IS(read_from(side, memory, SIZE, address, key), 0);
			send_number(side, i);
			await_number(side, i);
		} else {
			await_number(side, i);
			check_filled(memory, i);
			send_number(side, i);
			if (statistics_of(side).switches % 2 == 0)
				CHECK_IS(pm_order_join(&own, "verbs", 10000), 0);
		}
	}
	send_number(side, 0);
	await_number(side, 0);
	CHECK(statistics_of(side).switches > 2);
	meet_looking(side);
	if (region)
		CHECK_IS(pm_deregister(region), 0);
}

/* It goes by udp, as if the rail did not exist. */
static void without(struct side *side)
{
	for (int i = 0; i < 100; i++) {
		send_number(side, i);
		await_number(side, i);
	}
	CHECK_IS(statistics_of(side).rails[PM_RAIL_UDP].messages, 100);
}

static void refused(const char *name, const char *value)
{
	struct pm_context *context;
	setenv(name, value, 1);
	CHECK_IS(pm_context_open(NULL, &context), -EINVAL);
	unsetenv(name);
}

int main(void)
{
	verbs_environment();
	pair_run(NULL, again_and_again);
	pair_run(NULL, new_memory);
	pair_run(NULL, odd_memory);
	pair_run(NULL, last_words);
	setenv("STUB_VERBS_DELAY_US", "300", 1);
	pair_run(NULL, last_words);
	setenv("STUB_VERBS_BREAK", "15", 1);
	pair_run(NULL, broken);
	unsetenv("STUB_VERBS_BREAK");
	unsetenv("STUB_VERBS_DELAY_US");
	setenv("PM_PIN_BYTES", "0", 1);
	pair_run(NULL, new_memory);
	unsetenv("PM_PIN_BYTES");
	setenv("PM_VERBS", "no_such_device", 1);
	pair_run(NULL, without);
	refused("PM_VERBS", "stub0:1:2:3");
	refused("PM_VERBS", "stub0:x");
	refused("PM_VERBS", "stub0:256");
	refused("PM_VERBS", ":1");
	refused("PM_PIN_BYTES", "some");
	return 0;
}
