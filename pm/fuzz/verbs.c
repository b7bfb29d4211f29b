/*
 * verbs.c - fuzzing: what a peer can say about the verbs rail, and do by a device, on a device of software: offers,
 * immediates, what it writes into the ring that it has been given, answers about regions. The input is a program; what a
 * peer may not touch is surrounded by canaries.
 */
#include <assert.h>

#include "input.h"
#include "said.h"
#include "verbs_hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t take_word(struct input *input)
{
	uint32_t word = take(input);
	word |= (uint32_t)take(input) << 8;
	word |= (uint32_t)take(input) << 16;
	return word | (uint32_t)take(input) << 24;
}

/* A message about memory, with more data than there is to it at times; by the ring, or by udp. */
static void speak_of_memory(struct hostile *hostile, struct input *input)
{
	struct subject of = {
		.peer = hostile->peer, .address = (uintptr_t)guarded_open, .key = pm_region_key(hostile->region),
		.place = (uintptr_t)hostile_device.memory + HOSTILE_PLACE, .place_key = hostile_device.mr->rkey,
		.generation = hostile->generation,
	};
	uint8_t how = take(input), message[SAID_MOST + 256] = {0};
	uint32_t length = said(&of, 1 + how % REGION_IS, message);
	if (how & 0x80)
		length += take(input);
	spoil(input, message, SAID_MOST);
	if (how & 0x40)
		hostile_say(hostile, 1 + how % REGION_IS, message, length);
	else
		hostile_message(hostile, 1 + how % REGION_IS, message, length);
}

static void speak_of_rings(struct hostile *hostile, struct input *input)
{
	struct {
		struct ring_news news;
		uint8_t more[64];
	} said = {{take(input) % 8, RAIL_VERBS, take(input), 64ull * take(input)}, {0}};
	uint8_t type = RING_OPEN + take(input) % 7, more = take(input);
	hostile_say(hostile, type, &said, sizeof(said.news) + more % 64);
}

static void offer(struct hostile *hostile, struct input *input)
{
	struct verbs_offer offer;
	if (!hostile_offer(hostile, &offer))
		return;
	spoil(input, &offer, sizeof(offer));
	hostile_say(hostile, RING_OFFER, &offer, sizeof(offer));
}

static void ask(struct hostile *hostile, struct input *input)
{
	uint8_t how = take(input);
	if (how & 1) {
		hostile_ask(hostile);
		return;
	}
	if (!hostile->context->verbs)
		return;
	hostile_queue_pair(hostile, &hostile->writer);
	struct verbs_wanted wanted = {++hostile->generation, RAIL_VERBS, hostile_where(hostile, hostile->writer)};
	spoil(input, &wanted, sizeof(wanted));
	hostile_say(hostile, RING_WANTED, &wanted, sizeof(wanted));
	if (how & 2)
		hostile_tell(hostile, RING_OPEN, hostile->generation, 0, 0);
}

/* Anything into the ring, and perhaps beyond it, with any immediate or none. */
static void overwrite(struct hostile *hostile, struct input *input)
{
	uint8_t how = take(input);
	uint32_t at = take_word(input), length = take(input), immediate = how & 1 ? take_word(input) : 0;
	if (how & 2)
		at %= ring_size(VERBS_DATA_BYTES);
	for (uint32_t i = 0; i < length; i++)
		hostile_device.memory[HOSTILE_STAGE + i] = take(input);
	hostile_write(hostile, how & 1 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, at, length, immediate);
}

/* An immediate alone, once or until there can be no room for it. */
static void immediate(struct hostile *hostile, struct input *input)
{
	uint8_t how = take(input);
	uint32_t word = take_word(input);
	if (how & 1)
		word = (word & 0xff00ffff) | 0xff0000; /* what has been taken */
	for (unsigned n = how & 2 ? take(input) * 8 : 1; n && !hostile->failed; n--)
		hostile_immediate(hostile, how & 4 ? hostile->writer : hostile->reader, word, how & 8 ? take(input) : 0);
	hostile->failed = false;
}

/* The device's key of a region is known to whom it has been told; here to anybody. */
static void access_memory(struct hostile *hostile, struct input *input)
{
	uint32_t at = take_word(input) % (2 * GUARDED), length = take(input), key = take(input);
	const struct pin *pin = hostile->region->pin;
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
	memset(hostile_device.memory + HOSTILE_STAGE, 0, length);
	hostile_post(hostile, hostile->writer, (struct ibv_send_wr){
		.opcode = opcodes[key & 1],
		.wr.rdma = {.remote_addr = (uintptr_t)guarded_open + at, .rkey = pin ? verbs_mr(pin)->rkey : key << 8},
	}, length);
}

/* What the process under test does of its own. */
static void do_something(struct hostile *hostile, struct input *input)
{
	uint8_t how = take(input);
	uint32_t length = how & 0x80 ? 2048 + take(input) * 56 : take(input) * 16;
	uint64_t place = (uintptr_t)hostile_device.memory + HOSTILE_PLACE;
	switch (how % 5) {
	case 0:
		pm_send(hostile->peer, 0, &(struct iovec){guarded_own, length % PM_MAX_MESSAGE}, 1);
		break;
	case 1:
		pm_read(hostile->peer, guarded_own, length, place, 1ull << REGION_BITS, NULL);
		break;
	case 2:
		pm_write(hostile->peer, guarded_own, length, place, (uint64_t)(1 + take(input) % 3) << REGION_BITS, NULL);
		break;
	case 3:
		pm_deregister(hostile->region);
		hostile_register(hostile);
		break;
	case 4:
		pm_wait(hostile->endpoint, 0);
		break;
	}
}

static void act(struct hostile *hostile, struct input *input)
{
	static void (*const acts[])(struct hostile *, struct input *) = {
		speak_of_memory, speak_of_memory, speak_of_rings, offer, ask, overwrite, immediate, access_memory, do_something, do_something,
	};
	uint8_t what = take(input) % 12;
	if (what < sizeof(acts) / sizeof(acts[0]))
		acts[what](hostile, input);
	else if (what == 10)
		hostile_allow(hostile, !rail_allowed(hostile->context, RAIL_VERBS) && verbs_usable(hostile->context));
	else
		hostile_hang_up(hostile, take(input) % 2 ? &hostile->writer : &hostile->reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hostile hostile;
	struct input input = {data, size};
	struct verbs_offer good;
	bool open = hostile_open(&hostile);
	assert(open); /* there is a device */
	uint8_t begun = take(&input);
	if (begun & 1)
		hostile_ask(&hostile);
	if (begun & 2)
		pm_send(hostile.peer, 0, NULL, 0);
	hostile_receive(&hostile);
	if (begun & 4 && hostile_offer(&hostile, &good))
		hostile_say(&hostile, RING_OFFER, &good, sizeof(good));
	while (input.size && !pm_peer_status(hostile.peer)) {
		act(&hostile, &input);
		hostile_receive(&hostile);
		hostile_settle(&hostile);
	}
	hostile_close(&hostile);
	assert(hostile_harmless());
	return 0;
}
