/*
 * prov.c - fuzzing: what peers can say to an endpoint of the libfabric provider. The input is a program: post receives,
 * send, read and write, have atomic operations done, and take messages of all kinds from two peers, as good ones but for
 * some octets. Buffers and messages are as long as is said of them, and memory that peers may access is surrounded by
 * canaries.
 */
#include "copied.h"
#include "exact.h"
#include "input.h"
#include "prov_bed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The provider's side: what its user does. */

static struct post *new_post(struct bed *bed, size_t length)
{
	if (bed->posted == MOST_POSTS)
		return NULL;
	struct post *post = &bed->posts[bed->posted++];
	*post = (struct post){.buffer = malloc(length ? length : 1), .length = length};
	memset(post->buffer, 7, length);
	return post;
}

static fi_addr_t source(const struct bed *bed, uint8_t how)
{
	return how & 4 ? bed->peers[how % PEERS] : FI_ADDR_UNSPEC;
}

static void post_receive(struct bed *bed, struct input *input)
{
	uint8_t how = take(input), tag = take(input) % 4;
	struct post *post = new_post(bed, take(input) * (how & 0x80 ? 256u : 1u));
	if (!post)
		return;
	size_t first = post->length / 3;
	struct iovec parts[2] = {{post->buffer, first}, {post->buffer + first, post->length - first}};
	struct fi_msg message = {
		.msg_iov = parts, .iov_count = 1 + (how >> 4 & 1), .addr = source(bed, how), .context = &post->context,
	};
	if (message.iov_count == 1)
		parts[0].iov_len = post->length;
	if (how & 0x20)
		fi_trecvv(bed->ep, parts, NULL, message.iov_count, message.addr, tag, how & 8 ? 3 : 0, &post->context);
	else
		fi_recvmsg(bed->ep, &message, message.iov_count == 1 && how & 0x40 ? FI_MULTI_RECV : 0);
}

/* Looks for what has come, and takes it or has it thrown away at times. */
static void peek(struct bed *bed, struct input *input)
{
	uint8_t how = take(input), tag = take(input) % 4;
	struct post *post = new_post(bed, take(input));
	if (!post)
		return;
	struct iovec part = {post->buffer, post->length};
	struct fi_msg_tagged message = {
		.msg_iov = &part, .iov_count = 1, .addr = source(bed, how), .tag = tag, .ignore = how & 8 ? 3 : 0, .context = &post->context,
	};
	fi_trecvmsg(bed->ep, &message, FI_PEEK | (how & 0x10 ? FI_CLAIM : how & 0x20 ? FI_DISCARD : 0));
	if (post->context.internal[0])
		fi_trecvmsg(bed->ep, &message, FI_CLAIM | (how & 0x40 ? FI_DISCARD : 0));
}

static void send_something(struct bed *bed, struct input *input)
{
	uint8_t how = take(input);
	struct post *post = new_post(bed, take(input) * (how & 0x80 ? 128u : 1u));
	if (!post)
		return;
	struct iovec part = {post->buffer, post->length};
	struct fi_msg_tagged message = {
		.msg_iov = &part, .iov_count = 1, .addr = bed->peers[how % PEERS], .tag = how, .data = how, .context = &post->context,
	};
	fi_tsendmsg(bed->ep, &message, FI_COMPLETION | (how & 4 ? FI_DELIVERY_COMPLETE : 0) | (how & 8 ? FI_INJECT : 0) |
					       (how & 16 ? FI_REMOTE_CQ_DATA : 0));
}

static void access_peer(struct bed *bed, struct input *input)
{
	uint8_t how = take(input);
	struct post *post = new_post(bed, take(input) * (how & 0x80 ? 64u : 1u));
	if (!post)
		return;
	fi_addr_t to = bed->peers[how % PEERS];
	uint64_t there = 4096, key = 1ull << REGION_BITS;
	if (how & 4)
		fi_read(bed->ep, post->buffer, post->length, NULL, to, there, key, &post->context);
	else if (how & 8)
		fi_writedata(bed->ep, post->buffer, post->length, NULL, how, to, there, key, &post->context);
	else if (how & 16)
		fi_atomic(bed->ep, post->buffer, post->length / 8, NULL, to, there, key, FI_UINT64, FI_SUM, &post->context);
	else
		fi_fetch_atomic(bed->ep, NULL, post->length / 8, NULL, post->buffer, NULL, to, there, key, FI_UINT64, FI_ATOMIC_READ,
				&post->context);
}

static void cancel(struct bed *bed, struct input *input)
{
	fi_cancel(&bed->ep->fid, &bed->posts[take(input) % MOST_POSTS].context);
}

/* A receive is no longer than its buffer. */
static void check_entry(const struct bed *bed, const struct fi_cq_tagged_entry *entry)
{
	const struct post *post = entry->op_context;
	if (!(entry->flags & FI_RECV) || !post || !entry->buf)
		return;
	assert(post >= bed->posts && post < bed->posts + MOST_POSTS);
	const uint8_t *start = entry->buf;
	assert(start >= post->buffer && start <= post->buffer + post->length);
	/* What was found only is as long as it is. */
	assert(entry->len <= (size_t)(post->buffer + post->length - start));
}

static void read_queue(struct bed *bed)
{
	struct fi_cq_tagged_entry entries[8];
	struct fi_cq_err_entry error = {0};
	ssize_t got;
	for (int i = 0; i < 32 && (got = fi_cq_read(bed->cq, entries, 8)) != -FI_EAGAIN; i++) {
		if (got == -FI_EAVAIL)
			fi_cq_readerr(bed->cq, &error, 0);
		for (ssize_t k = 0; k < got; k++)
			check_entry(bed, &entries[k]);
	}
	fi_cntr_read(bed->cntr);
}

/* The peers' side. */

/* Learns how the endpoint has named what it wants, and takes it out of the ring. */
static void listen_to(struct bed *bed, unsigned number)
{
	struct ring_reader *reader = &bed->readers[number];
	struct ring_message message;
	while (ring_peek(reader, &message, PM_MAX_MESSAGE)) {
		unsigned at = message.kind == WIRE_ATOMIC ? 0 : offsetof(struct wire_request, request);
		bool asks = message.kind == WIRE_ATOMIC || message.kind == WIRE_RTS || message.kind == WIRE_CONFIRM;
		if (message.type == MESSAGE && asks && message.length >= at + 8)
			memcpy(&bed->requests[bed->requested++ % REQUESTS], (uint8_t *)message.data + at, 8);
		ring_take(reader, message.length);
	}
	ring_tell(reader);
}

/* Some octets more, or less, than belong to it, at times. */
static uint32_t misjudge(struct input *input, uint32_t length)
{
	uint8_t by = take(input);
	if (by & 0x80)
		return length + by % 64 < PM_MAX_MESSAGE ? length + by % 64 : PM_MAX_MESSAGE;
	return by & 0x40 ? length - by % 64 % (length + 1) : length;
}

/* Spoils some octets, and says it. */
static void say(struct bed *bed, unsigned number, struct input *input, uint8_t type, uint8_t kind, uint8_t *message, uint32_t length)
{
	spoil(input, message, length);
	uint32_t said = misjudge(input, length), known = said < length ? said : length;
	uint8_t *room = ring_reserve(&bed->writers[number], said);
	if (!room)
		return;
	if (said)
		memset(mempcpy(room, message, known), 0, said - known);
	ring_commit(&bed->writers[number], kind, type);
}

static uint64_t request(const struct bed *bed, uint8_t which)
{
	return which & 0x80 ? which : bed->requests[which % REQUESTS];
}

static void say_eager(struct bed *bed, unsigned number, struct input *input)
{
	uint8_t how = take(input), message[16 + 255 * 64] = {take(input) % 4};
	uint32_t length = take(input) * (how & 0x80 ? 64u : 1u);
	uint8_t kind = WIRE_TAGGED + how % 4;
	say(bed, number, input, MESSAGE, kind, message, length + (kind == WIRE_TAGGED_DATA ? 16 : kind == WIRE_MSG ? 0 : 8));
}

static void say_request(struct bed *bed, unsigned number, struct input *input)
{
	struct {
		struct wire_request request;
		struct wire_part parts[WIRE_PARTS];
		uint8_t more[256];
	} message = {.request = {.tag = take(input) % 4, .request = take(input), .flags = take(input) % 4}};
	uint8_t how = take(input);
	uint32_t parts = how % (WIRE_PARTS + 1);
	if (how & 0x80) {
		say(bed, number, input, MESSAGE, WIRE_CONFIRM, (uint8_t *)&message, sizeof(message.request) + take(input));
		return;
	}
	message.request.parts = parts;
	for (uint32_t i = 0; i < parts; i++)
		message.parts[i] = (struct wire_part){4096, 1ull << REGION_BITS, (uint64_t)take(input) << (how & 0x40 ? 34 : how & 0x20 ? 6 : 0)};
	say(bed, number, input, MESSAGE, WIRE_RTS, (uint8_t *)&message, sizeof(message.request) + parts * sizeof(struct wire_part));
}

static void say_answer(struct bed *bed, unsigned number, struct input *input)
{
	uint8_t how = take(input);
	struct {
		struct wire_fin fin;
		uint8_t result[256];
	} message = {.fin = {.request = request(bed, take(input)), .status = how & 4 ? -take(input) : 0}};
	if (how & 1)
		say(bed, number, input, MESSAGE, WIRE_FIN, (uint8_t *)&message, sizeof(message.fin));
	else
		say(bed, number, input, MESSAGE, WIRE_RESULT, (uint8_t *)&message, sizeof(message.fin) + take(input));
}

static void say_atomic(struct bed *bed, unsigned number, struct input *input)
{
	struct {
		struct wire_atomic header;
		uint8_t rest[WIRE_PARTS * sizeof(struct wire_part) + 2 * WIRE_PARTS * 512];
	} message = {
		.header = {
			.request = take(input), .form = take(input) % 4, .datatype = take(input) % 20, .op = take(input) % 24,
			.parts = 1 + take(input) % WIRE_PARTS,
		},
	};
	uint8_t how = take(input);
	uint32_t bytes = 0, lists = (message.header.op != FI_ATOMIC_READ) + (message.header.form == WIRE_COMPARE);
	struct wire_part part = {(uintptr_t)guarded, fi_mr_key(mr), 0};
	uint8_t *end = message.rest;
	for (unsigned i = 0; i < message.header.parts; i++) {
		part.length = 16u * (take(input) % 32);
		part.address = (uintptr_t)guarded + (how & 1 ? 16 * take(input) : take(input));
		end = mempcpy(end, &part, sizeof(part));
		bytes += part.length;
	}
	for (unsigned i = 0; i < 16; i++)
		end[i] = take(input);
	say(bed, number, input, MESSAGE, WIRE_ATOMIC, (uint8_t *)&message, end - (uint8_t *)&message + lists * bytes);
}

/* Kinds without contents, completion data, and anything else. */
static void say_rare(struct bed *bed, unsigned number, struct input *input)
{
	uint8_t how = take(input), message[256] = {0};
	static const uint8_t kinds[] = {WIRE_HOLD, WIRE_RESUME, WIRE_RMA_DATA};
	if (how % 4 < 3) {
		say(bed, number, input, MESSAGE, kinds[how % 4], message, how % 4 == 2 ? sizeof(struct wire_rma_data) : 0);
		return;
	}
	uint8_t length = take(input), kind = take(input);
	for (unsigned i = 0; i < length; i++)
		message[i] = take(input);
	say(bed, number, input, MESSAGE, kind, message, length);
}

/* An answer to a read or write of the endpoint's. */
static void say_accessed(struct bed *bed, unsigned number, struct input *input)
{
	struct {
		uint64_t id, offset;
		int64_t status;
		uint8_t data[12000];
	} answer = {0};
	const struct operation *operation;
	TAILQ_FOREACH(operation, &bed->rings[number].peer->endpoint->operations, entry)
		if (operation->node.event.peer == bed->rings[number].peer)
			break;
	if (!operation)
		return;
	bool read = operation->node.event.type == PM_READ_DONE;
	size_t left = operation->length - operation->done;
	answer.id = operation->id;
	answer.offset = read ? operation->done : take(input) % 2;
	answer.status = read && take(input) % 4 == 0;
	left = left < sizeof(answer.data) ? left : sizeof(answer.data);
	say(bed, number, input, read ? READ_DATA : WRITE_DONE, 0, (uint8_t *)&answer, read ? offsetof(typeof(answer), data) + left : 16);
}

static void act(struct bed *bed, struct input *input)
{
	static void (*const own[])(struct bed *, struct input *) = {post_receive, send_something, access_peer, peek, cancel};
	static void (*const peers[])(struct bed *, unsigned, struct input *) = {
		say_eager, say_request, say_answer, say_atomic, say_rare, say_accessed,
	};
	enum { OWN = sizeof(own) / sizeof(own[0]), THEIRS = sizeof(peers) / sizeof(peers[0]) };
	uint8_t what = take(input), which = (what & 0x3f) % (OWN + THEIRS);
	unsigned number = what >> 7;
	if (which < OWN)
		own[which](bed, input);
	else
		peers[which - OWN](bed, number, input);
	if (what & 0x40)
		return; /* and more at once */
	read_queue(bed);
	listen_to(bed, number);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bed *bed = calloc(1, sizeof(*bed));
	struct input input = {data, size};
	open_bed(bed);
	while (input.size)
		act(bed, &input);
	read_queue(bed);
	close_bed(bed);
	free(bed);
	return 0;
}
