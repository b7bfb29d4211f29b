/*
 * fi_wait.c - queues and counters of the libfabric provider are slept on: by their own calls and by descriptors, by
 * several threads, with endpoints that have several queues and queues that have several endpoints. A wake-up that is
 * lost is a test that takes too long.
 */
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include "fi_test.h"

enum { ROUNDS = 3000 };

static struct pair pair;
static struct side *a = &pair.a, *b = &pair.b;
static char out[64], in[64];

static double cpu_seconds(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void open_waiting(enum fi_threading threading)
{
	struct pair_options options = { .threading = threading, .av_type = FI_AV_TABLE, .format = FI_CQ_FORMAT_TAGGED,
					.wait = FI_WAIT_FD };

	open_pair(&pair, &options);
}

static int descriptor_of(struct fid *fid)
{
	int fd = -1;

	CHECK(!fi_control(fid, FI_GETWAIT, &fd));
	CHECK(fd >= 0);
	return fd;
}

/* As fi_cq_sread does it, without an end. */
static struct fi_cq_tagged_entry read_by_descriptor(struct fid_cq *cq)
{
	struct fid *fids[] = { &cq->fid };
	struct pollfd asleep = { .fd = descriptor_of(&cq->fid), .events = POLLIN };
	struct fi_cq_tagged_entry entry;
	ssize_t got;

	while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
		int status = fi_trywait(pair.fabric, fids, 1);

		if (!status)
			CHECK(poll(&asleep, 1, 20000) == 1);
		else
			CHECK_IS(status, -FI_EAGAIN);
	}
	CHECK_IS(got, 1);
	return entry;
}

static struct fi_cq_tagged_entry read_asleep(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entry;

	CHECK_IS(fi_cq_sread(cq, &entry, 1, NULL, 20000), 1);
	return entry;
}

/*
 * All of these may be slept on, and nothing wakes the sleeper. Where a rail has work of its own, as to acknowledge what has
 * come, that is done first and may be told as well: over packets sleep is tried again.
 */
static void nothing_there(struct fid **fids, struct pollfd *asleep, int count)
{
	for (int tries = over_udp() ? 100 : 0; tries; tries--)
		if (!fi_trywait(pair.fabric, fids, count) && !poll(asleep, count, 0))
			return;
	CHECK_IS(fi_trywait(pair.fabric, fids, count), 0);
	CHECK_IS(poll(asleep, count, 0), 0);
}

static void objects(void)
{
	static const enum fi_wait_obj refused[] = { FI_WAIT_SET, FI_WAIT_MUTEX_COND, FI_WAIT_POLLFD };
	enum fi_wait_obj object = FI_WAIT_NONE;
	struct fid_cntr *cntr;
	struct fid_cq *cq;
	struct fid_eq *eq;
	int fd;

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		struct fi_cq_attr attr = { .wait_obj = refused[i] };
		struct fi_cntr_attr cntr_attr = { .wait_obj = refused[i] };
		struct fi_eq_attr eq_attr = { .wait_obj = refused[i] };

		CHECK_IS(fi_cq_open(pair.domain, &attr, &cq, NULL), -FI_ENOSYS);
		CHECK_IS(fi_cntr_open(pair.domain, &cntr_attr, &cntr, NULL), -FI_ENOSYS);
		CHECK_IS(fi_eq_open(pair.fabric, &eq_attr, &eq, NULL), -FI_ENOSYS);
	}
	CHECK(!fi_control(&a->cq->fid, FI_GETWAITOBJ, &object));
	CHECK_IS(object, FI_WAIT_FD);
	CHECK_IS(descriptor_of(&a->cq->fid), descriptor_of(&a->cq->fid));
	struct fi_cq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	CHECK(!fi_cq_open(pair.domain, &attr, &cq, NULL));
	CHECK_IS(fi_control(&cq->fid, FI_GETWAIT, &fd), -FI_ENOSYS);
	struct fid *fids[] = { &a->cq->fid, &a->received->fid, &cq->fid };
	CHECK_IS(fi_trywait(pair.fabric, fids, 2), 0);
	CHECK_IS(fi_trywait(pair.fabric, fids, 3), -FI_EINVAL);
	CHECK_IS(fi_cq_sread(cq, in, 1, NULL, 10), -FI_EAGAIN); /* of no endpoint */
	CHECK(!fi_close(&cq->fid));
}

static void event_queue(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
	struct pollfd asleep = { .events = POLLIN };
	struct fid *fids[1];
	uint32_t type;
	struct fid_eq *eq;

	CHECK(!fi_eq_open(pair.fabric, &attr, &eq, NULL));
	asleep.fd = descriptor_of(&eq->fid);
	fids[0] = &eq->fid;
	CHECK_IS(fi_trywait(pair.fabric, fids, 1), 0);
	CHECK_IS(poll(&asleep, 1, 0), 0);
	for (int i = 0; i < 2; i++)
		CHECK_IS(fi_eq_write(eq, 7, "bird", 5, 0), 5);
	for (int i = 0; i < 2; i++) {
		CHECK_IS(fi_trywait(pair.fabric, fids, 1), -FI_EAGAIN);
		CHECK_IS(poll(&asleep, 1, 0), 1);
		CHECK_IS(fi_eq_read(eq, &type, in, sizeof(in), 0), 5);
	}
	CHECK_IS(fi_trywait(pair.fabric, fids, 1), 0);
	CHECK_IS(poll(&asleep, 1, 0), 0);
	CHECK(!fi_close(&eq->fid));
}

/* Who sleeps gets what time it asked for, and costs nothing meanwhile. */
static void idle(void)
{
	struct fi_cq_tagged_entry entry;
	double began = seconds(), cpu = cpu_seconds();

	CHECK_IS(fi_cq_sread(b->cq, &entry, 1, NULL, 300), -FI_EAGAIN);
	CHECK(seconds() - began >= 0.3 && seconds() - began < 5);
	CHECK_IS(fi_cntr_wait(b->received, fi_cntr_read(b->received) + 1, 300), -FI_ETIMEDOUT);
	CHECK(seconds() - began >= 0.6 && seconds() - began < 10);
	CHECK(cpu_seconds() - cpu < 0.03);
	CHECK_IS(fi_cq_sread(b->cq, &entry, 1, NULL, 0), -FI_EAGAIN);
	CHECK_IS(fi_cntr_wait(b->received, ~0ull, 0), -FI_ETIMEDOUT);
}

/* What has come between a look and the sleep is not slept through; nor what somebody else's look has found. */
static void no_time_to_sleep(void)
{
	struct fid *both[] = { &b->cq->fid, &b->received->fid }, **counted = both + 1;
	struct pollfd bells[] = {
		{ .fd = descriptor_of(both[0]), .events = POLLIN },
		{ .fd = descriptor_of(both[1]), .events = POLLIN },
	};
	struct pollfd *asleep = bells, *count = bells + 1;
	struct fi_cq_tagged_entry entry;

	CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	AGAIN(fi_tinject(a->ep, out, 8, a->other, 1), b);
	CHECK_IS(fi_cq_sread(b->cq, &entry, 1, NULL, 20000), 1);
	/* There, and not yet looked for. */
	CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	AGAIN(fi_tinject(a->ep, out, 8, a->other, 1), a);
	while (!fi_trywait(pair.fabric, both, 1))
		CHECK_IS(poll(asleep, 1, 20000), 1);
	CHECK_IS(fi_trywait(pair.fabric, counted, 1), -FI_EAGAIN);
	read_by_descriptor(b->cq);
	/* Found by who has looked at the counter. */
	fi_cntr_read(b->received);
	nothing_there(both, bells, 2);
	CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	AGAIN(fi_tinject(a->ep, out, 8, a->other, 1), a);
	CHECK_IS(poll(asleep, 1, 20000), 1);
	while (!fi_trywait(pair.fabric, counted, 1))
		CHECK_IS(poll(count, 1, 20000), 1);
	CHECK_IS(poll(asleep, 1, 0), 1);
	fi_cntr_read(b->received);
	CHECK_IS(poll(asleep, 1, 0), 1);
	CHECK_IS(fi_trywait(pair.fabric, both, 1), -FI_EAGAIN);
	CHECK_IS(fi_cq_read(b->cq, &entry, 1), 1);
	/* A counter changes by what a queue's reader finds, and by the program. */
	uint64_t value = fi_cntr_read(b->received);
	nothing_there(counted, count, 1);
	CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	AGAIN(fi_tinject(a->ep, out, 8, a->other, 1), a);
	while (fi_cq_read(b->cq, &entry, 1) != 1)
		;
	CHECK_IS(poll(count, 1, 0), 1);
	CHECK_IS(fi_trywait(pair.fabric, counted, 1), -FI_EAGAIN);
	CHECK_IS(fi_cntr_read(b->received), value + 1);
	nothing_there(counted, count, 1);
	CHECK(!fi_cntr_add(b->received, 5));
	CHECK_IS(poll(count, 1, 0), 1);
	CHECK_IS(fi_cntr_read(b->received), value + 6);
}

/* What ends at once is told as well; and where others may sleep, they are, when somebody reads in their stead. */
static void without_a_message(void)
{
	struct fid *both[] = { &a->cq->fid, &a->sent->fid };
	struct pollfd bells[] = {
		{ .fd = descriptor_of(both[0]), .events = POLLIN },
		{ .fd = descriptor_of(both[1]), .events = POLLIN },
	};
	struct pollfd *asleep = bells, *count = bells + 1;
	struct fi_cq_tagged_entry entry;

	fi_cntr_read(a->sent);
	nothing_there(both, bells, 2);
	AGAIN(fi_tsend(a->ep, out, 8, NULL, a->other, 1, NULL), b);
	CHECK_IS(poll(asleep, 1, 0), 1);
	CHECK_IS(poll(count, 1, 0), 1);
	fi_cntr_read(a->sent);
	CHECK_IS(fi_cq_read(a->cq, &entry, 1), 1);
	if (pair.info->domain_attr->threading == FI_THREAD_SAFE) {
		nothing_there(both, bells, 1);
		CHECK_IS(fi_cq_read(a->cq, &entry, 1), -FI_EAGAIN);
		CHECK_IS(poll(asleep, 1, 0), 1);
	}
	CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	read_by_descriptor(b->cq);
}

static void echo(int reading, int writing)
{
	char name[64];

	open_waiting(FI_THREAD_DOMAIN);
	CHECK_IS(write(writing, a->name, 48), 48);
	CHECK_IS(read(reading, name, 48), 48);
	CHECK_IS(fi_av_insert(a->av, name, 1, &a->other, 0, NULL), 1);
	for (int i = 0; i < 3 * ROUNDS + 1; i++) {
		CHECK(!fi_trecv(a->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
		read_asleep(a->cq);
		if (i == 3 * ROUNDS)
			usleep(300000); /* now the other surely sleeps */
		AGAIN(fi_tinject(a->ep, in, 8, a->other, 1), a);
	}
	close_pair(&pair);
	exit(0);
}

/* Two processes wait for each other in turns. */
static void two_processes(void)
{
	int there[2], back[2];
	struct fid *counted[1];
	struct pollfd count = { .events = POLLIN };
	fi_addr_t other;
	char name[64];
	pid_t pid;

	CHECK(!pipe(there) && !pipe(back));
	pid = fork();
	if (!pid)
		echo(there[0], back[1]);
	open_waiting(FI_THREAD_DOMAIN);
	counted[0] = &b->received->fid;
	count.fd = descriptor_of(counted[0]);
	CHECK_IS(read(back[0], name, 48), 48);
	CHECK_IS(write(there[1], b->name, 48), 48);
	CHECK_IS(fi_av_insert(b->av, name, 1, &other, 0, NULL), 1);
	for (int i = 0; i < 3 * ROUNDS + 1; i++) {
		uint64_t received = fi_cntr_read(b->received);
		double cpu;

		CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
		AGAIN(fi_tinject(b->ep, out, 8, other, 1), a);
		cpu = cpu_seconds();
		if (i % 3 == 0) {
			read_by_descriptor(b->cq);
		} else if (i % 3 == 1) {
			read_asleep(b->cq);
		} else {
			while (fi_cntr_read(b->received) == received) {
				if (!fi_trywait(pair.fabric, counted, 1))
					CHECK_IS(poll(&count, 1, 20000), 1);
			}
			read_asleep(b->cq);
		}
		CHECK(i < 3 * ROUNDS || cpu_seconds() - cpu < 0.03);
	}
	CHECK_IS(waitpid(pid, NULL, 0), pid);
	close_pair(&pair);
}

static void *signal_later(void *argument)
{
	usleep(100000);
	CHECK(!fi_cq_signal(argument));
	return NULL;
}

static void *add_later(void *argument)
{
	usleep(100000);
	CHECK(!fi_cntr_add(argument, 10));
	usleep(100000);
	CHECK(!fi_cntr_adderr(argument, 1));
	return NULL;
}

static void told_by_others(void)
{
	struct fi_cq_tagged_entry entry;
	double began = seconds();
	pthread_t thread;
	uint64_t sent;

	CHECK(!pthread_create(&thread, NULL, signal_later, a->cq));
	CHECK_IS(fi_cq_sread(a->cq, &entry, 1, NULL, -1), -FI_EAGAIN);
	CHECK(seconds() - began >= 0.1);
	CHECK(!pthread_join(thread, NULL));
	sent = fi_cntr_read(a->sent);
	CHECK(!pthread_create(&thread, NULL, add_later, a->sent));
	CHECK_IS(fi_cntr_wait(a->sent, sent + 10, -1), 0);
	CHECK_IS(fi_cntr_wait(a->sent, sent + 11, -1), -FI_EAVAIL);
	CHECK(!pthread_join(thread, NULL));
}

/* Threads that share queues and endpoints, all of them asleep most of the time. */
static struct fid_ep *shared;         /* completions of its sends go to a's queue, of its receives to b's */
static fi_addr_t shared_address;      /* of itself */
static int left;                      /* receives to come */

static void *sleep_for_receives(void *argument)
{
	struct fi_cq_tagged_entry entry;

	while (__atomic_load_n(&left, __ATOMIC_ACQUIRE) > 0) {
		ssize_t got = argument ? (entry = read_by_descriptor(b->cq), 1) : fi_cq_sread(b->cq, &entry, 1, NULL, 20000);

		if (got == -FI_EAGAIN) /* signaled */
			continue;
		CHECK_IS(got, 1);
		if (entry.tag == 2) { /* the end, for the next one, too */
			AGAIN(fi_tinject(shared, out, 8, shared_address, 2), a);
			break;
		}
		__atomic_sub_fetch(&left, 1, __ATOMIC_ACQ_REL);
	}
	return NULL;
}

static void many_threads(int native)
{
	enum { THREADS = 3 };
	struct iovec part = { out, 8 };
	struct fi_msg_tagged message = { .msg_iov = &part, .iov_count = 1, .tag = 1 };
	pthread_t threads[THREADS];
	size_t length = sizeof(in);

	CHECK(!fi_endpoint(pair.domain, pair.info, &shared, NULL));
	CHECK(!fi_ep_bind(shared, &a->av->fid, 0));
	CHECK(!fi_ep_bind(shared, &a->cq->fid, FI_TRANSMIT));
	CHECK(!fi_ep_bind(shared, &b->cq->fid, FI_RECV));
	CHECK(!fi_enable(shared));
	CHECK(!fi_getname(&shared->fid, in, &length));
	CHECK_IS(fi_av_insert(a->av, in, 1, &shared_address, 0, NULL), 1);
	message.addr = shared_address;
	left = ROUNDS + 1;
	for (int i = 0; i < ROUNDS; i++)
		CHECK(!fi_trecv(shared, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	for (int i = 0; i < THREADS + 1; i++)
		CHECK(!fi_trecv(shared, in, 8, NULL, FI_ADDR_UNSPEC, 2, 0, NULL));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, sleep_for_receives, native ? &native : NULL));
	for (int i = 0; i < ROUNDS; i++) {
		/* Ends when it has been received: by somebody who sleeps on the other queue. */
		AGAIN(fi_tsendmsg(shared, &message, FI_DELIVERY_COMPLETE), a);
		if (native)
			read_by_descriptor(a->cq);
		else
			read_asleep(a->cq);
		if (i % 100 == 0)
			usleep(1000);
	}
	AGAIN(fi_tinject(shared, out, 8, shared_address, 2), a);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK_IS(left, 1);
	CHECK(!fi_close(&shared->fid));
}

int main(void)
{
	need_provider();
	two_processes();
	for (int i = 0; i < 2; i++) {
		open_waiting(i ? FI_THREAD_SAFE : FI_THREAD_DOMAIN);
		objects();
		event_queue();
		idle();
		no_time_to_sleep();
		without_a_message();
		idle();
		close_pair(&pair);
	}
	open_waiting(FI_THREAD_SAFE);
	told_by_others();
	many_threads(0);
	many_threads(1);
	close_pair(&pair);
	return 0;
}
