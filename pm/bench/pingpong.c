/*
 * pingpong.c - half round trip between ranks 0 and 1 of an MPI program, by message size.
 *
 * pingpong SIZE:ROUNDS[:BATCHES] [...]: for each size, in bytes, BATCHES batches (101) of ROUNDS round trips each, of
 * which rank 0 prints "result SIZE MEDIAN_US BEST_US ROUND_TRIPS MEAN_US". Batches are best short, so that most are not
 * disturbed by other programs. It is an ordinary MPI program, which knows nothing of what carries its messages.
 *
 * With $PINGPONG_HOLD, the name of a file that exists, the ranks stay after the last line, "done", until that file
 * is gone: so what they have done can be looked at from outside. With $PINGPONG_TELL rank 0 also prints after each batch
 * "so far SIZE MEAN_US BATCH BATCHES", for who may have to end it before its time.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCHES 101 /* at most */

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

static void tell_result(int size, double *half, int batches, long rounds)
{
	double sum = 0;
	for (int i = 0; i < batches; i++)
		sum += half[i];
	qsort(half, (size_t)batches, sizeof half[0], compare);
	printf("result %d %.4f %.4f %ld %.4f\n", size, half[batches / 2], half[0], rounds * (batches + 1), sum / batches);
	fflush(stdout);
}

static void measure(int size, long rounds, int batches)
{
	double half[BATCHES], sum = 0;
	char *buffer = malloc((size_t)size);
	if (!buffer)
		fail("no memory");
	memset(buffer, 0, (size_t)size);
	MPI_Barrier(MPI_COMM_WORLD);
	round_trips(buffer, size, rounds); /* to warm up */
	for (int i = 0; i < batches; i++) {
		double begin = MPI_Wtime();
		round_trips(buffer, size, rounds);
		half[i] = (MPI_Wtime() - begin) / (double)rounds / 2 * 1e6;
		sum += half[i];
		if (rank == 0 && getenv("PINGPONG_TELL")) {
			printf("so far %d %.4f %d %d\n", size, sum / (i + 1), i + 1, batches);
			fflush(stdout);
		}
	}
	free(buffer);
	if (rank == 0)
		tell_result(size, half, batches, rounds);
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
		int size, batches = BATCHES;
		long rounds;
		if (sscanf(argv[i], "%d:%ld:%d", &size, &rounds, &batches) < 2 || size < 1 || rounds < 1 || batches < 1 || batches > BATCHES)
			fail("arguments are SIZE:ROUNDS[:BATCHES]");
		measure(size, rounds, batches);
	}
	hold();
	MPI_Finalize();
	return 0;
}
