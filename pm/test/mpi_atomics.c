/* mpi_atomics.c - one-sided operations that an MPI may leave to the provider's atomic ones. */
#include <mpi.h>
#include <stdio.h>

#include "mpi_check.h"

enum { TIMES = 500 };

enum { NUMBERS = 16 };

/* With hints that hold for all that is done here, MPICH and Intel MPI leave operations to the network; Open MPI does where
 * its component osc rdma has one that it can use. The memory is not the MPI's: that it might share on one machine. */
static MPI_Win make_window(long memory[NUMBERS], int hints)
{
	MPI_Info info;
	MPI_Win window;

	MPI_Info_create(&info);
	if (hints) {
		MPI_Info_set(info, "disable_shm_accumulate", "true");
		MPI_Info_set(info, "accumulate_ops", "same_op");
	}
	for (int i = 0; i < NUMBERS; i++)
		memory[i] = 0;
	MPI_Win_create(memory, NUMBERS * sizeof(long), sizeof(long), info, MPI_COMM_WORLD, &window);
	MPI_Info_free(&info);
	return window;
}

/* Each of the numbers is got once. */
static void fetch_and_add(MPI_Win window, long *memory)
{
	long one = 1, old, last = -1, sum = 0, all;

	MPI_Win_lock_all(0, window);
	for (int i = 0; i < TIMES; i++) {
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, window);
		MPI_Win_flush(0, window);
		CHECK(old > last);
		last = old;
		sum += old;
	}
	MPI_Win_unlock_all(window);
	MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	CHECK(all == (long)TIMES * ranks * (TIMES * ranks - 1L) / 2);
	MPI_Barrier(MPI_COMM_WORLD);
	CHECK(rank || memory[0] == (long)TIMES * ranks);
}

/* A lock of the program's own guards what is changed in two steps. */
static void compare_and_swap(MPI_Win window)
{
	long zero = 0, one = 1, old, value;

	MPI_Win_lock_all(0, window);
	for (int i = 0; i < TIMES / 25; i++) {
		do {
			MPI_Compare_and_swap(&one, &zero, &old, MPI_LONG, 0, 1, window);
			MPI_Win_flush(0, window);
		} while (old);
		MPI_Fetch_and_op(NULL, &value, MPI_LONG, 0, 2, MPI_NO_OP, window);
		MPI_Win_flush(0, window);
		value++;
		MPI_Accumulate(&value, 1, MPI_LONG, 0, 2, 1, MPI_LONG, MPI_REPLACE, window);
		MPI_Win_flush(0, window);
		MPI_Compare_and_swap(&zero, &one, &old, MPI_LONG, 0, 1, window);
		MPI_Win_flush(0, window);
		CHECK(old == 1);
	}
	MPI_Win_flush_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Fetch_and_op(NULL, &value, MPI_LONG, 0, 2, MPI_NO_OP, window);
	MPI_Win_unlock_all(window);
	CHECK(value == (long)TIMES / 25 * ranks);
}

static void accumulate(MPI_Win window, long *memory)
{
	long many[8], old[8];

	for (int i = 0; i < 8; i++)
		many[i] = rank + i;
	MPI_Win_fence(0, window);
	for (int target = 0; target < ranks; target++)
		for (int i = 0; i < TIMES; i++)
			MPI_Accumulate(many, 8, MPI_LONG, target, 8, 8, MPI_LONG, MPI_SUM, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < 8; i++)
		CHECK(memory[8 + i] == TIMES * (ranks * (ranks - 1L) / 2 + (long)i * ranks));
	for (int i = 0; i < 8; i++)
		many[i] = 1L << 40;
	MPI_Win_fence(0, window); /* all have looked */
	MPI_Get_accumulate(many, 8, MPI_LONG, old, 8, MPI_LONG, (rank + 1) % ranks, 8, 8, MPI_LONG, MPI_MAX, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < 8; i++)
		CHECK(memory[8 + i] == 1L << 40 && old[i] == TIMES * (ranks * (ranks - 1L) / 2 + (long)i * ranks));
}

int main(int argc, char **argv)
{
	static long memory[NUMBERS];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int hints = 0; hints < 2; hints++) {
		MPI_Win window = make_window(memory, hints);

		fetch_and_add(window, memory);
		compare_and_swap(window);
		accumulate(window, memory);
		MPI_Win_free(&window);
	}
	if (rank == 0)
		printf("atomics: ok\n");
	MPI_Finalize();
	return 0;
}
