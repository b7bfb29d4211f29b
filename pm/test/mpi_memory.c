/* mpi_memory.c - one-sided communication under an MPI: put, get, accumulate, with fences and locks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpi_check.h"

/* With any argument, windows are made of memory that is there: what Open MPI allocates it may share with its neighbours,
 * and then leaves the network alone. */
static int created;

static MPI_Win make_window(size_t size, long **memory)
{
	MPI_Win window;

	if (!created) {
		MPI_Win_allocate(size, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, memory, &window);
		return window;
	}
	*memory = malloc(size);
	MPI_Win_create(*memory, size, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	return window;
}

static void free_window(MPI_Win window, long *memory)
{
	MPI_Win_free(&window);
	if (created)
		free(memory);
}

static void fences(int count)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	long *memory, *local = malloc(count * sizeof(long)), *got = malloc(count * sizeof(long));
	MPI_Win window = make_window(2 * count * sizeof(long), &memory);

	for (int i = 0; i < count; i++) {
		local[i] = rank * 10000000L + i;
		memory[i] = memory[count + i] = -1;
		got[i] = -2;
	}
	MPI_Win_fence(0, window);
	MPI_Put(local, count, MPI_LONG, next, 0, count, MPI_LONG, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < count; i++)
		CHECK(memory[i] == before * 10000000L + i && memory[count + i] == -1);
	MPI_Get(got, count, MPI_LONG, next, 0, count, MPI_LONG, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < count; i++)
		CHECK(got[i] == local[i]);
	for (int target = 0; target < ranks; target++)
		MPI_Accumulate(local, count, MPI_LONG, target, count, count, MPI_LONG, MPI_SUM, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < count; i++)
		CHECK(memory[count + i] == -1 + 10000000L * ranks * (ranks - 1) / 2 + (long)ranks * i);
	free_window(window, memory);
	free(local);
	free(got);
}

static void locks(void)
{
	long *memory, one = 1, old;
	MPI_Win window = make_window(64 * sizeof(long), &memory);

	for (int i = 0; i < 64; i++)
		memory[i] = 0;
	MPI_Win_fence(0, window);
	MPI_Win_lock_all(0, window);
	for (int i = 0; i < 100; i++) {
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 3, MPI_SUM, window);
		MPI_Win_flush(0, window);
		CHECK(old >= 0 && old < 100 * ranks);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
	MPI_Get(&old, 1, MPI_LONG, 0, 3, 1, MPI_LONG, window);
	MPI_Win_unlock(0, window);
	CHECK(old == 100 * ranks);
	free_window(window, memory);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	created = argc > 1;
	fences(1);
	fences(1000);
	fences(300000);
	locks();
	if (rank == 0)
		printf("memory: ok\n");
	MPI_Finalize();
	return 0;
}
