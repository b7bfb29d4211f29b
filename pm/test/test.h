/* test.h - the little that the tests share. A test exits with 0 when all is well and with 77 when it lacks something,
 * which it names. */
#ifndef TEST_H
#define TEST_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SKIPPED 77

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

#define CHECK_IS(value, wanted) \
	do { \
		long long is_ = (value), wanted_ = (wanted); \
		if (is_ != wanted_) { \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #value, is_, wanted_); \
			exit(1); \
		} \
	} while (0)

static inline double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* A small generator of pseudo-random numbers (xorshift*), the same everywhere. */
static inline uint64_t random_next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 2685821657736338717ull;
}

/* Waits for a child; its exit status. */
static inline int child_status(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
