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
 * torture [SECONDS [SEED [PROCESSES]]]; default 3 s, a seed of the clock, 4 processes of 2 threads.
 */
#include <pm.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "network.h"

#define THREADS 2
#define ORDERERS 2
#define ORDER_MS 20000
#define MOST_PROCESSES 16
#define MOST (MOST_PROCESSES * THREADS)
#define LEAST_MESSAGES 100
#define MORE_SECONDS 30 /* for those, on a busy machine */
#define SLOT 100000 /* bytes that one other may write */
#define READABLE (1u << 20) /* bytes that all others may read */

enum { PLAIN, WRITTEN, CHECKED, FINISHED };

/* What all processes see. */
struct board {
	_Atomic int present, flying, finished;
	_Atomic bool no_orders; /* any more */
	_Atomic bool killed[MOST], served[MOST];
	struct pm_address address[MOST];
	uint64_t memory[MOST], key[MOST];
	int processes, doomed;
	uint64_t seed;
	double seconds;
	_Atomic unsigned harmed[NETWORK_HARMS];
	_Atomic uint64_t dropped;
};

struct header {
	uint64_t sequence, seed;
	uint32_t length, where;
};

struct other {
	struct pm_peer *peer;
	uint64_t sent, received;
	bool finished, told, gone;
	bool written, asked; /* the write has ended; the other has been asked to look */
	bool checked;        /* what the other wrote, and not yet said so */
	uint8_t copy[SLOT];
	struct header write; /* of which the check is awaited, unless its length is 0 */
};

struct bird {
	struct board *board;
	int number, count;
	uint64_t random;
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	uint8_t *memory; /* a slot for each other, and one that all may read */
	struct other *others;
	int reading;
	uint64_t operations, messages;
};

static void fill(uint8_t *data, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++)
		data[i] = (seed >> (i & 31)) + i * 3;
}

static bool filled(const uint8_t *data, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++)
		if (data[i] != (uint8_t)((seed >> (i & 31)) + i * 3))
			return false;
	return true;
}

static int random_below(struct bird *bird, int limit)
{
	return random_next(&bird->random) % limit;
}

static bool all_finished(const struct bird *bird)
{
	return atomic_load(&bird->board->finished) >= bird->count - (bird->board->doomed >= 0 ? THREADS : 0);
}

static void gone(struct bird *bird, struct other *other)
{
	CHECK(atomic_load(&bird->board->killed[other - bird->others]) || all_finished(bird));
	other->gone = true;
}

static bool say(struct bird *bird, struct other *other, uint8_t kind, struct header header)
{
	static const int limits[] = {20, 60, 300, PM_MAX_MESSAGE - sizeof(header)};
	uint8_t *buffer;
	header.sequence = other->sent;
	if (kind == PLAIN)
		header.length = random_below(bird, limits[random_below(bird, 4)]);
	size_t body = kind == PLAIN ? header.length : 0;
	int error = pm_reserve(other->peer, sizeof(header) + body, (void **)&buffer);
	if (error == -EHOSTDOWN || error == -EHOSTUNREACH)
		gone(bird, other);
	else
		CHECK(!error || error == -EAGAIN);
	if (error)
		return false;
	memcpy(buffer, &header, sizeof(header));
	fill(buffer + sizeof(header), body, header.seed);
	pm_commit(other->peer, kind);
	other->sent++;
	return true;
}

static void take(struct bird *bird, const struct pm_message *message)
{
	struct other *other = pm_peer_data(message->peer);
	struct header header;
	if (!other) {
		struct pm_address from;
		pm_peer_address(message->peer, &from);
		for (int i = 0; i < bird->count; i++)
			if (!memcmp(&from, &bird->board->address[i], sizeof(from)))
				other = &bird->others[i];
		CHECK(other && other->peer == message->peer);
	}
	CHECK(message->length >= sizeof(header));
	memcpy(&header, message->data, sizeof(header));
	CHECK_IS(header.sequence, other->received++);
	bird->messages++;
	if (message->kind == PLAIN) {
		CHECK_IS(message->length, sizeof(header) + header.length);
		CHECK(filled((const uint8_t *)message->data + sizeof(header), header.length, header.seed));
	} else if (message->kind == WRITTEN) {
		CHECK(filled(bird->memory + (other - bird->others) * SLOT + header.where, header.length, header.seed));
		other->checked = true;
	} else if (message->kind == CHECKED) {
		CHECK(other->asked);
		other->written = other->asked = false;
		other->write.length = 0;
	} else {
		other->finished = true;
	}
}

/* Writes into the own slot of the other's memory; when that has ended, the other is told to look. */
static void write_there(struct bird *bird, struct other *other)
{
	struct board *board = bird->board;
	int number = other - bird->others;
	if (other->write.length)
		return;
	struct header header = {.length = 1 + random_below(bird, SLOT), .seed = random_next(&bird->random)};
	header.where = random_below(bird, SLOT - header.length + 1);
	fill(other->copy, header.length, header.seed);
	other->write = header;
	int error = pm_write(other->peer, other->copy, header.length, board->memory[number] + bird->number * SLOT + header.where,
			     board->key[number], other);
	if (error)
		other->write.length = 0;
	if (error && error != -EAGAIN) { /* put aside */
		CHECK(error == -EHOSTDOWN || error == -EHOSTUNREACH);
		gone(bird, other);
	}
}

struct reading {
	uint32_t length;
	uint8_t data[];
};

static void read_there(struct bird *bird, struct other *other)
{
	struct board *board = bird->board;
	int number = other - bird->others;
	uint32_t length = 1 + random_below(bird, random_below(bird, 4) ? 20000 : READABLE);
	struct reading *reading = calloc(1, sizeof(*reading) + length);
	reading->length = length;
	if (!pm_read(other->peer, reading->data, length, board->memory[number] + MOST * SLOT, board->key[number], reading))
		bird->reading++;
	else
		free(reading);
}

static void handle(struct bird *bird, const struct pm_event *event)
{
	struct other *other = NULL;
	for (int i = 0; i < bird->count; i++)
		if (bird->others[i].peer == event->peer)
			other = &bird->others[i];
	CHECK(other);
	bird->operations++;
	if (event->type == PM_PEER_GONE) {
		gone(bird, other);
	} else if (event->type == PM_WRITE_DONE) {
		if (event->status)
			CHECK(atomic_load(&bird->board->killed[other - bird->others]));
		else
			other->written = true;
	} else {
		struct reading *reading = event->cookie;
		bird->reading--;
		if (event->status)
			CHECK(atomic_load(&bird->board->killed[other - bird->others]));
		else
			CHECK(filled(reading->data, reading->length, bird->board->seed + (other - bird->others)));
		free(reading);
	}
}

/* Receives and handles all there is. */
static void look(struct bird *bird)
{
	struct pm_message message;
	struct pm_event event;
	while (pm_receive(bird->endpoint, &message)) {
		take(bird, &message);
		pm_release(bird->endpoint, &message);
	}
	while (pm_next_event(bird->endpoint, &event))
		handle(bird, &event);
	for (int i = 0; i < bird->count; i++) {
		struct other *other = &bird->others[i];
		if (other->written && !other->asked && !other->gone)
			other->asked = say(bird, other, WRITTEN, other->write);
		if (other->checked && !other->gone)
			other->checked = !say(bird, other, CHECKED, (struct header){0});
	}
}

static bool all_done(struct bird *bird)
{
	bool done = !bird->reading;
	for (int i = 0; i < bird->count; i++) {
		struct other *other = &bird->others[i];
		if (i == bird->number || other->gone)
			continue;
		/* Of a peer that was killed before it could answer, PM knows only if something is said to it. */
		if (other->asked && random_below(bird, 100) == 0)
			say(bird, other, PLAIN, (struct header){.seed = random_next(&bird->random)});
		if (!other->told && !other->write.length && !other->checked && !bird->reading)
			other->told = say(bird, other, FINISHED, (struct header){0});
		done = done && other->told && other->finished;
	}
	return done;
}

static void act(struct bird *bird)
{
	struct other *other = &bird->others[random_below(bird, bird->count)];
	if (other->gone || other - bird->others == bird->number)
		return;
	switch (random_below(bird, 16)) {
	case 0:
		write_there(bird, other);
		break;
	case 1:
		if (bird->reading < 32)
			read_there(bird, other);
		break;
	case 2:
		if (random_below(bird, 50) == 0)
			pm_wait(bird->endpoint, 1);
		break;
	default:
		say(bird, other, PLAIN, (struct header){.seed = random_next(&bird->random)});
	}
}

/* Whether so many messages as there have to be have come to each that lives. */
static bool all_served(const struct board *board)
{
	for (int i = 0; i < board->processes * THREADS; i++)
		if (!atomic_load(&board->killed[i]) && !atomic_load(&board->served[i]))
			return false;
	return true;
}

static void *fly(void *argument)
{
	struct bird *bird = argument;
	struct board *board = bird->board;
	double until = seconds() + board->seconds, longest = until + (network_is_bad() ? 0 : MORE_SECONDS);
	while (seconds() < until || (seconds() < longest && !all_served(board))) {
		if (bird->messages > LEAST_MESSAGES)
			atomic_store(&board->served[bird->number], true);
		for (int i = 0; i < 20; i++)
			act(bird);
		look(bird);
	}
	while (!all_done(bird)) {
		look(bird);
		pm_wait(bird->endpoint, 1);
	}
	/* The others may still read from here. */
	atomic_fetch_add(&board->finished, 1);
	while (!all_finished(bird)) {
		look(bird);
		pm_wait(bird->endpoint, 1);
	}
	return NULL;
}

static void open_bird(struct bird *bird, struct board *board, int number, struct pm_context *context)
{
	struct pm_region *region;
	size_t size = MOST * SLOT + READABLE;
	/* Zeroed, as valgrind does not see what others write. */
	*bird = (struct bird){
		.board = board, .number = number, .count = board->processes * THREADS, .random = board->seed + 7919 * number + 1,
		.context = context, .memory = calloc(1, size), .others = calloc(MOST, sizeof(struct other)),
	};
	fill(bird->memory + MOST * SLOT, READABLE, board->seed + number);
	CHECK_IS(pm_endpoint_open(context, &bird->endpoint), 0);
	pm_endpoint_address(bird->endpoint, &board->address[number]);
	CHECK_IS(pm_register(context, bird->memory, size, PM_REMOTE_READ | PM_REMOTE_WRITE, &region), 0);
	board->memory[number] = (uintptr_t)bird->memory;
	board->key[number] = pm_region_key(region);
}

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
	board->seconds = argc > 1 ? atof(argv[1]) : 3;
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
