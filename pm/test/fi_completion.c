/*
 * fi_completion.c - when sends are reported as complete, by what their flags ask for; and the ways to hear of completions
 * and events that fi_conformance does not go.
 */
#include <pthread.h>
#include <sys/syscall.h>

#include "fi_test.h"

/* fi_rx_size_left and fi_tx_size_left are to go, but are still there. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static struct pair pair;
static struct side *a = &pair.a, *b = &pair.b;
static char out[100000], in[sizeof(out)];
static const size_t sizes[] = { 0, 8, 1000, 16352, sizeof(out) };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define LONG 16352 /* longer ones are announced, and read by the receiver */

static void send_with(uint64_t flags, size_t size, uint64_t tag)
{
	struct iovec part = { out, size };
	struct fi_msg_tagged message = { .msg_iov = &part, .iov_count = 1, .addr = a->other, .tag = tag, .context = out };

	AGAIN(fi_tsendmsg(a->ep, &message, flags), b);
}

/* However long a alone looks. */
static void not_yet(void)
{
	struct fi_cq_tagged_entry entry;

	for (int i = 0; i < 1000; i++)
		CHECK_IS(fi_cq_read(a->cq, &entry, 1), -FI_EAGAIN);
}

static void receive(size_t size, unsigned seed, uint64_t tag)
{
	memset(in, 0, size);
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, tag, 0, in));
	CHECK_IS(next(b, a, NULL).len, size);
	CHECK(filled(in, size, seed));
}

/* The buffer may be used again, and nothing else is known. */
static void inject_complete(void)
{
	for (size_t i = 0; i < SIZES; i++) {
		fill(out, sizes[i], i);
		send_with(FI_INJECT_COMPLETE | FI_COMPLETION, sizes[i], 1);
		if (sizes[i] > LONG)
			receive(sizes[i], i, 1);
		CHECK(next(a, b, NULL).op_context == out);
		memset(out, 0xee, sizeof(out));
		if (sizes[i] <= LONG)
			receive(sizes[i], i, 1);
	}
}

/* It is with the peer: who has looked, but not asked for it so far. */
static void transmit_complete(void)
{
	for (size_t i = 0; i < SIZES; i++) {
		fill(out, sizes[i], i);
		send_with(FI_TRANSMIT_COMPLETE | FI_COMPLETION, sizes[i], 2);
		not_yet();
		if (sizes[i] > LONG)
			receive(sizes[i], i, 2);
		CHECK(next(a, b, NULL).op_context == out);
		memset(out, 0xee, sizeof(out));
		if (sizes[i] <= LONG)
			receive(sizes[i], i, 2);
		nothing(a, b);
	}
	/* A receive waits for it. */
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 2, 0, in));
	fill(out, 100, 7);
	send_with(FI_TRANSMIT_COMPLETE | FI_COMPLETION, 100, 2);
	not_yet();
	CHECK(next(b, a, NULL).op_context == in && filled(in, 100, 7));
	CHECK(next(a, b, NULL).op_context == out);
	nothing(a, b);
}

/* A receive has taken it. */
static void delivery_complete(void)
{
	for (size_t i = 0; i < SIZES; i++) {
		fill(out, sizes[i], i);
		send_with(FI_DELIVERY_COMPLETE | FI_COMPLETION, sizes[i], 3);
		not_yet();
		let_arrive(a, b);
		not_yet();
		receive(sizes[i], i, 3);
		CHECK(next(a, b, NULL).op_context == out);
	}
}

/* What is asked for when the endpoint is opened holds for calls without flags. */
static void by_default(uint64_t flags, bool waits)
{
	struct pair_options options = { .threading = FI_THREAD_DOMAIN, .format = FI_CQ_FORMAT_TAGGED, .tx_op_flags = flags };

	open_pair(&pair, &options);
	CHECK_IS(pair.info->tx_attr->op_flags, flags);
	fill(out, 100, 1);
	AGAIN(fi_tsend(a->ep, out, 100, NULL, a->other, 1, out), b);
	if (waits)
		not_yet();
	CHECK(next(a, b, NULL).op_context == out);
	receive(100, 1, 1);
	close_pair(&pair);
}

static void *send_later(void *nothing)
{
	usleep(50000);
	AGAIN(fi_tinject(a->ep, "hello", 6, a->other, 4), a);
	return nothing;
}

static void sources(void)
{
	struct fi_cq_tagged_entry entries[2];
	fi_addr_t from[2] = { 77, 77 };
	pthread_t thread;

	CHECK_IS(fi_cq_sreadfrom(b->cq, entries, 2, from, NULL, 0), -FI_EAGAIN);
	CHECK_IS(fi_cq_sreadfrom(b->cq, entries, 2, from, NULL, 20), -FI_EAGAIN);
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 4, 0, in));
	CHECK(!pthread_create(&thread, NULL, send_later, NULL));
	CHECK_IS(fi_cq_sreadfrom(b->cq, entries, 2, from, NULL, 60000), 1);
	CHECK(from[0] == b->other && from[1] == 77 && entries[0].op_context == in && !strcmp(in, "hello"));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!fi_recv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, in));
	CHECK(!fi_cancel(&b->ep->fid, in));
	CHECK_IS(fi_cq_sreadfrom(b->cq, entries, 2, from, NULL, 60000), -FI_EAVAIL);
	CHECK_IS(next_error(b, a).err, FI_ECANCELED);
}

/* In the place of the C library's: the time of day is set back by so much after it has been looked at. */
#define SET_BACK_S 40
__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
	int status = syscall(SYS_clock_gettime, clock, now);

	if (clock == CLOCK_REALTIME)
		now->tv_sec += SET_BACK_S;
	return status;
}

static void *write_later(void *eq)
{
	usleep(50000);
	CHECK_IS(fi_eq_write(eq, 7, "bird", 5, 0), 5);
	return NULL;
}

static void events(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_eq_err_entry error;
	char text[10];
	pthread_t thread;
	struct fid_eq *eq;
	uint32_t type = 0;

	CHECK(!fi_eq_open(pair.fabric, &attr, &eq, NULL));
	CHECK_IS(fi_eq_sread(eq, &type, in, sizeof(in), 0, 0), -FI_EAGAIN);
	double began = seconds();
	CHECK_IS(fi_eq_sread(eq, &type, in, sizeof(in), 20, 0), -FI_EAGAIN);
	CHECK(seconds() - began >= 0.02 && seconds() - began < SET_BACK_S / 2);
	CHECK(!pthread_create(&thread, NULL, write_later, eq));
	CHECK_IS(fi_eq_sread(eq, &type, in, sizeof(in), -1, FI_PEEK), 5);
	CHECK(!pthread_join(thread, NULL));
	CHECK(type == 7 && !strcmp(in, "bird"));
	CHECK_IS(fi_eq_sread(eq, &type, in, 4, 60000, 0), -FI_ETOOSMALL);
	CHECK_IS(fi_eq_sread(eq, &type, in, sizeof(in), 60000, 0), 5);
	CHECK_IS(fi_eq_read(eq, &type, in, sizeof(in), 0), -FI_EAGAIN);
	CHECK_IS(fi_eq_readerr(eq, &error, 0), -FI_EAGAIN);
	/* Into the caller's buffer as far as it goes, where there is one. */
	CHECK(!strcmp(fi_eq_strerror(eq, FI_ETRUNC, NULL, NULL, 0), fi_strerror(FI_ETRUNC)));
	CHECK(fi_eq_strerror(eq, FI_ETRUNC, NULL, text, sizeof(text)) == text);
	CHECK(strlen(text) == sizeof(text) - 1 && !strncmp(text, fi_strerror(FI_ETRUNC), sizeof(text) - 1));
	CHECK(fi_cq_strerror(a->cq, FI_ETRUNC, NULL, in, sizeof(in)) == in && !strcmp(in, fi_strerror(FI_ETRUNC)));
	CHECK(!fi_close(&eq->fid));
}

/* As many receives as are promised find room; of sends nothing is promised, as room is the peer's. */
static void room(void)
{
	ssize_t left = fi_rx_size_left(b->ep);

	CHECK_IS(fi_tx_size_left(a->ep), -FI_ENOSYS);
	CHECK(left >= (ssize_t)pair.info->rx_attr->size);
	for (ssize_t i = 0; i < left; i++)
		CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 5, 0, in));
	for (ssize_t i = 0; i < left; i++) {
		CHECK(!fi_cancel(&b->ep->fid, in));
		CHECK_IS(next_error(b, a).err, FI_ECANCELED);
	}
}

/* In the place of the C library's. */
static unsigned offers;
__attribute__((visibility("default"))) int sched_yield(void)
{
	offers++;
	return 0;
}

/* Who reads in vain offers the processor to others, but not while an answer may be on its way. */
static void gives_way(void)
{
	for (int round = 0; round < 2; round++) {
		AGAIN(fi_tinject(b->ep, "hello", 6, b->other, 6), a);
		CHECK(!fi_trecv(a->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 6, 0, in));
		next(a, b, NULL);
		offers = 0;
		for (int i = 0; i < 200; i++)
			CHECK_IS(fi_cq_read(a->cq, &(struct fi_cq_tagged_entry){ 0 }, 1), -FI_EAGAIN);
		CHECK_IS(offers, 0);
		not_yet();
		CHECK(offers > 10 && offers < 100);
	}
}

int main(void)
{
	struct pair_options options = { .threading = FI_THREAD_SAFE, .format = FI_CQ_FORMAT_TAGGED };

	need_provider();
	open_pair(&pair, &options);
	inject_complete();
	transmit_complete();
	delivery_complete();
	sources();
	events();
	room();
	gives_way();
	close_pair(&pair);
	by_default(FI_INJECT_COMPLETE, false);
	by_default(FI_TRANSMIT_COMPLETE, true);
	return 0;
}
