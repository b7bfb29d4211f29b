/* verbs_pair.h - runs checks of verbs with a side in each of two processes, and with both in one. */
#ifndef VERBS_PAIR_H
#define VERBS_PAIR_H

#include "verbs_side.h"

#include <pthread.h>

struct check {
	const char *name;
	void (*run)(struct side *side);
	const char *variable, *value; /* of the stub's environment */
};

static const struct check *current;

static void *run_side(void *argument)
{
	struct side *side = argument;
	side->rnr_retry = 7;
	open_side(side);
	current->run(side);
	meet(side);
	close_side(side);
	return NULL;
}

static inline void begin(void)
{
	alarm(60);
	if (current->variable)
		setenv(current->variable, current->value, 1);
}

static inline int in_two_processes(void)
{
	int sockets[2];
	pid_t children[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	for (int i = 0; i < 2; i++) {
		if ((children[i] = fork()) == 0) {
			struct side side = {.number = i, .socket = sockets[i]};
			close(sockets[!i]);
			begin();
			run_side(&side);
			exit(0);
		}
	}
	close(sockets[0]);
	close(sockets[1]);
	int first = child_status(children[0]);
	return child_status(children[1]) | first;
}

static inline int in_one_process(void)
{
	int sockets[2];
	pid_t child = fork();
	if (child == 0) {
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
		struct side sides[2] = {
			{.number = 0, .socket = sockets[0], .in_one = true},
			{.number = 1, .socket = sockets[1], .in_one = true}};
		pthread_t thread;
		begin();
		CHECK_IS(pthread_create(&thread, NULL, run_side, &sides[1]), 0);
		run_side(&sides[0]);
		pthread_join(thread, NULL);
		exit(0);
	}
	return child_status(child);
}

/* Runs all of them, or those of a name. */
static inline void run_checks(const struct check *checks, size_t count, const char *only)
{
	for (current = checks; current < checks + count; current++) {
		if ((current->variable && !with_stub()) || (only && strcmp(only, current->name)))
			continue;
		int in_two = in_two_processes(), in_one = in_one_process();
		if (in_two || in_one)
			fprintf(stderr, "%s: %d in two processes, %d in one\n", current->name, in_two, in_one);
		CHECK(!in_two && !in_one);
	}
}

/* 0, or the exit status of a test that can't be. */
static inline int find_device(void)
{
	alarm(with_stub() ? 90 : 600);
	if (!load_verbs()) {
		fprintf(stderr, "no libibverbs.so.1: %s\n", dlerror());
		return SKIPPED;
	}
	struct ibv_context *context = open_device();
	if (!context) {
		fprintf(stderr, "no device %s: is its library's folder in LD_LIBRARY_PATH?\n", device_name());
		return SKIPPED;
	}
	CHECK_IS(verbs.ibv_close_device(context), 0);
	return 0;
}

#endif
