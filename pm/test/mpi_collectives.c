/* mpi_collectives.c - collective operations under an MPI, of several sizes, with their results checked. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpi_check.h"

static void all_of(int count)
{
	long *a = malloc(sizeof(long) * count * ranks), *b = malloc(sizeof(long) * count * ranks);
	MPI_Request request;

	for (int root = 0; root < ranks; root++) {
		for (int i = 0; i < count; i++)
			a[i] = rank == root ? root * 7 + i : -1;
		MPI_Bcast(a, count, MPI_LONG, root, MPI_COMM_WORLD);
		for (int i = 0; i < count; i++)
			CHECK(a[i] == root * 7 + i);
	}
	for (int i = 0; i < count; i++)
		a[i] = rank + i;
	MPI_Allreduce(a, b, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		CHECK(b[i] == (long)ranks * (ranks - 1) / 2 + (long)i * ranks);
	MPI_Allgather(a, count, MPI_LONG, b, count, MPI_LONG, MPI_COMM_WORLD);
	for (int i = 0; i < count * ranks; i++)
		CHECK(b[i] == i / count + i % count);
	for (int i = 0; i < count * ranks; i++)
		a[i] = rank * 1000000L + i;
	MPI_Alltoall(a, count, MPI_LONG, b, count, MPI_LONG, MPI_COMM_WORLD);
	for (int i = 0; i < count * ranks; i++)
		CHECK(b[i] == i / count * 1000000L + rank * count + i % count);
	MPI_Gather(a, count, MPI_LONG, b, count, MPI_LONG, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		for (int i = 0; i < count * ranks; i++)
			CHECK(b[i] == i / count * 1000000L + i % count);
	}
	MPI_Scatter(b, count, MPI_LONG, a, count, MPI_LONG, 0, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		CHECK(a[i] == rank * 1000000L + i);
	for (int i = 0; i < count; i++)
		a[i] = rank + 1;
	MPI_Scan(a, b, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		CHECK(b[i] == (long)(rank + 1) * (rank + 2) / 2);
	MPI_Iallreduce(a, b, count, MPI_LONG, MPI_MAX, MPI_COMM_WORLD, &request);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	for (int i = 0; i < count; i++)
		CHECK(b[i] == ranks);
	free(a);
	free(b);
}

int main(int argc, char **argv)
{
	MPI_Comm half;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int k = 0; k < 3; k++) {
		all_of(1);
		all_of(100);
		all_of(5000);
		all_of(200000);
	}
	for (int k = 0; k < 200; k++)
		MPI_Barrier(MPI_COMM_WORLD);
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
	MPI_Barrier(half);
	MPI_Comm_free(&half);
	if (rank == 0)
		printf("collectives: ok\n");
	MPI_Finalize();
	return 0;
}
