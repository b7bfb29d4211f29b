/*
 * pingpong.c - half round trip between ranks 0 and 1 of an MPI program, by message size.
 *
 * pingpong SIZE:ROUNDS [...]: for each size, in bytes, BATCHES batches of ROUNDS round trips each, of which rank 0
 * prints the median and the best (batches are best short, so that most are not disturbed by other programs): "result SIZE MEDIAN_US BEST_US ROUND_TRIPS". It is an ordinary MPI program, which
 * knows nothing of what carries its messages.
 *
 * With $PINGPONG_HOLD, the name of a file that exists, the ranks stay after the last line, "done", until that file
 * is gone: so what they have done can be looked at from outside.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCHES 101

static int rank;

static void fail(const char *what)
{
	fprintf(stderr, "pingpong: rank %d: %s\n", rank, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Each rank on a CPU of its own, the same under every MPI, whatever its launcher would have done. */
static void pin(void)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(rank % (int)sysconf(_SC_NPROCESSORS_ONLN), &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void round_trips(char *buffer, int size, long rounds)
{
	for (long i = 0; i < rounds; i++) {
		char mark = (char)(i + 1);
		if (rank == 0) {
			buffer[0] = buffer[size - 1] = mark;
			MPI_Send(buffer, size, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
			buffer[0] = buffer[size - 1] = 0;
		}
		MPI_Recv(buffer, size, MPI_BYTE, 1 - rank, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (buffer[0] != mark || buffer[size - 1] != mark)
			fail("a message came with the wrong content");
		if (rank == 1)
			MPI_Send(buffer, size, MPI_BYTE, 0, 7, MPI_COMM_WORLD);
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void measure(int size, long rounds)
{
	double half[BATCHES];
	char *buffer = malloc((size_t)size);
	if (!buffer)
		fail("no memory");
	memset(buffer, 0, (size_t)size);
	MPI_Barrier(MPI_COMM_WORLD);
	round_trips(buffer, size, rounds); /* to warm up */
	for (int i = 0; i < BATCHES; i++) {
		double begin = MPI_Wtime();
		round_trips(buffer, size, rounds);
		half[i] = (MPI_Wtime() - begin) / (double)rounds / 2 * 1e6;
	}
	free(buffer);
	qsort(half, BATCHES, sizeof half[0], compare);
	if (rank == 0) {
		printf("result %d %.4f %.4f %ld\n", size, half[BATCHES / 2], half[0], rounds * (BATCHES + 1));
		fflush(stdout);
	}
}

static void hold(void)
{
	const char *file = getenv("PINGPONG_HOLD");
	if (rank == 0) {
		printf("done\n");
		fflush(stdout);
		for (int i = 0; file && access(file, F_OK) == 0 && i < 10000; i++)
			usleep(1000);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2)
		fail("two processes are needed");
	pin();
	for (int i = 1; i < argc; i++) {
		int size;
		long rounds;
		if (sscanf(argv[i], "%d:%ld", &size, &rounds) != 2 || size < 1 || rounds < 1)
			fail("arguments are SIZE:ROUNDS");
		measure(size, rounds);
	}
	hold();
	MPI_Finalize();
	return 0;
}
