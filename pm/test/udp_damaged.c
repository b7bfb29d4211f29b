/*
 * udp_damaged.c - packets of each type come with one bit flipped, in place of the right one or before it: the checksum, or
 * a greeting's seal, refuses every one of them, which is counted, and messages and remote accesses stay right byte for byte.
 */
#include <sys/mman.h>

#include "wire.h"

#define TYPES (UDP_EMPTY + 1)
#define MESSAGES 3000
#define ROUNDS 60
#define SLOT 400000
#define LONG (4 << 20)

/* One in so many of a type is damaged. */
static const unsigned every[TYPES] = {
	[UDP_GREETING] = 2, [UDP_DATA] = 5, [UDP_NEWS] = 5, [UDP_PING] = 2, [UDP_BYE] = 2, [UDP_READ] = 5, [UDP_WRITE] = 5,
	[UDP_EMPTY] = 2,
};

/* How many packets of a type each side has sent, and damaged, and how many refusals that makes: both see it. */
static struct {
	_Atomic unsigned sent[TYPES], damaged[TYPES], refusals;
} *counts;

static int own;
static _Atomic bool damaging, losing_reads;

/* Sends it with one bit flipped. If that makes it shorter than it is, it is taken for several on end. */
static void send_damaged(const struct udp_packet *packet, size_t length, uint64_t random)
{
	static _Thread_local union {
		struct udp_packet head;
		uint8_t bytes[UDP_TRAIN_BYTES];
	} bad;
	size_t bit = random_next(&random) % (8 * length);
	memcpy(bad.bytes, packet, length);
	bad.bytes[bit / 8] ^= 1 << bit % 8;
	size_t size = udp_header_size(bad.head.type) + bad.head.length;
	if (bad.head.link == GREETING_LINK)
		size = sizeof(struct udp_greeting);
	atomic_fetch_add(&counts[own].refusals, (length + size - 1) / size);
	wire_send(bad.bytes, length);
}

static bool damage(const struct udp_packet *packet, size_t length)
{
	unsigned type = packet->type;
	CHECK(type && type < TYPES);
	unsigned n = atomic_fetch_add(&counts[own].sent[type], 1);
	if (type == UDP_READ && atomic_load(&losing_reads))
		return false;
	if (!atomic_load(&damaging) || n % every[type])
		return true;
	atomic_fetch_add(&counts[own].damaged[type], 1);
	send_damaged(packet, length, (1 + own + 2 * (type + (uint64_t)TYPES * n)) * 0x9e3779b97f4a7c15u);
	return n / every[type] % 2;
}

static void begin(struct side *side)
{
	own = side->number;
	damaging = true;
	wire = damage;
}

/* Whether what the other has damaged has been refused, and nothing else. */
static bool refused(struct side *side)
{
	return statistics_of(side).dropped == atomic_load(&counts[!own].refusals);
}

static void end(struct side *side)
{
	damaging = false;
	meet(side);
	UNTIL(side, refused(side));
}

/* Bytes and a length that follow from a number. */
static size_t make(uint64_t number, uint8_t *data, size_t most)
{
	uint64_t random = number * 0x9e3779b97f4a7c15u + 1;
	size_t length = 1 + random_next(&random) % (random_next(&random) % 4 ? most / 10 : most);
	for (size_t i = 0; i < length; i++)
		data[i] = (uint8_t)((random >> (i & 31)) + i * 3);
	return length;
}

/* Messages both ways, while parts of the other's memory are written to and it is read back, one after the other. */
struct traffic {
	uint64_t sent, received, rounds;
	bool reading, ended, other_ended;
	uint64_t address, key; /* the other's */
	uint8_t memory[SLOT], is[SLOT], back[SLOT], part[SLOT];
};

static void write_next(struct side *side, struct traffic *traffic)
{
	size_t length = make(2 * traffic->rounds + own, traffic->part, SLOT);
	size_t at = (traffic->rounds * 7919) % (SLOT - length + 1);
	memcpy(traffic->is + at, traffic->part, length);
	CHECK_IS(pm_write(side->peer, traffic->part, length, traffic->address + at, traffic->key, NULL), 0);
}

static void go_on(struct side *side, struct traffic *traffic)
{
	struct pm_event event;
	if (!pm_next_event(side->endpoint, &event))
		return;
	CHECK_IS(event.status, 0);
	CHECK_IS(event.type, traffic->reading ? PM_READ_DONE : PM_WRITE_DONE);
	if (traffic->reading) {
		CHECK(!memcmp(traffic->is, traffic->back, SLOT));
		if (++traffic->rounds < ROUNDS)
			write_next(side, traffic);
	} else {
		CHECK_IS(pm_read(side->peer, traffic->back, SLOT, traffic->address, traffic->key, NULL), 0);
	}
	traffic->reading = !traffic->reading;
}

static void send_next(struct side *side, struct traffic *traffic)
{
	uint8_t data[PM_MAX_MESSAGE];
	struct iovec part = {data, 0};
	bool last = traffic->sent == MESSAGES;
	if (traffic->ended || (last && traffic->rounds < ROUNDS))
		return;
	if (!last)
		part.iov_len = make(traffic->sent, data, sizeof(data));
	int error = pm_send(side->peer, last, &part, 1);
	CHECK(!error || error == -EAGAIN);
	traffic->sent += !error;
	traffic->ended = last && !error;
}

static void take_next(struct side *side, struct traffic *traffic)
{
	uint8_t wanted[PM_MAX_MESSAGE];
	struct pm_message message;
	if (!pm_receive(side->endpoint, &message))
		return;
	traffic->other_ended = message.kind;
	if (!message.kind) {
		CHECK_IS(message.length, make(traffic->received++, wanted, sizeof(wanted)));
		CHECK(!memcmp(message.data, wanted, message.length));
	}
	pm_release(side->endpoint, &message);
}

static void traffic(struct side *side)
{
	struct traffic *traffic = calloc(1, sizeof(*traffic));
	struct pm_region *region;
	CHECK_IS(pm_register(side->context, traffic->memory, SLOT, PM_REMOTE_READ | PM_REMOTE_WRITE, &region), 0);
	uint64_t mine[2] = {(uintptr_t)traffic->memory, pm_region_key(region)}, other[2];
	tell(side, mine, sizeof(mine));
	hear(side, other, sizeof(other));
	traffic->address = other[0];
	traffic->key = other[1];
	begin(side);
	write_next(side, traffic);
	while (!traffic->ended || !traffic->other_ended) {
		send_next(side, traffic);
		take_next(side, traffic);
		go_on(side, traffic);
	}
	CHECK_IS(traffic->received, MESSAGES);
	end(side);
	free(traffic);
}

/* A sender without room asks for it. */
static void no_room(struct side *side)
{
	int sent = 0;
	begin(side);
	if (side->number == 0) {
		send_surely(side, 0, "first", 6);
		sent = send_until_full(side);
		UNTIL(side, atomic_load(&counts[0].sent[UDP_PING]) > 3);
		tell(side, &sent, sizeof(sent));
	} else {
		take_all(side, 1);
		hear(side, &sent, sizeof(sent));
		take_all(side, sent);
	}
	end(side);
}

/* A region goes while it is read: what was lost of it goes on as empty segments. */
static void region_goes(struct side *side)
{
	uint8_t *memory = calloc(1, LONG);
	struct pm_region *region;
	struct pm_event event;
	uint64_t place[2];
	begin(side);
	if (side->number == 0) {
		take_all(side, 1);
		hear(side, place, sizeof(place));
		CHECK_IS(pm_read(side->peer, memory, LONG, place[0], place[1], NULL), 0);
		event_surely(side, &event);
		CHECK_IS(event.type, PM_READ_DONE);
		CHECK_IS(event.status, -EACCES);
		send_surely(side, 0, "more", 5);
	} else {
		CHECK_IS(pm_register(side->context, memory, LONG, PM_REMOTE_READ, &region), 0);
		place[0] = (uintptr_t)memory;
		place[1] = pm_region_key(region);
		losing_reads = true;
		send_surely(side, 0, "first", 6); /* so that it sends by udp */
		tell(side, place, sizeof(place));
		UNTIL(side, atomic_load(&counts[1].sent[UDP_READ]) > 3);
		CHECK_IS(pm_deregister(region), 0);
		take_all(side, 1);
	}
	end(side);
	free(memory);
}

static void goodbye(struct side *side)
{
	struct pm_event event;
	begin(side);
	if (side->number == 0) {
		take_all(side, 1);
		event_surely(side, &event);
		CHECK_IS(event.type, PM_PEER_GONE);
		CHECK_IS(event.status, -EHOSTDOWN);
		UNTIL(side, refused(side));
		return;
	}
	send_surely(side, 0, "last", 5);
	CHECK_IS(pm_endpoint_close(side->endpoint), 0);
	CHECK_IS(pm_endpoint_open(side->context, &side->endpoint), 0);
}

int main(void)
{
	static void (*const bodies[])(struct side *) = {traffic, no_room, region_goes, goodbye};
	unsigned all[TYPES] = {0};
	size_t size = 2 * sizeof(*counts);
	counts = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(counts != MAP_FAILED);
	wire_begin("60");
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
		wire = NULL;
		memset(counts, 0, size);
		pair_run(NULL, bodies[i]);
		for (int type = 0; type < TYPES; type++)
			all[type] += counts[0].damaged[type] + counts[1].damaged[type];
	}
	for (int type = UDP_GREETING; type < TYPES; type++) {
		printf("type %d: %u damaged\n", type, all[type]);
		CHECK(all[type] > 0);
	}
	return 0;
}
