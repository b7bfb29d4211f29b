/*
 * mpi_pingpong.c - what a message between two ranks costs: half the round trip of 8 bytes, and the bandwidth of
 * longer ones. Prints "SIZE MICROSECONDS MB/S" per size: of several rounds the best and the median.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 400 /* short ones: on a busy machine some of them are left alone */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double round_trip(char *buffer, int size, int count, int rank)
{
	double begin = MPI_Wtime();

	for (int i = 0; i < count; i++) {
		if (rank == 0) {
			MPI_Send(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
			MPI_Recv(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			MPI_Recv(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
		}
	}
	return (MPI_Wtime() - begin) / count / 2;
}

int main(int argc, char **argv)
{
	int sizes[] = { 8, 1 << 20 }, rank;
	char *buffer = malloc(1 << 24);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	memset(buffer, 1, 1 << 24);
	for (int s = 0; s < 64; s++) {
		int size = argc > 1 ? (s + 1 < argc ? atoi(argv[s + 1]) : -1) : s < 2 ? sizes[s] : -1;
		int count = size < 4096 ? 300 : size < 65536 ? 100 : 6;
		double times[ROUNDS];

		if (size < 0)
			break;
		round_trip(buffer, size, count, rank);
		for (int r = 0; r < ROUNDS; r++)
			times[r] = round_trip(buffer, size, count, rank);
		qsort(times, ROUNDS, sizeof(times[0]), compare);
		if (rank == 0)
			printf("%d best %.3f us median %.3f us, %.0f MB/s median %.0f MB/s\n", size, times[0] * 1e6,
			       times[ROUNDS / 2] * 1e6, size / times[0] / 1e6, size / times[ROUNDS / 2] / 1e6);
	}
	MPI_Finalize();
	return 0;
}
