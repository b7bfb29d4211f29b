/* pair.h - two processes with an endpoint each that know each other: the ground of most tests. */
#ifndef PAIR_H
#define PAIR_H

#include <dlfcn.h>
#include <pm.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "test.h"

struct side {
	int number; /* 0: the parent, 1: the child */
	int in, out; /* pipes to the other side */
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_peer *peer;
};

/* A job of its own over the loopback, to which orders can be given. */
static inline void own_job(void)
{
	setenv("PM_JOB_KEY", "00000000000000000000000000000000000000000000000000000000000000aa", 1);
	setenv("PM_ADDRESS", "127.0.0.1", 1);
}

/* A file of as many bytes stands for the memory that guests share, until the process ends. */
static inline void share_file(size_t size)
{
	char path[64];
	int fd = memfd_create("ivshmem", 0);
	CHECK(fd >= 0 && !ftruncate(fd, size));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	setenv("PM_IVSHMEM", path, 1);
}

/* Without a device the rail would be waited for in vain. */
static inline void need_verbs(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	void **(*get)(int *) = library ? (void **(*)(int *))dlsym(library, "ibv_get_device_list") : NULL;
	void (*release)(void **) = library ? (void (*)(void **))dlsym(library, "ibv_free_device_list") : NULL;
	void **list;
	int count = 0;
	if (get && release && (list = get(&count)))
		release(list);
	if (count == 0) {
		fprintf(stderr, "there is no verbs device: make gives the tests one of software, by LD_LIBRARY_PATH=build/test/stub\n");
		exit(1);
	}
}

/* Where no order is given, all goes by the rails of $PM_RAILS, and some of it by the first of them. */
static inline void check_rails(const struct pm_statistics *statistics, bool accesses, long long count, long long bytes)
{
	static const char *const names[PM_RAILS] = {"shm", "ivshmem", "verbs", "udp"};
	const char *rails = getenv("PM_RAILS") ? getenv("PM_RAILS") : "shm";
	for (int i = 0; i < PM_RAILS; i++) {
		const struct pm_rail_statistics *rail = &statistics->rails[i];
		uint64_t some = accesses ? rail->accesses : rail->messages;
		CHECK(some == 0 || strstr(rails, names[i]));
		CHECK(some > 0 || strncmp(rails, names[i], strlen(names[i])));
		count -= some;
		bytes -= accesses ? rail->access_bytes : rail->message_bytes;
	}
	CHECK_IS(count, 0);
	CHECK_IS(bytes, 0);
}

static inline struct pm_statistics statistics_of(const struct side *side)
{
	struct pm_statistics statistics;
	pm_statistics(side->endpoint, &statistics);
	return statistics;
}

static inline void tell(struct side *side, const void *data, size_t length)
{
	CHECK_IS(write(side->out, data, length), (long long)length);
}

static inline void hear(struct side *side, void *data, size_t length)
{
	for (size_t got = 0; got < length;) {
		ssize_t n = read(side->in, (char *)data + got, length - got);
		CHECK(n > 0);
		got += n;
	}
}

/* Waits until the other side comes to the same place. */
static inline void meet(struct side *side)
{
	char c = 'x';
	tell(side, &c, 1);
	hear(side, &c, 1);
}

static inline void side_open(struct side *side, const struct pm_options *options)
{
	struct pm_address own, other;
	CHECK_IS(pm_context_open(options, &side->context), 0);
	CHECK_IS(pm_endpoint_open(side->context, &side->endpoint), 0);
	CHECK_IS(pm_endpoint_address(side->endpoint, &own), 0);
	tell(side, &own, sizeof(own));
	hear(side, &other, sizeof(other));
	CHECK_IS(pm_peer_get(side->endpoint, &other, &side->peer), 0);
}

/* Runs body on both sides; the test fails if either does. */
static inline void pair_run(const struct pm_options *options, void (*body)(struct side *))
{
	int there[2], back[2];
	CHECK(!pipe(there) && !pipe(back));
	fflush(NULL);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(90);
	struct side side = {.number = !child, .in = child ? back[0] : there[0], .out = child ? there[1] : back[1]};
	close(child ? back[1] : there[1]);
	close(child ? there[0] : back[0]);
	side_open(&side, options);
	body(&side);
	if (side.context) {
		meet(&side);
		CHECK_IS(pm_context_close(side.context), 0);
	}
	if (!child)
		exit(0);
	CHECK_IS(child_status(child), 0);
	close(side.in);
	close(side.out);
}

/* Sends, however long it takes; messages that come meanwhile are an error. */
static inline void send_surely(struct side *side, uint8_t kind, const void *data, size_t length)
{
	struct iovec part = {(void *)data, length};
	struct pm_message message;
	int error;
	while ((error = pm_send(side->peer, kind, &part, 1)) == -EAGAIN)
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
	CHECK_IS(error, 0);
}

static inline void receive_surely(struct side *side, struct pm_message *message)
{
	int got;
	while (!(got = pm_receive(side->endpoint, message)))
		;
	CHECK_IS(got, 1);
}

static inline void event_surely(struct side *side, struct pm_event *event)
{
	struct pm_message message;
	while (!pm_next_event(side->endpoint, event))
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
}

#endif
