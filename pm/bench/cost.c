/*
 * cost.c - what it costs that rails can be left and joined: `count MESSAGES' sends so many messages over a ring, in one
 * process, for callgrind to count (the script cost does that); `gap SWITCHES' prints how long no message arrives when a
 * rail is left and joined under full load, and in spans of the same length in which it is not, as CSV.
 */
#include <pm.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "test.h"

#define LENGTH 32      /* bytes of a message: it fits into its cell */
#define SOON 60000     /* ms */
#define AFTER 1000     /* messages that have to come after a switch before it is over */

static struct pm_endpoint *open_endpoint(struct pm_address *address)
{
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	CHECK_IS(pm_context_open(NULL, &context), 0);
	CHECK_IS(pm_endpoint_open(context, &endpoint), 0);
	CHECK_IS(pm_endpoint_address(endpoint, address), 0);
	return endpoint;
}

/* Of its own, for callgrind to know it by. */
__attribute__((noinline)) static void one_message(struct pm_peer *peer, struct pm_endpoint *to)
{
	char data[LENGTH] = {0};
	struct iovec part = {data, sizeof(data)};
	struct pm_message message;
	CHECK_IS(pm_send(peer, 0, &part, 1), 0);
	CHECK_IS(pm_receive(to, &message), 1);
	pm_release(to, &message);
}

static void count_messages(long messages)
{
	struct pm_address from_address, to_address;
	struct pm_endpoint *from = open_endpoint(&from_address), *to = open_endpoint(&to_address);
	struct pm_peer *peer;
	struct pm_message message;
	CHECK_IS(pm_peer_get(from, &to_address, &peer), 0);
	while (pm_send(peer, 0, NULL, 0) == -EAGAIN)
		pm_wait(from, 1);
	while (!pm_receive(to, &message))
		;
	pm_release(to, &message);
	for (long i = 0; i < messages; i++)
		one_message(peer, to);
}

/* What both processes see. */
struct board {
	struct pm_address sender, receiver;
	_Atomic bool ready, stop;
	_Atomic uint64_t switches, received, longest_ns;
};

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void stream(struct board *board)
{
	struct pm_endpoint *endpoint = open_endpoint(&board->sender);
	struct pm_statistics statistics;
	struct pm_message message;
	struct pm_peer *peer;
	char data[LENGTH] = {0};
	struct iovec part = {data, sizeof(data)};
	CHECK_IS(pm_peer_get(endpoint, &board->receiver, &peer), 0);
	atomic_store(&board->ready, true);
	for (unsigned i = 0; !atomic_load_explicit(&board->stop, memory_order_relaxed); i++) {
		if (pm_send(peer, 0, &part, 1))
			pm_receive(endpoint, &message);
		if (i % 64 == 0) {
			pm_statistics(endpoint, &statistics);
			atomic_store_explicit(&board->switches, statistics.switches, memory_order_relaxed);
		}
	}
	_exit(0);
}

static void *take(void *argument)
{
	struct board *board = argument;
	struct pm_endpoint *endpoint = open_endpoint(&board->receiver);
	struct pm_message message;
	atomic_store(&board->ready, true);
	uint64_t last = now_ns(), received = 0;
	while (!atomic_load_explicit(&board->stop, memory_order_relaxed)) {
		if (!pm_receive(endpoint, &message))
			continue;
		pm_release(endpoint, &message);
		uint64_t now = now_ns();
		if (now - last > atomic_load_explicit(&board->longest_ns, memory_order_relaxed))
			atomic_store_explicit(&board->longest_ns, now - last, memory_order_relaxed);
		last = now;
		atomic_store_explicit(&board->received, ++received, memory_order_release);
	}
	return NULL;
}

static void wait_for(const _Atomic uint64_t *figure, uint64_t value)
{
	while (atomic_load(figure) < value)
		usleep(100);
}

static double longest_us(struct board *board)
{
	wait_for(&board->received, atomic_load(&board->received) + AFTER);
	return atomic_load(&board->longest_ns) / 1e3;
}

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;
	return (a > b) - (a < b);
}

static void print(const char *what, double *values, int count)
{
	qsort(values, count, sizeof(*values), compare);
	printf("shm,%s,%.1f,us,%.1f..%.1f\n", what, values[count / 2], values[0], values[count - 1]);
}

/* One side, in turn, leaves and joins; the same time is then looked at without. */
static void measure(struct board *board, int switches)
{
	double *with = calloc(switches, sizeof(*with)), *without = calloc(switches, sizeof(*with)), *took = calloc(switches, sizeof(*with));
	CHECK(with && without && took);
	wait_for(&board->received, AFTER);
	for (int i = 0; i < switches; i++) {
		uint64_t before = atomic_load(&board->switches), began = now_ns();
		atomic_store(&board->longest_ns, 0);
		CHECK_IS(pm_order_leave(i % 2 ? &board->sender : &board->receiver, "shm", SOON), 0);
		took[i] = (now_ns() - began) / 1e3;
		wait_for(&board->switches, before + 1);
		CHECK_IS(pm_order_join(i % 2 ? &board->sender : &board->receiver, "shm", SOON), 0);
		wait_for(&board->switches, before + 2);
		with[i] = longest_us(board);
		uint64_t span_us = (now_ns() - began) / 1000;
		atomic_store(&board->longest_ns, 0);
		usleep(span_us);
		without[i] = longest_us(board);
	}
	print("longest gap while a rail is left and joined", with, switches);
	print("longest gap in a span as long without", without, switches);
	print("until a rail is left", took, switches);
	free(with);
	free(without);
	free(took);
}

static void gap(int switches)
{
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_t taker;
	CHECK(board != MAP_FAILED);
	pid_t sender = fork();
	CHECK(sender >= 0);
	if (!sender) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (!atomic_load(&board->ready))
			usleep(100);
		stream(board);
	}
	CHECK(!pthread_create(&taker, NULL, take, board));
	measure(board, switches);
	atomic_store(&board->stop, true);
	pthread_join(taker, NULL);
	CHECK_IS(child_status(sender), 0);
}

int main(int argc, char **argv)
{
	alarm(600);
	if (argc == 3 && !strcmp(argv[1], "count"))
		count_messages(atol(argv[2]));
	else if (argc == 3 && !strcmp(argv[1], "gap") && atoi(argv[2]) > 0)
		gap(atoi(argv[2]));
	else
		fputs("cost count MESSAGES | cost gap SWITCHES\n", stderr);
	return 0;
}
