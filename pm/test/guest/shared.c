/*
 * shared.c - what a rail over memory that two guests share relies on, tried by two processes that map the same file,
 * one in each guest: resource2 of an ivshmem device, for instance.
 *
 * shared FILE RANK RUN: the ranks are 0 and 1; RUN is greater than that of any earlier run on this memory. Rank 0 prints
 * a line for each thing. Status 1: something was wrong; 2: it could not be tried; 124: the other did not come.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 5000L
#define BATCHES 31
#define COUNTS 1000000L
#define TRIES 200000L
#define BLOCK (1UL << 20)
#define COPIES 41

/* Each word has a cache line, and the one beside it, for itself. */
struct line {
	volatile uint64_t word;
	char apart[120];
};

struct area {
	struct line arrived[2]; /* how far each rank is */
	struct line flag, count, data, mark;
	struct line begun[2], written[2], wrong[2];
	char missed[2][TRIES + 1];
	char block[BLOCK] __attribute__((aligned(4096)));
};

static struct area *area;
static const char *path;
static int file, rank, wrong;
static uint64_t step;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Waits until the other is as far. */
static void meet(void)
{
	double limit = now() + 60;
	area->arrived[rank].word = ++step;
	while (area->arrived[1 - rank].word < step)
		if (now() > limit) {
			fprintf(stderr, "rank %d: the other does not come\n", rank);
			exit(124);
		}
}

static void say(const char *what, int right)
{
	wrong |= !right;
	if (rank == 0)
		printf("%s: %s\n", what, right ? "ok" : "WRONG");
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* A flag that goes to and fro. */
static void flag(void)
{
	double half[BATCHES];
	uint64_t value = 0;
	area->flag.word = 0;
	meet();
	for (int i = 0; i < BATCHES; i++) {
		double began = now();
		for (long j = 0; j < ROUNDS; j++, value += 2) {
			if (rank == 0)
				area->flag.word = value + 1;
			while (area->flag.word != value + 1 + (rank == 0))
				;
			if (rank == 1)
				area->flag.word = value + 2;
		}
		half[i] = (now() - began) / (double)ROUNDS / 2 * 1e6;
	}
	qsort(half, BATCHES, sizeof half[0], compare);
	if (rank == 0)
		printf("flag: half round trip %.3f us, best %.3f\n", half[BATCHES / 2], half[0]);
}

/* Atomic additions of both ranks at once: none is lost. */
static void count(void)
{
	area->count.word = 0;
	meet();
	double began = now();
	for (long i = 0; i < COUNTS; i++)
		__atomic_fetch_add(&area->count.word, 1, __ATOMIC_SEQ_CST);
	double each = (now() - began) / (double)COUNTS * 1e9;
	meet();
	if (rank == 0)
		printf("atomic additions: %ld of %ld are there, %.0f ns each\n", (long)area->count.word, 2 * COUNTS, each);
	say("atomic additions", area->count.word == 2 * COUNTS);
}

/* Who sees the mark sees what was written before it. */
static void order(void)
{
	uint64_t early = 0;
	area->data.word = area->mark.word = 0;
	meet();
	for (uint64_t mark = 0, i = 1; mark < TRIES; i++) {
		if (rank == 0) {
			area->data.word = i;
			area->mark.word = mark = i;
		} else {
			mark = area->mark.word;
			early += area->data.word < mark;
		}
	}
	area->wrong[rank].word = early;
	meet();
	say("stores and loads in order", area->wrong[1].word == 0);
}

/*
 * Each rank writes a word, then looks at the other's. With a fence between, not both can miss what the other wrote, on
 * which sleepers and those who wake them rely; without one they may.
 */
static uint64_t both_missed(int fence)
{
	area->begun[rank].word = area->written[rank].word = 0;
	meet();
	for (uint64_t i = 1; i <= TRIES; i++) {
		area->begun[rank].word = i;
		while (area->begun[1 - rank].word < i)
			;
		area->written[rank].word = i;
		if (fence)
			__atomic_thread_fence(__ATOMIC_SEQ_CST);
		area->missed[rank][i] = area->written[1 - rank].word < i;
	}
	meet();
	uint64_t both = 0;
	for (uint64_t i = 1; i <= TRIES; i++)
		both += area->missed[0][i] && area->missed[1][i];
	meet();
	return both;
}

static void fences(void)
{
	uint64_t without = both_missed(0), with = both_missed(1);
	if (rank == 0)
		printf("both missed: %ld of %ld without fence, %ld with\n", (long)without, TRIES, (long)with);
	say("fences", with == 0);
}

/* Copying, in MB/s: the median of many times, and the best of them; the other waits. */
static double copied(char *to, const char *from, double *best)
{
	double rate[COPIES];
	for (int i = 0; i < COPIES; i++) {
		double began = now();
		memcpy(to, from, BLOCK);
		rate[i] = (double)BLOCK / (now() - began) / 1e6;
	}
	qsort(rate, COPIES, sizeof rate[0], compare);
	*best = rate[COPIES - 1];
	return rate[COPIES / 2];
}

static void copy(void)
{
	char *own = malloc(2 * BLOCK);
	if (!own)
		exit(2);
	memset(own, 1, 2 * BLOCK);
	meet();
	if (rank == 0) {
		double best, own_best;
		double inside = copied(own + BLOCK, own, &own_best), into = copied(area->block, own, &best);
		printf("copying 1 MiB, MB/s: in own memory %.0f, into the shared %.0f, best %.0f, out of it %.0f\n",
		       inside, into, best, copied(own, area->block, &own_best));
	}
	meet();
	free(own);
}

/* A lock of a byte of the file holds against others of this guest. */
static void lock(void)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100 + rank, .l_len = 1};
	int again = open(path, O_RDWR | O_CLOEXEC);
	int first = fcntl(file, F_OFD_SETLK, &range);
	int complaint = errno;
	int second = again < 0 ? 0 : fcntl(again, F_OFD_SETLK, &range);
	close(again);
	if (rank == 0 && first)
		printf("locks: %s\n", strerror(complaint));
	say("locks", first == 0 && second == -1 && errno == EAGAIN);
	/* Whether those of the other guest are seen, too. */
	meet();
	range.l_start = 101 - rank;
	range.l_pid = 0;
	int other = fcntl(file, F_OFD_SETLK, &range);
	if (rank == 0)
		printf("locks: those of the other process are %s\n", other ? "seen" : "not seen");
	meet();
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: shared FILE RANK RUN\n");
		return 2;
	}
	path = argv[1];
	rank = atoi(argv[2]) != 0;
	step = strtoull(argv[3], NULL, 10) << 32;
	file = open(path, O_RDWR | O_CLOEXEC);
	area = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *area, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (area == MAP_FAILED) {
		perror(path);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	meet();
	flag();
	count();
	order();
	fences();
	copy();
	lock();
	return wrong;
}
