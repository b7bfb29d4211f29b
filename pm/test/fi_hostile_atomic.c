/*
 * fi_hostile_atomic.c - atomic operations against peers that send nonsense: nothing is done outside of the memory that
 * they may use, what makes no sense is dropped, and answers that nobody takes do not heap up.
 */
#include <stddef.h>

#include "allocated.h"
#include "fi_raw.h"

/* Of b's, of which others may use the middle third. */
static struct {
	char before[4096], open[4096], after[4096];
} __attribute__((aligned(64))) memory;
static struct fid_mr *mr;

struct ask {
	struct wire_atomic header;
	struct wire_part parts[4];
	char operands[16000];
};

/* A good one, of so many bytes in one part. */
static struct ask good(enum wire_form form, enum fi_datatype datatype, enum fi_op op, size_t bytes)
{
	return (struct ask){ .header = { .request = 4711, .form = form, .datatype = datatype, .op = op, .parts = 1 },
			     .parts = { { .address = (uintptr_t)memory.open, .key = fi_mr_key(mr), .length = bytes } } };
}

/* Says it, with so many bytes after its parts. */
static void ask(const struct ask *ask, size_t parts, size_t operands)
{
	char bytes[sizeof(*ask)], *end = mempcpy(bytes, ask, offsetof(struct ask, parts) + parts * sizeof(ask->parts[0]));

	say(WIRE_ATOMIC, bytes, (char *)mempcpy(end, ask->operands, operands) - bytes);
}

/* The next answer to the raw endpoint: what it says, and how many bytes come after that; NULL: there is none. */
static const struct wire_fin *answer(uint8_t *kind, size_t *rest)
{
	static struct wire_fin fin;
	struct pm_message message;

	for (int i = 0; i < 100; i++) {
		fi_cntr_read(b->received);
		if (pm_receive(raw, &message) <= 0)
			continue;
		CHECK(message.length >= sizeof(fin));
		memcpy(&fin, message.data, sizeof(fin));
		*kind = message.kind;
		*rest = message.length - sizeof(fin);
		pm_release(raw, &message);
		return &fin;
	}
	return NULL;
}

static const struct wire_fin *answer_surely(uint8_t *kind, size_t *rest)
{
	const struct wire_fin *fin = NULL;

	for (long i = 0; i < TRIES && !fin; i++)
		fin = answer(kind, rest);
	CHECK(fin);
	return fin;
}

static bool untouched(const char *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (bytes[i] != 0x55)
			return false;
	}
	return true;
}

static void ignored(void)
{
	uint8_t kind;
	size_t rest;

	CHECK(!answer(&kind, &rest));
	CHECK(untouched((char *)&memory, sizeof(memory)));
}

static void refused(const struct ask *wanted, size_t operands, int status)
{
	const struct wire_fin *fin;
	uint8_t kind;
	size_t rest;

	ask(wanted, wanted->header.parts, operands);
	fin = answer_surely(&kind, &rest);
	CHECK(fin->request == 4711 && kind == WIRE_FIN && !rest);
	CHECK_IS(fin->status, status);
	ignored();
}

static void wrong_forms(void)
{
	struct ask asked = good(WIRE_COMPARE, FI_UINT64, FI_CSWAP, 16);
	size_t whole = sizeof(asked.header) + sizeof(asked.parts[0]) + 32;
	char bytes[200];

	memcpy(mempcpy(bytes, &asked, whole - 32), asked.operands, 32);
	for (size_t length = 0; length < 200; length++) {
		if (length != whole)
			say(WIRE_ATOMIC, bytes, length);
	}
	for (unsigned parts = 0; parts < 256; parts++) {
		asked.header.parts = parts;
		if (parts != 1)
			ask(&asked, 1, 32);
	}
	asked.header.parts = 1;
	for (unsigned form = WIRE_COMPARE + 1; form < 256; form++) {
		asked.header.form = form;
		ask(&asked, 1, 32);
	}
	asked = good(WIRE_BASE, FI_UINT64, FI_SUM, 16);
	static const uint64_t lengths[] = { 0, 8, 15, 17, 24, 15999, 16001, 1ull << 32, ~0ull - 15, ~0ull };
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		asked.parts[0].length = lengths[i];
		ask(&asked, 1, 16);
	}
	asked.header.parts = 4; /* which overflow together */
	asked.parts[0].length = asked.parts[1].length = asked.parts[2].length = asked.parts[3].length = 1ull << 62;
	ask(&asked, 4, 0);
	asked.parts[3].length += 16;
	ask(&asked, 4, 16);
	ignored();
}

static void not_allowed(void)
{
	struct ask asked = good(WIRE_BASE, FI_UINT64, FI_SUM, 16);
	static const uint64_t outside[] = { 0, 8, ~0ull - 7, 1ull << 47 };

	for (unsigned op = FI_MSWAP + 1; op < 256; op++) {
		asked.header.op = op;
		refused(&asked, 16, -FI_EOPNOTSUPP);
	}
	asked.header.op = FI_SUM;
	for (unsigned datatype = FI_UINT128 + 1; datatype < 256; datatype++) {
		asked.header.datatype = datatype;
		refused(&asked, 16, -FI_EOPNOTSUPP);
	}
	asked.header.datatype = FI_DOUBLE;
	asked.header.op = FI_BXOR;
	refused(&asked, 16, -FI_EOPNOTSUPP);
	asked = good(WIRE_BASE, FI_UINT64, FI_SUM, 16);
	for (int bit = 0; bit < 64; bit++) {
		asked.parts[0].key = fi_mr_key(mr) ^ 1ull << bit;
		refused(&asked, 16, -FI_EACCES);
	}
	asked.parts[0].key = fi_mr_key(mr);
	for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
		asked.parts[0].address = outside[i];
		refused(&asked, 16, -FI_EACCES);
	}
	asked.parts[0].address = (uintptr_t)memory.open - 8;
	refused(&asked, 16, -FI_EACCES);
	asked.parts[0].address = (uintptr_t)memory.after - 8;
	refused(&asked, 16, -FI_EACCES);
	asked.parts[0].address = (uintptr_t)memory.open + 4;
	refused(&asked, 16, -FI_EINVAL);
	/* Nothing is done where only the last part is not allowed. */
	asked.header.parts = 4;
	for (int i = 0; i < 4; i++)
		asked.parts[i] = (struct wire_part){ .address = (uintptr_t)memory.open, .key = fi_mr_key(mr), .length = 8 };
	asked.parts[3].address = (uintptr_t)memory.after;
	refused(&asked, 32, -FI_EACCES);
}

/* Takes what it has been answered so far; a last operation's answer comes after all others. */
static void take_answers(void)
{
	struct ask last = good(WIRE_BASE, FI_UINT64, FI_SUM, 0);
	const struct wire_fin *fin;
	uint8_t kind;
	size_t rest;

	last.header.request = 4712;
	last.header.op = 255;
	ask(&last, 1, 0);
	do
		fin = answer_surely(&kind, &rest);
	while (fin->request != 4712);
}

/* Whatever is done, it is done inside. */
static void at_random(void)
{
	unsigned seed = 815;

	for (int i = 0; i < 20000; i++) {
		struct ask asked = good(rand_r(&seed) % 4, rand_r(&seed) % 20, rand_r(&seed) % 22, rand_r(&seed) % 128 * 8);
		size_t lists = (asked.header.op != FI_ATOMIC_READ) + (asked.header.form == WIRE_COMPARE);
		struct pm_message message;

		int away = rand_r(&seed) % 6000 - 1000;

		for (size_t k = 0; k < 64; k++)
			asked.operands[k] = rand_r(&seed);
		asked.parts[0].address += rand_r(&seed) % 8 ? away & ~15 : away;
		ask(&asked, 1, lists * asked.parts[0].length + (rand_r(&seed) % 16 ? 0 : 8));
		while (pm_receive(raw, &message) > 0)
			pm_release(raw, &message);
	}
	take_answers();
	CHECK(untouched(memory.before, sizeof(memory.before)) && untouched(memory.after, sizeof(memory.after)));
	CHECK(!untouched(memory.open, sizeof(memory.open)));
}

/* Who has operations done and takes no answers gets no memory for them, and others go on. */
static void untaken(void)
{
	struct ask asked = good(WIRE_FETCH, FI_UINT64, FI_ATOMIC_READ, 4096);
	size_t before = allocated(), taken = 0;
	struct wire_part *part = &asked.parts[0];
	struct iovec all = { &asked, sizeof(asked.header) + sizeof(*part) };
	uint8_t kind;
	size_t rest;

	for (int i = 0; i < 20000; i++) {
		while (pm_send(victim, WIRE_ATOMIC, &all, 1) == -EAGAIN)
			fi_cntr_read(b->received);
		fi_cntr_read(b->received);
	}
	CHECK(allocated() - before < (16u << 20));
	works();
	while (answer(&kind, &rest)) {
		CHECK(kind == WIRE_RESULT && rest == 4096);
		taken++;
	}
	CHECK(taken > 1000 && taken < 10000);
	CHECK(allocated() < before + (1u << 20));
	ask(&asked, 1, 0);
	answer_surely(&kind, &rest);
}

static struct {
	struct wire_fin fin;
	uint64_t result[2];
} said;
enum { FIN_ALONE = sizeof(said.fin), WITH_RESULT = sizeof(said.fin) + 8 };

/* b asks the raw endpoint for something, which is to be answered by what is said. */
static void be_asked(fi_addr_t to, uint64_t *result)
{
	uint64_t operand = 1;
	struct wire_atomic header;
	struct pm_message message;

	if (result)
		AGAIN(fi_fetch_atomic(b->ep, NULL, 1, NULL, result, NULL, to, 64, 1, FI_UINT64, FI_ATOMIC_READ, result), a);
	else
		AGAIN(fi_atomic(b->ep, &operand, 1, NULL, to, 64, 1, FI_UINT64, FI_SUM, NULL), a);
	while (pm_receive(raw, &message) <= 0)
		fi_cntr_read(b->received);
	CHECK(message.kind == WIRE_ATOMIC);
	CHECK_IS(message.length, sizeof(header) + sizeof(struct wire_part) + (result ? 0 : sizeof(operand)));
	memcpy(&header, message.data, sizeof(header));
	pm_release(raw, &message);
	said.fin = (struct wire_fin){ .request = header.request };
}

/* What answers an operation of b's has to have the right form, and counts once. */
static void wrong_answers(fi_addr_t to)
{
	uint64_t result = 0;

	be_asked(to, &result);
	said.result[0] = 7;
	say(WIRE_FIN, &said, FIN_ALONE); /* without a result */
	said.fin.status = 5;
	say(WIRE_FIN, &said, FIN_ALONE);
	said.fin.status = 0;
	for (size_t length = 0; length <= sizeof(said); length++) {
		if (length != WITH_RESULT)
			say(WIRE_RESULT, &said, length);
	}
	said.fin.request ^= 1ull << 32;
	say(WIRE_RESULT, &said, WITH_RESULT);
	said.fin.request ^= 1ull << 32;
	nothing(b, a);
	CHECK_IS(result, 0);
	say(WIRE_RESULT, &said, WITH_RESULT);
	CHECK(next(b, a, NULL).op_context == &result);
	CHECK_IS(result, 7);
	said.result[0] = 9;
	say(WIRE_RESULT, &said, WITH_RESULT);
	nothing(b, a);
	CHECK_IS(result, 7);
	/* Where nothing is fetched. */
	be_asked(to, NULL);
	say(WIRE_RESULT, &said, FIN_ALONE);
	say(WIRE_RESULT, &said, WITH_RESULT);
	nothing(b, a);
	said.fin.status = -FI_EPERM;
	say(WIRE_FIN, &said, FIN_ALONE);
	CHECK_IS(next_error(b, a).err, FI_EPERM);
}

/* What another has been asked for is not answered by this one. */
static void others_answers(void)
{
	uint64_t result = 7;

	AGAIN(fi_fetch_atomic(b->ep, NULL, 1, NULL, &result, NULL, b->other, (uintptr_t)memory.open, fi_mr_key(mr), FI_UINT64,
			      FI_ATOMIC_READ, &result), b);
	for (uint32_t index = 0; index < 70; index++) {
		for (uint32_t generation = 0; generation < 50; generation++) {
			said.fin = (struct wire_fin){ .request = (uint64_t)generation << 32 | index };
			say(WIRE_RESULT, &said, WITH_RESULT);
		}
	}
	CHECK_IS(result, 7);
	CHECK(next(b, a, NULL).op_context == &result);
	CHECK(!memcmp(&result, memory.open, 8));
}

int main(void)
{
	struct pair_options options = { .threading = FI_THREAD_DOMAIN, .av_type = FI_AV_TABLE, .format = FI_CQ_FORMAT_TAGGED,
					.caps = FI_ATOMIC };
	struct pm_address address;
	fi_addr_t to;

	setenv("FI_PM_ATOMICS", "1", 1);
	need_provider();
	open_pair(&pair, &options);
	open_raw();
	works();
	memset(&memory, 0x55, sizeof(memory));
	CHECK(!fi_mr_reg(pair.domain, memory.open, sizeof(memory.open), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	wrong_forms();
	not_allowed();
	at_random();
	untaken();
	CHECK(!pm_endpoint_address(raw, &address));
	CHECK_IS(fi_av_insert(b->av, &address, 1, &to, 0, NULL), 1);
	wrong_answers(to);
	others_answers();
	CHECK(!fi_close(&mr->fid));
	works();
	close_pair(&pair);
	return 0;
}
