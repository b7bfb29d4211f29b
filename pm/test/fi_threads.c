/* fi_threads.c - several threads at once on the same endpoints of the libfabric provider, as FI_THREAD_SAFE allows. */
#include <pthread.h>

#include "fi_test.h"

enum { THREADS = 3, MESSAGES = 3000, LONG = 20000 };

static struct pair pair;
static struct side *a = &pair.a, *b = &pair.b;
static long sent, received;

static int length_of(int number)
{
	return number % 10 ? 8 : LONG;
}

/* Sends the messages of its tag; each buffer holds the number of the message. */
static void *sender(void *argument)
{
	char *buffers = calloc(MESSAGES, LONG);

	CHECK(buffers);
	for (int i = 0; i < MESSAGES; i++) {
		char *buffer = buffers + (size_t)i * LONG;

		memcpy(buffer, &i, sizeof(i));
		AGAIN(fi_tsend(a->ep, buffer, length_of(i), NULL, a->other, (intptr_t)argument, NULL), a);
	}
	while (__atomic_load_n(&sent, __ATOMIC_ACQUIRE) < THREADS * MESSAGES) {
		struct fi_cq_tagged_entry entries[8];
		ssize_t got = fi_cq_read(a->cq, entries, 8);

		CHECK(got > 0 || got == -FI_EAGAIN);
		if (got > 0)
			__atomic_add_fetch(&sent, got, __ATOMIC_ACQ_REL);
	}
	free(buffers);
	return NULL;
}

/* Receives them in order. Completions of all threads' receives come to anybody who reads: the context is a flag. */
static void *receiver(void *argument)
{
	static char buffers[THREADS][LONG];
	char *buffer = buffers[(intptr_t)argument];

	for (int i = 0; i < MESSAGES; i++) {
		int done = 0, number;

		AGAIN(fi_trecv(b->ep, buffer, LONG, NULL, b->other, (intptr_t)argument, 0, &done), b);
		while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
			struct fi_cq_tagged_entry entry;
			ssize_t got = fi_cq_sread(b->cq, &entry, 1, NULL, 1);

			CHECK(got == 1 || got == -FI_EAGAIN);
			if (got == 1)
				__atomic_store_n((int *)entry.op_context, 1, __ATOMIC_RELEASE);
		}
		memcpy(&number, buffer, sizeof(number));
		CHECK_IS(number, i);
		__atomic_add_fetch(&received, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

int main(void)
{
	struct pair_options options = { .threading = FI_THREAD_SAFE, .av_type = FI_AV_TABLE, .format = FI_CQ_FORMAT_TAGGED };
	pthread_t threads[2 * THREADS];

	need_provider();
	open_pair(&pair, &options);
	for (intptr_t i = 0; i < THREADS; i++) {
		CHECK(!pthread_create(&threads[2 * i], NULL, sender, (void *)i));
		CHECK(!pthread_create(&threads[2 * i + 1], NULL, receiver, (void *)i));
	}
	for (int i = 0; i < 2 * THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK_IS(received, THREADS * MESSAGES);
	close_pair(&pair);
	return 0;
}
