/* mpi_threads.c - several threads of each rank at once under an MPI (MPI_THREAD_MULTIPLE): each has a communicator. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, ROUNDS = 300, LONGEST = 50000 };

#include "mpi_check.h"

static void *run(void *argument)
{
	MPI_Comm communicator = *(MPI_Comm *)argument;
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	char *out = malloc(LONGEST), *in = malloc(LONGEST);

	for (int i = 0; i < ROUNDS; i++) {
		int size = i % 7 ? 100 : LONGEST;

		memset(out, rank + i, size);
		MPI_Sendrecv(out, size, MPI_BYTE, next, i, in, size, MPI_BYTE, before, i, communicator,
			     MPI_STATUS_IGNORE);
		CHECK(in[0] == (char)(before + i) && in[size - 1] == (char)(before + i));
	}
	free(out);
	free(in);
	return NULL;
}

int main(int argc, char **argv)
{
	MPI_Comm communicators[THREADS];
	pthread_t threads[THREADS];
	int level;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (level < MPI_THREAD_MULTIPLE) {
		if (rank == 0)
			printf("this MPI has no MPI_THREAD_MULTIPLE\n");
		MPI_Finalize();
		return 77;
	}
	for (int i = 0; i < THREADS; i++)
		MPI_Comm_dup(MPI_COMM_WORLD, &communicators[i]);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, run, &communicators[i]));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++)
		MPI_Comm_free(&communicators[i]);
	if (rank == 0)
		printf("threads: ok\n");
	MPI_Finalize();
	return 0;
}
