/*
 * fi_hostile.c - the provider against peers that send nonsense, that die, and that are not received from: what makes
 * no sense is dropped, what waited for the dead ends in errors, memory for what nobody asked for stays bounded.
 */
#include <signal.h>

#include "fi_raw.h"

static void take_answers(void)
{
	struct pm_message message;

	while (pm_receive(raw, &message) > 0)
		pm_release(raw, &message);
}

static void nonsense(void)
{
	char bytes[2000];
	struct {
		struct wire_request request;
		struct wire_part parts[4];
	} rts = { .request = { .tag = 9, .flags = WIRE_IS_TAGGED, .parts = 4 } };
	struct wire_fin fin = { 0 };
	unsigned seed = 4711;

	/* a's request is waiting while others answer it in b's place. */
	AGAIN(fi_tsend(a->ep, out, sizeof(out), NULL, a->other, 5, NULL), b);
	for (uint32_t generation = 0; generation < 50; generation++) {
		for (uint32_t index = 0; index < 70; index++) {
			fin.request = (uint64_t)generation << 32 | index;
			say(WIRE_FIN, &fin, sizeof(fin));
		}
	}
	nothing(a, b);
	for (int kind = 0; kind < 256; kind++) {
		for (size_t length = 0; length < 60; length++)
			say(kind, bytes, kind == WIRE_MSG || kind == WIRE_MSG_DATA ? 0 : length % 40);
	}
	for (int i = 0; i < 4; i++)
		rts.parts[i].length = ~0ull / 2;
	say(WIRE_RTS, &rts, sizeof(rts));
	rts.request.parts = ~0u;
	say(WIRE_RTS, &rts, sizeof(rts));
	rts.request.parts = 3;
	say(WIRE_RTS, &rts, sizeof(rts));
	for (int i = 0; i < 20000; i++) {
		size_t length = rand_r(&seed) % (i % 2 ? 60 : 2000);

		for (size_t k = 0; k < length; k++)
			bytes[k] = rand_r(&seed);
		say(WIRE_CONFIRM + i % 4, bytes, length);
	}
	/* Memory that does not exist: the receive fails, and nothing else does. */
	rts.request = (struct wire_request){ .tag = 9, .flags = WIRE_IS_TAGGED, .parts = 1 };
	rts.parts[0] = (struct wire_part){ .address = 8, .key = 4711, .length = 1000 };
	say(WIRE_RTS, &rts, sizeof(rts.request) + sizeof(rts.parts[0]));
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 9, 0, &in));
	for (;;) {
		struct fi_cq_tagged_entry entry;
		struct fi_cq_err_entry error = { 0 };
		ssize_t got = fi_cq_read(b->cq, &entry, 1);

		take_answers(); /* where b cannot read directly, it asks */
		if (got == 1) /* completion data that was made up */
			CHECK(entry.flags & FI_RMA);
		if (got == -FI_EAVAIL) {
			CHECK_IS(fi_cq_readerr(b->cq, &error, 0), 1);
			CHECK(error.op_context == &in);
			break;
		}
	}
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 5, 0, &in));
	for (struct fi_cq_tagged_entry entry = { 0 }; entry.op_context != &in;)
		entry = next(b, a, NULL);
	next(a, b, NULL);
	works();
}

static void child(int reading, int writing)
{
	struct pair_options options = { .threading = FI_THREAD_DOMAIN, .av_type = FI_AV_TABLE, .format = FI_CQ_FORMAT_TAGGED };
	char name[64];

	open_pair(&pair, &options);
	CHECK_IS(write(writing, a->name, 48), 48);
	CHECK_IS(read(reading, name, 48), 48);
	CHECK_IS(fi_av_insert(a->av, name, 1, &a->other, 0, NULL), 1);
	/* Says something, so that the connection is there, and an announcement that it will never fulfil. */
	AGAIN(fi_tinject(a->ep, "hello", 6, a->other, 1), a);
	AGAIN(fi_tsend(a->ep, out, sizeof(out), NULL, a->other, 2, NULL), a);
	for (;;)
		fi_cntr_read(a->received);
}

/* An error of each of the operations comes; which contexts came is a bit each. */
static int errors(int count)
{
	int seen = 0;

	while (count--) {
		struct fi_cq_err_entry error = next_error(b, a);

		/* Over udp nobody tells of it: $PM_PATIENCE ends. */
		CHECK(error.err == FI_EHOSTDOWN || error.err == FI_EHOSTUNREACH || (over_udp() && error.err == FI_ETIMEDOUT));
		seen |= 1 << (intptr_t)error.op_context;
	}
	return seen;
}

static void death(void)
{
	struct fi_cq_tagged_entry entry;
	int there[2], back[2];
	fi_addr_t doomed;
	char name[64];
	ssize_t status;
	pid_t pid;

	CHECK(!pipe(there) && !pipe(back));
	pid = fork();
	if (!pid)
		child(there[0], back[1]);
	CHECK_IS(read(back[0], name, 48), 48);
	CHECK_IS(fi_av_insert(b->av, name, 1, &doomed, 0, NULL), 1);
	CHECK_IS(write(there[1], b->name, 48), 48);
	CHECK(!fi_trecv(b->ep, in, 100, NULL, doomed, 1, 0, NULL));
	CHECK_IS(next(b, a, NULL).len, 6);
	CHECK(!fi_trecv(b->ep, in, 100, NULL, doomed, 3, 0, (void *)1));
	CHECK(!fi_recv(b->ep, in, 100, NULL, doomed, (void *)2));
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 4, 0, &in));
	AGAIN(fi_tsend(b->ep, out, sizeof(out), NULL, doomed, 3, (void *)3), a);
	nothing(b, a);
	kill(pid, SIGKILL);
	CHECK_IS(waitpid(pid, NULL, 0), pid);
	CHECK_IS(errors(3), 1 << 1 | 1 << 2 | 1 << 3);
	/* What it had announced cannot be read any more. */
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, doomed, 2, 0, (void *)1));
	CHECK_IS(errors(1), 1 << 1);
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, doomed, 2, 0, (void *)1));
	CHECK_IS(errors(1), 1 << 1);
	status = fi_tsend(b->ep, out, 8, NULL, doomed, 3, NULL);
	CHECK(status == -FI_EHOSTDOWN || status == -FI_EHOSTUNREACH);
	/* Others go on, and the receive from anybody still waits. */
	AGAIN(fi_tinject(a->ep, "still", 6, a->other, 4), b);
	entry = next(b, a, NULL);
	CHECK(entry.op_context == &in && !strcmp(in, "still"));
	works();
}

static int find_reads(const struct pm_survey_entry *entry, void *argument)
{
	if (memcmp(&entry->address, b->name, sizeof(entry->address)))
		return 0;
	*(uint64_t *)argument = entry->statistics.reads;
	return 1;
}

/* With FI_PM_UNEXPECTED=100000 the sender is soon told to hold: what it still injects stays with it, until b reads it. */
static void flood(void)
{
	enum { MANY = 2000 };
	uint64_t reads = 0;

	works(); /* the connection back is made */

	for (int i = 0; i < MANY; i++) {
		memcpy(out, &i, sizeof(i));
		AGAIN(fi_tinject(a->ep, out, 1000, a->other, 6), b);
		fi_cntr_read(b->received);
	}
	/* Others still pass. */
	AGAIN(fi_tsend(a->ep, "request", 8, NULL, a->other, 7, NULL), b);
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 7, 0, NULL));
	next(b, a, NULL);
	CHECK(!strcmp(in, "request"));
	next(a, b, NULL);
	AGAIN(fi_tsend(a->ep, NULL, 0, NULL, a->other, 7, NULL), b);
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 7, 0, NULL));
	CHECK_IS(next(b, a, NULL).len, 0);
	next(a, b, NULL);
	for (int i = 0; i < MANY; i++) {
		int number;

		CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 6, 0, NULL));
		CHECK_IS(next(b, a, NULL).len, 1000);
		memcpy(&number, in, sizeof(number));
		CHECK_IS(number, i);
	}
	CHECK_IS(pm_survey(find_reads, &reads), 1);
	CHECK(reads > MANY / 2);
	works();
}

int main(void)
{
	struct pair_options options = { .threading = FI_THREAD_DOMAIN, .av_type = FI_AV_TABLE, .format = FI_CQ_FORMAT_TAGGED };

	setenv("FI_PM_UNEXPECTED", "100000", 1);
	need_provider();
	open_pair(&pair, &options);
	flood();
	open_raw();
	nonsense();
	death();
	close_pair(&pair);
	return 0;
}
