/*
 * talk.c - two ranks exchange messages of all sizes, whose contents are checked, until a file is there.
 *
 * talk FILE; says how often they have done so.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "mpi_check.h"

#define MOST 100000

static void fill(unsigned char *data, int length, unsigned seed)
{
	for (int i = 0; i < length; i++)
		data[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static void exchange(unsigned round)
{
	static const int lengths[] = {0, 8, 100, 1000, 16384, 40000, MOST, 8, 8, 8};
	static unsigned char out[MOST], in[MOST], wanted[MOST];
	int length = lengths[round % (sizeof(lengths) / sizeof(lengths[0]))], count;
	MPI_Status status;
	fill(out, length, 2 * round + rank);
	MPI_Sendrecv(out, length, MPI_BYTE, 1 - rank, 5, in, MOST, MPI_BYTE, 1 - rank, 5, MPI_COMM_WORLD, &status);
	MPI_Get_count(&status, MPI_BYTE, &count);
	fill(wanted, length, 2 * round + 1 - rank);
	CHECK(count == length);
	for (int i = 0; i < length; i++)
		CHECK(in[i] == wanted[i]);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(argc == 2 && ranks == 2);
	unsigned round = 0;
	for (int more = 1; more; round++) {
		exchange(round);
		more = access(argv[1], F_OK) != 0;
		MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	if (!rank)
		printf("%u exchanges\n", round);
	MPI_Finalize();
	return 0;
}
