/* beat.c - MPI ranks that compute for a little and then exchange what they have, again and again, and check each sum. While they wait for
 * each other they sleep: four guests that spin would need more than the two processors of a small machine, and all that is measured
 * would be how those are shared.
 *
 * Usage: beat SECONDS. Rank 0 prints a line for each quarter of a second:
 *   beat <Unix time of its end, s> <beats in it> <longest time from beat to beat, ms>
 * A beat that is longer than that has a line of its own, with the time of its end. A wrong sum ends the program with status 3.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WORDS = 1 << 14 };

/* Waits for an exchange without spinning. */
static void await(MPI_Request *exchange)
{
	struct timespec nap = {0, 500000};
	int done = 0;

	while (!done) {
		MPI_Test(exchange, &done, MPI_STATUS_IGNORE);
		if (!done)
			nanosleep(&nap, NULL);
	}
}

static double wall(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	static unsigned int held[WORDS];
	double seconds = argc > 1 ? atof(argv[1]) : 10, began, last, window, longest = 0;
	int rank, size;
	long beats = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < WORDS; i++)
		held[i] = i * 2654435761u;
	began = last = window = wall();
	for (long round = 0; last - began < seconds; round++) {
		long mine = round + rank, sum = 0;
		double now;
		MPI_Request exchange;

		for (int i = 1; i < WORDS; i++)
			held[i] = held[i] * 1664525u + held[i - 1];
		MPI_Iallreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &exchange);
		await(&exchange);
		if (sum != size * round + (long)size * (size - 1) / 2) {
			fprintf(stderr, "round %ld: the sum is %ld\n", round, sum);
			MPI_Abort(MPI_COMM_WORLD, 3);
		}
		now = wall();
		if (now - last > longest)
			longest = now - last;
		last = now;
		beats++;
		if (rank == 0 && now - window > 0.25) {
			printf("beat %.6f %ld %.3f\n", now, beats, longest * 1e3);
			window = now;
			beats = 0;
			longest = 0;
		}
		MPI_Ibcast(&last, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD, &exchange);
		await(&exchange);
	}
	MPI_Finalize();
	return 0;
}
