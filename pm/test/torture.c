/*
 * torture.c - processes with several threads, each with an endpoint, send each other messages of random sizes and read
 * and write each other's memory at random, while processes are stopped and one is killed; every byte is checked.
 *
 * Where two rails and a key are given ($PM_RAILS, $PM_JOB_KEY), the processes are also told to leave the first one and
 * to join it, and their endpoints are put aside and taken up, at random; and who is left is told that the killed one is
 * gone, which over udp nobody else tells.
 *
 * With $PM_TEST_NETWORK the network loses, repeats, reorders and damages packets (network.h).
 *
 * torture [SECONDS [SEED [PROCESSES]]]; default 2 s, a seed of the clock, 4 processes of 2 threads.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "torture_bird.h"

#define ORDERERS 2
#define ORDER_MS 20000

static void process(struct board *board, int number)
{
	struct pm_options options = {
		.size = sizeof(options), .no_direct = number % 3 == 1, .ring_bytes = number % 2 ? 65536 : 0,
	};
	struct bird birds[THREADS];
	pthread_t threads[THREADS];
	struct pm_context *context;
	if (network_is_bad())
		network_begin(board->seed + 15485863 * number, board->harmed);
	CHECK_IS(pm_context_open(&options, &context), 0);
	for (int i = 0; i < THREADS; i++)
		open_bird(&birds[i], board, number * THREADS + i, context);
	atomic_fetch_add(&board->present, 1);
	while (atomic_load(&board->present) < board->processes)
		usleep(1000);
	for (int i = 0; i < THREADS; i++) {
		for (int j = 0; j < birds[i].count; j++)
			CHECK_IS(pm_peer_get(birds[i].endpoint, &board->address[j], &birds[i].others[j].peer), 0);
		CHECK(!pthread_create(&threads[i], NULL, fly, &birds[i]));
	}
	atomic_fetch_add(&board->flying, 1);
	for (int i = 0; i < THREADS; i++) {
		struct pm_statistics statistics;
		pthread_join(threads[i], NULL);
		pm_statistics(birds[i].endpoint, &statistics);
		CHECK(network_is_bad() || !statistics.dropped);
		atomic_fetch_add(&board->dropped, statistics.dropped);
		CHECK(network_is_bad() || birds[i].messages > LEAST_MESSAGES);
	}
	CHECK_IS(pm_context_close(context), 0);
	for (int i = 0; i < THREADS; i++) {
		free(birds[i].memory);
		free(birds[i].others);
	}
}

static bool rails_are_left(void)
{
	const char *rails = getenv("PM_RAILS");
	return rails && strstr(rails, ",udp") && getenv("PM_JOB_KEY");
}

/* An order is carried out, by who computes and who is stopped for a moment as well. */
static void check_order(const struct board *board, int number, const char *what, int error)
{
	if (!error || atomic_load(&board->killed[number]))
		return;
	if (atomic_load(&board->finished) && (error == -EHOSTUNREACH || error == -EHOSTDOWN || error == -ESHUTDOWN || error == -ENOENT))
		return;
	fprintf(stderr, "order to %s to %d: %s\n", what, number, strerror(-error));
	exit(1);
}

static void order_one(struct board *board, int number, int what, int pause_us)
{
	const struct pm_address *address = &board->address[number];
	const char *rails = getenv("PM_RAILS");
	char rail[16] = "";
	memcpy(rail, rails, strcspn(rails, ","));
	if (what < 4) {
		check_order(board, number, "leave", pm_order_leave(address, rail, ORDER_MS));
		usleep(pause_us);
	}
	if (what < 8)
		check_order(board, number, "join", pm_order_join(address, rail, ORDER_MS));
	if (what == 8) {
		/* Whether that has been waited for or not. */
		int error = pm_order_save(address, pause_us & 1 ? ORDER_MS : 0);
		check_order(board, number, "save", error == -ETIMEDOUT && !(pause_us & 1) ? 0 : error);
		usleep(pause_us);
		check_order(board, number, "restore", pm_order_restore(address, ORDER_MS));
	}
	usleep(pause_us);
}

struct orders {
	struct board *board;
	uint64_t random;
};

static void *give_orders(void *argument)
{
	struct orders *orders = argument;
	struct board *board = orders->board;
	int count = board->processes * THREADS;
	while (atomic_load(&board->flying) < board->processes)
		usleep(1000);
	while (!atomic_load(&board->no_orders)) {
		int number = random_next(&orders->random) % count, what = random_next(&orders->random) % 9;
		order_one(board, number, what, random_next(&orders->random) % (random_next(&orders->random) % 4 ? 3000 : 30000));
	}
	return NULL;
}

static void tell_gone(struct board *board, int number)
{
	for (int i = 0; i < board->processes; i++)
		if (i != board->doomed)
			check_order(board, i * THREADS, "let go", pm_order_gone(&board->address[i * THREADS], &board->address[number], ORDER_MS));
}

/* Stops processes for a moment, and kills the doomed one in the middle. */
static void trouble(struct board *board, const pid_t *children)
{
	double began = seconds();
	uint64_t random = board->seed | 1;
	bool killed = board->doomed < 0;
	while (seconds() - began < board->seconds) {
		pid_t child = children[random_next(&random) % board->processes];
		kill(child, SIGSTOP);
		usleep(random_next(&random) % 30000);
		kill(child, SIGCONT);
		usleep(random_next(&random) % 30000);
		if (!killed && seconds() - began > board->seconds / 2) {
			for (int i = 0; i < THREADS; i++)
				atomic_store(&board->killed[board->doomed * THREADS + i], true);
			kill(children[board->doomed], SIGKILL);
			for (int i = 0; i < THREADS && rails_are_left(); i++)
				tell_gone(board, board->doomed * THREADS + i);
			killed = true;
		}
	}
}

static void check_network(struct board *board)
{
	static const char *const harms[NETWORK_HARMS] = {"lost", "repeated", "held back", "damaged", "cut"};
	for (int i = 0; i < NETWORK_HARMS; i++) {
		printf("%u packets %s\n", board->harmed[i], harms[i]);
		CHECK(board->harmed[i] > 0);
	}
	CHECK(board->dropped > 0);
}

int main(int argc, char **argv)
{
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t children[MOST_PROCESSES];
	CHECK(board != MAP_FAILED);
	board->seconds = argc > 1 ? atof(argv[1]) : 2;
	board->seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL);
	board->processes = argc > 3 ? atoi(argv[3]) : 4;
	CHECK(board->processes > 1 && board->processes <= MOST_PROCESSES);
	board->doomed = board->processes > 2 ? (int)(board->seed % board->processes) : -1;
	printf("seed %llu\n", (unsigned long long)board->seed);
	fflush(NULL);
	alarm(board->seconds + MORE_SECONDS + 70);
	for (int i = 0; i < board->processes; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (!children[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(board->seconds + MORE_SECONDS + 60);
			process(board, i);
			exit(0);
		}
	}
	while (atomic_load(&board->present) < board->processes)
		usleep(1000);
	struct orders orders[ORDERERS];
	pthread_t orderers[ORDERERS];
	for (int i = 0; i < ORDERERS && rails_are_left(); i++) {
		orders[i] = (struct orders){board, board->seed + 104729 * i + 3};
		CHECK(!pthread_create(&orderers[i], NULL, give_orders, &orders[i]));
	}
	trouble(board, children);
	atomic_store(&board->no_orders, true);
	for (int i = 0; i < ORDERERS && rails_are_left(); i++)
		pthread_join(orderers[i], NULL);
	for (int i = 0; i < board->processes; i++) {
		int status = child_status(children[i]);
		CHECK_IS(status, i == board->doomed ? 128 + SIGKILL : 0);
	}
	if (network_is_bad())
		check_network(board);
	return 0;
}
