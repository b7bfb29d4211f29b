/*
 * verbs_hostile.c - the verbs rail against a peer that says and writes what it likes, on a device of software: what makes no
 * sense is dropped or ends its ring or itself, and nothing is touched that it may not access.
 */
#include "copied.h"
#include "verbs_hostile.h"

#include "test.h"

static struct hostile hostile;

static uint64_t dropped(void)
{
	struct pm_statistics statistics;
	pm_statistics(hostile.endpoint, &statistics);
	return statistics.dropped;
}

/* A ring is wanted by this side. */
static void wanted(struct verbs_offer *good)
{
	CHECK(hostile_open(&hostile));
	CHECK_IS(pm_send(hostile.peer, 0, NULL, 0), 0);
	hostile_receive(&hostile);
	CHECK(hostile_offer(&hostile, good));
}

/* It has a ring to this side, and one from it. */
static void begin(void)
{
	struct verbs_offer offer;
	wanted(&offer);
	CHECK(hostile_ask(&hostile));
	CHECK_IS(hostile.peer->rings, 1);
	hostile_say(&hostile, RING_OFFER, &offer, sizeof(offer));
	hostile_receive(&hostile);
	CHECK(hostile.peer->out && hostile.peer->out->verbs);
}

static void end(void)
{
	hostile_close(&hostile);
	CHECK(hostile_harmless());
}

/* A message by the ring still arrives. */
static void works(void)
{
	struct pm_statistics before, after;
	pm_statistics(hostile.endpoint, &before);
	hostile_message(&hostile, MESSAGE, "hello", 6);
	pm_statistics(hostile.endpoint, &after);
	CHECK_IS(after.messages_received, before.messages_received + 1);
	CHECK_IS(pm_peer_status(hostile.peer), 0);
}

/* Types that there are not, and lengths that are not those of their types. */
static void wrong_forms(void)
{
	uint8_t octets[64] = {0};
	begin();
	for (unsigned type = READ_PLACED; type < 255; type++) {
		uint64_t before = dropped();
		for (uint32_t length = 0; length <= sizeof(octets); length++) {
			bool right = (type == READ_PLACED && length == 8) || (type == REGION_WANTED && length == 16) ||
				     (type == REGION_IS && length == 40);
			if (!right && (type < 16 || length % 16 == 0))
				hostile_message(&hostile, type, octets, length);
		}
		CHECK(dropped() >= before + 5);
	}
	works();
	end();
}

/* An offer that cannot be taken: that way is given up, and the peer is not. */
static void given_up(const struct verbs_offer *offer, const struct verbs_offer *good)
{
	struct pm_statistics statistics;
	hostile_say(&hostile, RING_OFFER, offer, sizeof(*offer));
	hostile_say(&hostile, RING_OFFER, good, sizeof(*good));
	CHECK(!hostile.peer->out);
	CHECK_IS(pm_send(hostile.peer, 0, NULL, 0), 0);
	pm_statistics(hostile.endpoint, &statistics);
	CHECK_IS(statistics.rails[PM_RAIL_UDP].messages, 2);
	CHECK_IS(pm_peer_status(hostile.peer), 0);
	end();
}

/* Offers of another length, for a ring that nobody wants, of no queue pair, or of another size. */
static void wrong_offers(void)
{
	struct verbs_offer good, offer;
	wanted(&good);
	for (uint32_t length = 0; length < 2 * sizeof(good); length++) {
		uint8_t octets[2 * sizeof(good)] = {0};
		memcpy(octets, &good, sizeof(good));
		if (length != sizeof(good))
			hostile_say(&hostile, RING_OFFER, octets, length);
	}
	CHECK(dropped() >= 2 * sizeof(good) - 2);
	offer = good;
	offer.generation++;
	hostile_say(&hostile, RING_OFFER, &offer, sizeof(offer));
	CHECK(hostile.peer->outbound && !hostile.peer->outbound->ready);
	offer = good;
	offer.where.mtu = 9;
	given_up(&offer, &good);
	wanted(&good);
	offer = good;
	offer.data_bytes *= 2;
	given_up(&offer, &good);
}

/* More messages than the ring has cells, while nobody looks. */
static void too_many(void)
{
	begin();
	hostile.unattended = true;
	for (unsigned i = 0; i <= VERBS_CELLS; i++)
		hostile_write(&hostile, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, ring_control(0, 0, MESSAGE, 0));
	hostile.unattended = false;
	hostile_receive(&hostile);
	hostile_receive(&hostile);
	CHECK_IS(pm_peer_status(hostile.peer), -EPROTO);
	end();
}

/* A length that no message may have. */
static void too_long(void)
{
	begin();
	hostile_write(&hostile, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0xffff);
	hostile_receive(&hostile);
	hostile_receive(&hostile);
	CHECK_IS(pm_peer_status(hostile.peer), -EPROTO);
	end();
}

/* More has been taken than was sent: that is noticed when there seems to be no room. */
static void taken_too_much(void)
{
	int status = 0;
	begin();
	hostile_immediate(&hostile, hostile.reader, 0xffffffff, 0);
	hostile_receive(&hostile);
	for (unsigned i = 0; i < 2 * VERBS_CELLS && !(status = pm_send(hostile.peer, 0, NULL, 0)); i++)
		hostile_settle(&hostile);
	CHECK_IS(status, -EPROTO);
	end();
}

/* Immediates that are none of a ring's writer or reader, and octets where none are expected: the ring is left, and the
 * peer reached by udp. */
static void wrong_immediates(void)
{
	for (int i = 0; i < 3; i++) {
		begin();
		if (i == 0)
			hostile_immediate(&hostile, hostile.reader, 0, 0);
		else if (i == 1)
			hostile_post(&hostile, hostile.reader, (struct ibv_send_wr){.opcode = IBV_WR_SEND}, 0);
		else
			hostile_immediate(&hostile, hostile.reader, 0xff0000, 8);
		hostile_receive(&hostile);
		hostile_receive(&hostile);
		CHECK(!hostile.peer->out);
		CHECK_IS(pm_peer_status(hostile.peer), 0);
		works();
		end();
	}
}

/* Octets beside those that a ring consists of: the device refuses, and those within it are the peer's to spoil. */
static void beside_the_ring(void)
{
	static const int64_t places[] = {-64, (int64_t)1 << 40};
	begin();
	memset(hostile_device.memory + HOSTILE_STAGE, 0xff, 4096);
	for (uint64_t at = 0; at + 4096 <= ring_size(VERBS_DATA_BYTES); at += 4096)
		hostile_write(&hostile, IBV_WR_RDMA_WRITE, at, 4096, 0);
	hostile_receive(&hostile);
	works();
	end();
	for (unsigned i = 0; i < 2; i++) {
		begin();
		hostile_write(&hostile, IBV_WR_RDMA_WRITE, places[i], 64, 0);
		CHECK(hostile.failed);
		hostile_receive(&hostile);
		CHECK_IS(pm_peer_status(hostile.peer), 0);
		end();
	}
}

/* The bounds of the region hold for what is asked for by messages. */
static void beside_the_region(void)
{
	const uint64_t key = pm_region_key(hostile.region), base = (uintptr_t)guarded_open;
	const struct {
		uint64_t address, key, length;
	} wrong[] = {
		{base - 8, key, 4096}, {base + 8, key, GUARDED}, {base, key ^ 1, 4096}, {base, key, ~0ull}, {base, key, 1ull << 40},
		{base + GUARDED, key, 4096}, {~0ull - 8, key, 4096},
	};
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct read_request request = {
			.id = i, .address = wrong[i].address, .key = wrong[i].key, .length = wrong[i].length,
			.place = (uintptr_t)hostile_device.memory + HOSTILE_PLACE, .place_key = hostile_device.mr->rkey,
			.generation = hostile.peer->out->generation,
		};
		hostile_message(&hostile, READ_REQUEST, &request, sizeof(request));
		hostile_receive(&hostile);
	}
	hostile_settle(&hostile);
	for (unsigned i = 0; i < GUARDED; i++)
		CHECK_IS(hostile_device.memory[HOSTILE_PLACE + i], 0);
}

/* But what is within it comes. */
static void regions(void)
{
	begin();
	beside_the_region();
	struct read_request request = {
		.address = (uintptr_t)guarded_open, .key = pm_region_key(hostile.region), .length = 4096,
		.place = (uintptr_t)hostile_device.memory + HOSTILE_PLACE, .place_key = hostile_device.mr->rkey,
		.generation = hostile.peer->out->generation,
	};
	hostile_message(&hostile, READ_REQUEST, &request, sizeof(request));
	for (double until = seconds() + 20; hostile_device.memory[HOSTILE_PLACE] != FILLING; hostile_receive(&hostile))
		CHECK(seconds() < until);
	works();
	end();
}

/* An answer about a region that is the peer's own affair: wrong memory breaks the ring, and not this side. */
static void wrong_answers(void)
{
	struct {
		uint64_t key, address, length;
		uint32_t generation, remote_key;
		int32_t status;
		uint32_t zero;
	} is = {.key = 1ull << REGION_BITS, .address = 4096, .length = ~0ull >> 1};
	begin();
	is.generation = hostile.peer->out->generation;
	uint64_t before = dropped();
	hostile_message(&hostile, REGION_IS, &is, sizeof(is)); /* to no question */
	CHECK_IS(dropped(), before + 1);
	CHECK_IS(pm_write(hostile.peer, guarded_own, 8192, 4096, is.key, NULL), 0);
	hostile_receive(&hostile);
	is.generation++;
	hostile_message(&hostile, REGION_IS, &is, sizeof(is));
	is.generation--;
	hostile_message(&hostile, REGION_IS, &is, sizeof(is));
	for (double until = seconds() + 20; hostile.peer->out; hostile_receive(&hostile))
		CHECK(seconds() < until);
	CHECK_IS(pm_peer_status(hostile.peer), 0);
	works();
	end();
}

/* Reads that are said to be done: by the ring that is believed, for it is the peer's memory; by udp it says nothing, and the
 * read is asked for again. */
static void read_placed(void)
{
	uint64_t none = 4711;
	CHECK(hostile_open(&hostile));
	CHECK(hostile_connected(&hostile));
	hostile_say(&hostile, READ_PLACED, &none, sizeof(none));
	CHECK_IS(dropped(), 1);
	CHECK_IS(pm_read(hostile.peer, guarded_own, 8192, 4096, 1ull << REGION_BITS, NULL), 0);
	hostile_receive(&hostile);
	const struct operation *operation = TAILQ_FIRST(&hostile.endpoint->operations);
	CHECK(operation && operation->sent && operation->pin);
	uint64_t id = operation->id;
	hostile_say(&hostile, READ_PLACED, &id, sizeof(id));
	CHECK(TAILQ_FIRST(&hostile.endpoint->operations) == operation);
	hostile_tell(&hostile, RING_OPEN, hostile.generation, 0, 0);
	CHECK(operation->sent && operation->pin);
	hostile_message(&hostile, READ_PLACED, &id, sizeof(id));
	CHECK(TAILQ_EMPTY(&hostile.endpoint->operations));
	works();
	end();
}

int main(void)
{
	alarm(90);
	if (!hostile_context(&hostile)) {
		fprintf(stderr, "no device: is the folder of the library in LD_LIBRARY_PATH?\n");
		return SKIPPED;
	}
	wrong_forms();
	wrong_offers();
	too_many();
	too_long();
	taken_too_much();
	wrong_immediates();
	beside_the_ring();
	regions();
	wrong_answers();
	read_placed();
	return 0;
}
