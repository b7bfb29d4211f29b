/*
 * mpi_messages.c - messages between ranks under an MPI: sizes from nothing to 16 MiB with their contents checked,
 * wildcards, probe and mprobe, cancelling, many outstanding, derived types, persistent and synchronous sends.
 *
 * mpi_messages [FILE]: once, or again and again until the file is there.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpi_check.h"

static void fill(unsigned char *buffer, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		buffer[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static int filled(const unsigned char *buffer, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++) {
		if (buffer[i] != (unsigned char)(seed * 31 + i * 7 + (i >> 8)))
			return 0;
	}
	return 1;
}

/* Each rank sends to the next and receives from the one before. */
static void sizes(void)
{
	static const int some[] = { 0,    1,	7,     8,     9,     40,     47,      48,      49,	 56,	 57,
				    100,  1000, 4096,  8191,  8192,  8193,   16383,   16384,   16385,	 65536, 262144,
				    1 << 20, (1 << 20) + 13, 1 << 22, 1 << 24 };
	unsigned char *out = malloc((1 << 24) + 1), *in = malloc((1 << 24) + 1);
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		for (int late = 0; late < 2; late++) {
			MPI_Status status;
			MPI_Request request;
			int count;

			fill(out, some[i], rank + i);
			memset(in, 0xee, some[i] + 1);
			if (!late)
				MPI_Irecv(in, some[i], MPI_BYTE, before, i, MPI_COMM_WORLD, &request);
			MPI_Barrier(MPI_COMM_WORLD);
			MPI_Request sending;
			MPI_Isend(out, some[i], MPI_BYTE, next, i, MPI_COMM_WORLD, &sending);
			if (late) {
				MPI_Barrier(MPI_COMM_WORLD);
				MPI_Irecv(in, some[i], MPI_BYTE, before, i, MPI_COMM_WORLD, &request);
			}
			MPI_Wait(&request, &status);
			MPI_Wait(&sending, MPI_STATUS_IGNORE);
			MPI_Get_count(&status, MPI_BYTE, &count);
			CHECK(count == some[i]);
			CHECK(status.MPI_SOURCE == before && status.MPI_TAG == (int)i);
			CHECK(filled(in, some[i], before + i));
			CHECK(in[some[i]] == 0xee);
		}
	}
	free(out);
	free(in);
}

static void wildcards(void)
{
	int value;

	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		int *seen = calloc(ranks, sizeof(int));

		for (int i = 0; i < 100 * (ranks - 1); i++) {
			MPI_Status status;

			MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
			CHECK(value == status.MPI_SOURCE * 1000 + seen[status.MPI_SOURCE]);
			CHECK(status.MPI_TAG == 5 + seen[status.MPI_SOURCE] % 3);
			seen[status.MPI_SOURCE]++;
		}
		free(seen);
	} else {
		for (int i = 0; i < 100; i++) {
			value = rank * 1000 + i;
			MPI_Send(&value, 1, MPI_INT, 0, 5 + i % 3, MPI_COMM_WORLD);
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

static void probes(void)
{
	static const int some[] = { 0, 8, 5000, 100000 };
	unsigned char *buffer = malloc(100000);

	for (int i = 0; i < 4; i++) {
		if (rank == 1) {
			for (int k = 0; k < 2; k++) {
				fill(buffer, some[i], i);
				MPI_Send(buffer, some[i], MPI_BYTE, 0, 20 + i, MPI_COMM_WORLD);
			}
		} else if (rank == 0) {
			MPI_Status status;
			MPI_Message message;
			int count, flag;

			MPI_Iprobe(MPI_ANY_SOURCE, 999, MPI_COMM_WORLD, &flag, &status);
			CHECK(!flag);
			MPI_Probe(MPI_ANY_SOURCE, 20 + i, MPI_COMM_WORLD, &status);
			MPI_Get_count(&status, MPI_BYTE, &count);
			CHECK(count == some[i] && status.MPI_SOURCE == 1);
			memset(buffer, 0, 100000);
			MPI_Recv(buffer, some[i], MPI_BYTE, 1, 20 + i, MPI_COMM_WORLD, &status);
			CHECK(filled(buffer, some[i], i));
			MPI_Mprobe(1, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
			MPI_Get_count(&status, MPI_BYTE, &count);
			CHECK(count == some[i] && status.MPI_TAG == 20 + i);
			memset(buffer, 0, 100000);
			MPI_Mrecv(buffer, some[i], MPI_BYTE, &message, &status);
			CHECK(filled(buffer, some[i], i));
		}
	}
	free(buffer);
	MPI_Barrier(MPI_COMM_WORLD);
}

static void cancelling(void)
{
	MPI_Request request;
	MPI_Status status;
	int value = 0, flag;

	MPI_Irecv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &request);
	MPI_Cancel(&request);
	MPI_Wait(&request, &status);
	MPI_Test_cancelled(&status, &flag);
	CHECK(flag);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 1) {
		value = 42;
		MPI_Send(&value, 1, MPI_INT, 0, 77, MPI_COMM_WORLD);
	} else if (rank == 0) {
		MPI_Recv(&value, 1, MPI_INT, 1, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(value == 42);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

#define MANY 3000

/* Posted in the order of their tags, sent in another one; short and long ones. */
static void many_outstanding(int size)
{
	MPI_Request *requests = malloc(2 * MANY * sizeof(*requests));
	unsigned char *in = calloc(MANY, size), *out = malloc((size_t)MANY * size);
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

	for (int i = 0; i < MANY; i++)
		fill(out + (size_t)i * size, size, i + rank);
	for (int i = 0; i < MANY / 2; i++)
		MPI_Irecv(in + (size_t)i * size, size, MPI_BYTE, before, i, MPI_COMM_WORLD, &requests[i]);
	for (int i = 0; i < MANY; i++) {
		int k = (i * 7) % MANY;

		MPI_Isend(out + (size_t)k * size, size, MPI_BYTE, next, k, MPI_COMM_WORLD, &requests[MANY + k]);
	}
	for (int i = MANY / 2; i < MANY; i++)
		MPI_Irecv(in + (size_t)i * size, size, MPI_BYTE, before, i, MPI_COMM_WORLD, &requests[i]);
	MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < MANY; i++)
		CHECK(filled(in + (size_t)i * size, size, i + before));
	free(requests);
	free(in);
	free(out);
}

static void kinds_of_send(void)
{
	int values[100] = { 0 }, strided[200], next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	MPI_Datatype every_second;
	MPI_Request requests[2];

	MPI_Type_vector(100, 1, 2, MPI_INT, &every_second);
	MPI_Type_commit(&every_second);
	for (int i = 0; i < 200; i++)
		strided[i] = rank * 1000 + i;
	MPI_Irecv(values, 100, MPI_INT, before, 3, MPI_COMM_WORLD, &requests[0]);
	MPI_Issend(strided, 1, every_second, next, 3, MPI_COMM_WORLD, &requests[1]);
	MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < 100; i++)
		CHECK(values[i] == before * 1000 + 2 * i);
	MPI_Type_free(&every_second);

	MPI_Recv_init(values, 100, MPI_INT, before, 4, MPI_COMM_WORLD, &requests[0]);
	MPI_Send_init(strided, 100, MPI_INT, next, 4, MPI_COMM_WORLD, &requests[1]);
	for (int k = 0; k < 10; k++) {
		strided[0] = k;
		MPI_Startall(2, requests);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		CHECK(values[0] == k && values[1] == before * 1000 + 1);
	}
	MPI_Request_free(&requests[0]);
	MPI_Request_free(&requests[1]);
}

/* Too long a message for the receive is an error of that receive only. */
static void truncated(void)
{
	static int values[40000];

	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	for (int size = 10; size <= 40000; size *= 4000) {
		if (rank == 1) {
			MPI_Send(values, size, MPI_INT, 0, 8, MPI_COMM_WORLD);
		} else if (rank == 0) {
			MPI_Status status;
			int error = MPI_Recv(values, 1, MPI_INT, 1, 8, MPI_COMM_WORLD, &status), class;

			MPI_Error_class(error, &class);
			CHECK(class == MPI_ERR_TRUNCATE);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

static void everything(void)
{
	sizes();
	wildcards();
	if (ranks > 1)
		probes();
	cancelling();
	many_outstanding(16);
	many_outstanding(20000);
	kinds_of_send();
	if (ranks > 1 && !getenv("NO_TRUNCATION"))
		truncated();
	MPI_Barrier(MPI_COMM_WORLD);
}

/* Whether the file is there, as rank 0 sees it. */
static int there(const char *file)
{
	int answer = rank == 0 && !access(file, F_OK);

	MPI_Bcast(&answer, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return answer;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	do
		everything();
	while (argc > 1 && !there(argv[1]));
	if (rank == 0)
		printf("messages: ok\n");
	MPI_Finalize();
	return 0;
}
