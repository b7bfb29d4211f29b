/* pingpong.c - two MPI ranks send messages to and fro for so many seconds, 8 bytes and 1 MiB in turn, and say how
 * long the longest exchange of each window of time took. A move of a guest shows as one long exchange.
 *
 * Usage: pingpong SECONDS. Rank 0 prints a line for each exchange that was longer than any before it within the
 * last half second, and the counts at the end:
 *   stall <Unix time of its end, s> <bytes> <duration, ms>
 *   end <exchanges of 8 B> <median, us> <exchanges of 1 MiB> <median, us>
 * Both payloads are checked; a wrong byte ends the program with status 3.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SMALL = 8, LARGE = 1 << 20, KEPT = 1 << 20 };

static double wall(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, long n)
{
	if (n > KEPT)
		n = KEPT;
	if (n == 0)
		return 0;
	qsort(values, n, sizeof(*values), by_value);
	return values[n / 2];
}

/* One exchange; the second rank sends back what it got. */
static void exchange(int rank, unsigned char *buf, int size, unsigned char mark)
{
	if (rank == 0) {
		memset(buf, mark, size);
		MPI_Send(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		memset(buf, 0, size);
		MPI_Recv(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < size; i++)
			if (buf[i] != mark) {
				fprintf(stderr, "byte %d of %d is wrong\n", i, size);
				MPI_Abort(MPI_COMM_WORLD, 3);
			}
	} else {
		MPI_Recv(buf, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(buf, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	static double durations[2][KEPT];
	long n[2] = {0, 0};
	int rank, go = 1;
	double seconds = argc > 1 ? atof(argv[1]) : 10, started, longest = 0, window = 0;
	unsigned char *buf = malloc(LARGE);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (rank == 0)
		printf("start %.6f\n", wall());
	started = MPI_Wtime();
	for (long round = 0; go; round++) {
		int large = round % 8 == 7, size = large ? LARGE : SMALL;
		double begin = MPI_Wtime(), took;

		exchange(rank, buf, size, round & 0xff);
		took = MPI_Wtime() - begin;
		if (rank == 0) {
			durations[large][n[large] % KEPT] = took;
			n[large]++;
			if (begin - window > 0.5) {
				window = begin;
				longest = 0;
			}
			if (took > longest && took > 0.1) {
				longest = took;
				printf("stall %.6f %d %.3f\n", wall(), size, took * 1e3);
			}
			go = MPI_Wtime() - started < seconds;
		}
		if (large)
			MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
		else
			go = 1;
	}
	if (rank == 0)
		printf("end %ld %.1f %ld %.1f\n", n[0], median(durations[0], n[0]) * 1e6, n[1], median(durations[1], n[1]) * 1e6);
	MPI_Finalize();
	return 0;
}
