/*
 * fi_scale.c - an MPI tells its endpoint of all processes there are, of which it may talk to few: each takes some memory,
 * in the address vector and, when receives name it, beside it.
 */
#include "allocated.h"
#include "fi_test.h"

#define PEERS 50000
#define MOST 800 /* bytes that each takes */

static struct pair pair;
static fi_addr_t numbers[PEERS];

/* Addresses of endpoints that are nowhere. */
static void insert(void)
{
	char name[48];

	for (uint32_t i = 0; i < PEERS; i++) {
		memcpy(name, pair.a.name, sizeof(name));
		for (int j = 0; j < 4; j++)
			name[8 + j] ^= (char)((i + 1) >> 8 * j);
		CHECK_IS(fi_av_insert(pair.a.av, name, 1, &numbers[i], 0, NULL), 1);
	}
}

/* A receive from each, taken back at once. */
static void name_each(void)
{
	static char buffer[8];
	struct fi_cq_err_entry error;

	for (int i = 0; i < PEERS; i++) {
		CHECK_IS(fi_trecv(pair.a.ep, buffer, sizeof(buffer), NULL, numbers[i], 1, 0, buffer), 0);
		CHECK_IS(fi_cancel(&pair.a.ep->fid, buffer), 0);
		error = next_error(&pair.a, &pair.b);
		CHECK_IS(error.err, FI_ECANCELED);
	}
}

static void still_works(void)
{
	char data[8] = "hello", taken[8] = "";

	AGAIN(fi_trecv(pair.b.ep, taken, sizeof(taken), NULL, pair.b.other, 2, 0, NULL), &pair.a);
	AGAIN(fi_tsend(pair.a.ep, data, sizeof(data), NULL, pair.a.other, 2, NULL), &pair.b);
	next(&pair.b, &pair.a, NULL);
	CHECK(!strcmp(taken, data));
}

int main(void)
{
	static const struct pair_options options = {.format = FI_CQ_FORMAT_TAGGED, .threading = FI_THREAD_DOMAIN};
	size_t before;

	need_provider();
	open_pair(&pair, &options);
	before = allocated();
	insert();
	printf("%zu bytes for each of %d in the address vector, ", (allocated() - before) / PEERS, PEERS);
	CHECK((allocated() - before) / PEERS < MOST);
	name_each();
	printf("%zu when each is named by a receive\n", (allocated() - before) / PEERS);
	CHECK((allocated() - before) / PEERS < MOST);
	still_works();
	close_pair(&pair);
	return 0;
}
