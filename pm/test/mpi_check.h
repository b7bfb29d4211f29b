/* mpi_check.h - what the MPI programs share: who they are, and how they fail. */
#ifndef MPI_CHECK_H
#define MPI_CHECK_H

#include <mpi.h>
#include <stdio.h>

static int rank, ranks;

#define CHECK(condition)                                                                                              \
	do {                                                                                                          \
		if (!(condition)) {                                                                                   \
			fprintf(stderr, "%s:%d: rank %d: not so: %s\n", __FILE__, __LINE__, rank, #condition);         \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                                 \
		}                                                                                                     \
	} while (0)

#endif
