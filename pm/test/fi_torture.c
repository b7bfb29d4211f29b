/*
 * fi_torture.c - processes with several endpoints of the provider, and in a second round several threads at each of them,
 * send each other messages at random: tagged ones, received with masks and from whoever or from one, early, late or not at
 * all as the receive is cancelled; and untagged ones, several into a buffer. Each arrives once, whole, and in order.
 *
 * What is sent follows from the seed: length and bytes of a message from who sends it, to whom, in which stream, and its
 * number there, which comes along as completion data. A stream's messages have one tag, so they take the receives that fit
 * in the order in which these were posted.
 *
 * Where two rails and a key are given ($PM_RAILS, $PM_JOB_KEY), the endpoints are also told to leave the first one and to
 * join it.
 *
 * fi_torture [SECONDS [SEED [PROCESSES]]]; default 1.5 s for each round, a seed of the clock, 3 processes of 2 endpoints.
 */
#include <pm.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "fi_torture_acts.h"

static void act(struct flier *flier, int which)
{
	struct bird *bird = &flier->nest->birds[which];
	unsigned what = below(flier, 100);

	if (what < 60)
		return say(flier, which);
	if (what == 99 && !below(flier, 10))
		flier->lazy = !flier->lazy;
	if (flier->lazy && what < 97)
		return;
	pthread_mutex_lock(&bird->mutex);
	if (what >= 97)
		cancel(bird, &bird->receives[below(flier, RECEIVES)]);
	else if (what >= 94)
		post_multi(bird);
	else
		post(flier, bird, false);
	pthread_mutex_unlock(&bird->mutex);
}

static uint64_t expected(const struct bird *bird)
{
	uint64_t sum = 0;

	for (int i = 0; i < bird->board->count; i++) {
		for (int thread = 0; thread < bird->board->threads; thread++) {
			for (int stream = 0; stream <= STREAMS; stream++)
				sum += bird->board->sent[i][bird->number][thread][stream];
		}
	}
	return sum;
}

/* Takes what has been sent and not been asked for; whether all of it has come, and what was sent has been taken. */
static bool take_rest(struct flier *flier, int which)
{
	struct bird *bird = &flier->nest->birds[which];
	bool done;

	pthread_mutex_lock(&bird->mutex);
	for (int i = 0; i < RECEIVES; i++) {
		if (atomic_load(&bird->receives[i].busy) && !bird->receives[i].wild)
			cancel(bird, &bird->receives[i]);
	}
	post(flier, bird, true);
	post_multi(bird);
	done = bird->arrived == expected(bird);
	pthread_mutex_unlock(&bird->mutex);
	for (int i = 0; i < SENDS; i++)
		done = done && !atomic_load(&flier->sends[which * SENDS + i].busy);
	look(bird, 0);
	return done;
}

static void *fly(void *argument)
{
	struct flier *flier = argument;
	struct board *board = flier->nest->board;
	int all = board->processes * board->threads;
	double until = seconds() + board->seconds;
	bool done = false;

	while (seconds() < until) {
		int which = below(flier, ENDPOINTS);

		for (int i = 0; i < 10; i++)
			act(flier, which);
		look(&flier->nest->birds[which], !below(flier, 200));
	}
	atomic_fetch_add(&board->sent_all, 1);
	while (atomic_load(&board->sent_all) < all) {
		for (int i = 0; i < ENDPOINTS; i++)
			look(&flier->nest->birds[i], 0);
	}
	while (!done) {
		done = true;
		for (int i = 0; i < ENDPOINTS; i++)
			done = take_rest(flier, i) && done;
	}
	/* Others may still wait for what only this process can do. */
	atomic_fetch_add(&board->received_all, 1);
	while (atomic_load(&board->received_all) < all || !atomic_load(&board->no_orders)) {
		for (int i = 0; i < ENDPOINTS; i++)
			look(&flier->nest->birds[i], 1);
	}
	return NULL;
}

static void open_bird(struct nest *nest, struct fi_info *info, struct bird *bird, unsigned number)
{
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	size_t length = sizeof(nest->board->name[0]), most = LONGEST_UNTAGGED;

	bird->board = nest->board;
	bird->number = number;
	CHECK(!pthread_mutex_init(&bird->mutex, NULL));
	CHECK(!fi_endpoint(nest->domain, info, &bird->ep, NULL));
	CHECK(!fi_cq_open(nest->domain, &cq, &bird->cq, NULL));
	CHECK(!fi_ep_bind(bird->ep, &nest->av->fid, 0));
	CHECK(!fi_ep_bind(bird->ep, &bird->cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(!fi_setopt(&bird->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &most, sizeof(most)));
	CHECK(!fi_enable(bird->ep));
	CHECK(!fi_getname(&bird->ep->fid, nest->board->name[number], &length));
	for (int i = 0; i < RECEIVES; i++) {
		bird->receives[i].bird = bird;
		bird->receives[i].bytes = malloc(LONGEST);
		CHECK(bird->receives[i].bytes);
	}
}

static void open_nest(struct nest *nest, struct board *board, int number)
{
	struct fi_info *hints = wanted(), *info;
	struct fi_av_attr av = { .type = FI_AV_MAP };

	nest->board = board;
	hints->domain_attr->threading = board->threads > 1 ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
	CHECK(!fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	CHECK(!fi_fabric(info->fabric_attr, &nest->fabric, NULL));
	CHECK(!fi_domain(nest->fabric, info, &nest->domain, NULL));
	CHECK(!fi_av_open(nest->domain, &av, &nest->av, NULL));
	for (int i = 0; i < ENDPOINTS; i++)
		open_bird(nest, info, &nest->birds[i], number * ENDPOINTS + i);
	fi_freeinfo(info);
	atomic_fetch_add(&board->present, 1);
	while (atomic_load(&board->present) < board->processes)
		usleep(1000);
	for (int i = 0; i < board->count; i++) {
		CHECK_IS(fi_av_insert(nest->av, board->name[i], 1, &nest->birds[0].address[i], 0, NULL), 1);
		for (int k = 1; k < ENDPOINTS; k++)
			nest->birds[k].address[i] = nest->birds[0].address[i];
	}
}

/* What is still posted is given back, and nothing has come beside what was sent. */
static void close_bird(struct bird *bird)
{
	struct buffer *multi;

	for (int i = 0; i < RECEIVES; i++) {
		if (atomic_load(&bird->receives[i].busy))
			cancel(bird, &bird->receives[i]);
	}
	if (atomic_load(&bird->multi->busy))
		cancel(bird, bird->multi);
	while (bird->cancelled)
		look(bird, 1);
	CHECK_IS(bird->arrived, expected(bird));
	CHECK(bird->arrived > 10);
	for (int i = 0; i < RECEIVES; i++) {
		CHECK(!atomic_load(&bird->receives[i].busy));
		free(bird->receives[i].bytes);
	}
	while ((multi = bird->multi)) {
		CHECK(!atomic_load(&multi->busy));
		bird->multi = multi->older;
		free(multi->bytes);
		free(multi);
	}
	for (unsigned i = 0; i < MOST * MOST_THREADS * (STREAMS + 1); i++)
		free(bird->streams[i].place);
	CHECK(!fi_close(&bird->ep->fid));
	CHECK(!fi_close(&bird->cq->fid));
}

static void process(struct board *board, int number)
{
	struct nest *nest = calloc(1, sizeof(*nest));
	struct flier fliers[MOST_THREADS] = { 0 };
	pthread_t threads[MOST_THREADS];

	CHECK(nest);
	if (number % 2) /* who is soon told to hold */
		setenv("FI_PM_UNEXPECTED", "60000", 1);
	open_nest(nest, board, number);
	for (int i = 0; i < board->threads; i++) {
		fliers[i].nest = nest;
		fliers[i].thread = i;
		fliers[i].random = board->seed * 31 + number * MOST_THREADS + i + 1;
		for (int k = 0; k < ENDPOINTS * SENDS; k++)
			fliers[i].sends[k] = (struct buffer){ .bird = &nest->birds[k / SENDS], .sends = true, .bytes = malloc(LONGEST) };
		CHECK(!pthread_create(&threads[i], NULL, fly, &fliers[i]));
	}
	for (int i = 0; i < board->threads; i++) {
		CHECK(!pthread_join(threads[i], NULL));
		for (int k = 0; k < ENDPOINTS * SENDS; k++)
			free(fliers[i].sends[k].bytes);
	}
	for (int i = 0; i < ENDPOINTS; i++)
		close_bird(&nest->birds[i]);
	CHECK(!fi_close(&nest->av->fid));
	CHECK(!fi_close(&nest->domain->fid));
	CHECK(!fi_close(&nest->fabric->fid));
	free(nest);
}

/* Tells endpoints at random to leave the first of two rails and to join it, as long as messages are sent. */
static void give_orders(struct board *board)
{
	const char *rails = getenv("PM_RAILS");
	uint64_t random = board->seed | 1;

	while (rails && strstr(rails, ",udp") && getenv("PM_JOB_KEY") && !atomic_load(&board->sent_all)) {
		struct pm_address address;
		char rail[16] = "";

		memcpy(rail, rails, strcspn(rails, ","));
		memcpy(&address, board->name[random_next(&random) % board->count], sizeof(address));
		CHECK_IS(pm_order_leave(&address, rail, ORDER_MS), 0);
		usleep(random_next(&random) % 5000);
		CHECK_IS(pm_order_join(&address, rail, ORDER_MS), 0);
		usleep(random_next(&random) % 10000);
	}
	atomic_store(&board->no_orders, true);
}

static void fly_all(double time, uint64_t seed, int processes, int threads)
{
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t children[MOST_PROCESSES];

	CHECK(board != MAP_FAILED);
	board->seconds = time;
	board->seed = seed;
	board->processes = processes;
	board->count = processes * ENDPOINTS;
	board->threads = threads;
	for (int i = 0; i < processes; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (!children[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(time + 50);
			process(board, i);
			exit(0);
		}
	}
	while (atomic_load(&board->present) < processes && !waitpid(-1, NULL, WNOHANG))
		usleep(1000);
	CHECK_IS(atomic_load(&board->present), processes); /* nobody has failed */
	give_orders(board);
	for (int i = 0; i < processes; i++)
		CHECK_IS(child_status(children[i]), 0);
	CHECK(!munmap(board, sizeof(*board)));
}

int main(int argc, char **argv)
{
	double time = argc > 1 ? atof(argv[1]) : 1.5;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)seconds() * 1000003 + getpid();
	int processes = argc > 3 ? atoi(argv[3]) : 3, status;
	pid_t pid = fork();

	CHECK(processes > 0 && processes <= MOST_PROCESSES);
	if (!pid) { /* each loads the provider for itself, with an environment of its own */
		need_provider();
		exit(0);
	}
	status = child_status(pid);
	if (status)
		exit(status);
	printf("seed %llu\n", (unsigned long long)seed);
	fflush(NULL);
	fly_all(time, seed, processes, 1);
	fly_all(time, seed + 1, processes, MOST_THREADS);
	return 0;
}
