/*
 * pin_watch.c - tells the pin-down cache what becomes of memory: userfaultfd(2), of which only the events are used, not
 * the faults. Ranges are registered for write protection, and never protected.
 *
 * Why there is no stale hit. The kernel counts changes that are under way (unmap, move, give away): it counts one up
 * before the change can be seen by anybody, and down again when the event has been read, before the call returns. An
 * ioctl that would change protections fails with EAGAIN while the count is not 0. Events are read, and told to the
 * caches, under one lock, and a hit is looked for under the same lock when the count has been seen as 0. So any change
 * made before was counted down before, its event had been read, and told, as whoever read it has left the lock since.
 * A change that begins afterwards is not one of the memory that is asked for: that is the caller's until it is put.
 *
 * To look for events alone would not do: when memory has been unmapped another thread can get its addresses before the
 * event is there to be read (model/pin.pml has both, and finds the error).
 *
 * Only private anonymous memory is watched: a file's pages, and those of shared memory, can be taken away by somebody
 * else (ftruncate(2), fallocate(2)), of which no event tells.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pin.h"

/* EXACT_ADDRESS is wanted as a sign of a kernel (5.18) that counts changes; those before 5.15 have only a flag, which
 * the first of two to end takes away. */
#define FEATURES (UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EXACT_ADDRESS)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* of those below */
static unsigned users;
static int bell = -1; /* tells the watcher to end */
static pthread_t watcher;
static _Atomic int memory = -1; /* the userfaultfd; changed only while there are no users */

void watch_lock(void)
{
	pthread_mutex_lock(&lock);
}

void watch_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static void tell(const struct uffd_msg *message)
{
	switch (message->event) {
	case UFFD_EVENT_UNMAP:
	case UFFD_EVENT_REMOVE:
		pin_changed(message->arg.remove.start, message->arg.remove.end);
		break;
	case UFFD_EVENT_REMAP:
		pin_changed(message->arg.remap.from, message->arg.remap.from + message->arg.remap.len);
		break;
	}
}

/* Under the lock, which is held from the reading to the telling. */
static void read_events(void)
{
	struct uffd_msg messages[8];
	ssize_t size;
	while ((size = read(memory, messages, sizeof(messages))) > 0)
		for (size_t i = 0; i < size / sizeof(*messages); i++)
			tell(&messages[i]);
}

bool watch_settled(void)
{
	/* An empty range: not valid, if it comes to that. */
	struct uffdio_writeprotect nothing = {0};
	for (int tries = 0; tries < 2; tries++) {
		if (ioctl(memory, UFFDIO_WRITEPROTECT, &nothing) < 0 && errno == EINVAL)
			return true;
		read_events();
	}
	return false;
}

/* Reads events when nobody else does: who unmaps waits for that. */
static void *watch(void *unused)
{
	(void)unused;
	struct pollfd fds[2] = {{.fd = memory, .events = POLLIN}, {.fd = bell, .events = POLLIN}};
	while (poll(fds, 2, -1) < 0 || !fds[1].revents) {
		watch_lock();
		read_events();
		watch_unlock();
	}
	return NULL;
}

static void close_memory(void)
{
	if (memory >= 0)
		close(memory);
	if (bell >= 0)
		close(bell);
	memory = bell = -1;
}

/* A child's copy would keep the watch alive when this process gives it up, and nobody would read the events. The child
 * may open caches of its own. */
static void forked(void)
{
	close_memory();
	users = 0;
	pthread_mutex_init(&lock, NULL);
	pthread_mutex_init(&opening, NULL);
	pin_forked();
}

static int open_memory(void)
{
	static bool told;
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	memory = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (memory < 0)
		return -errno;
	if (ioctl(memory, UFFDIO_API, &api) < 0)
		return -errno;
	if (!told && pthread_atfork(NULL, NULL, forked))
		return -ENOMEM;
	told = true;
	bell = eventfd(0, EFD_CLOEXEC);
	return bell < 0 ? -errno : 0;
}

static int start(void)
{
	sigset_t all, before;
	int error = open_memory();
	if (!error) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		error = -pthread_create(&watcher, NULL, watch, NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (error)
		close_memory();
	else
		pthread_setname_np(watcher, "pm-pin");
	return error;
}

int watch_open(void)
{
	pthread_mutex_lock(&opening);
	int error = users ? 0 : start();
	users += !error;
	pthread_mutex_unlock(&opening);
	return error;
}

void watch_close(void)
{
	uint64_t one = 1;
	pthread_mutex_lock(&opening);
	if (!--users) {
		(void)!write(bell, &one, sizeof(one));
		pthread_join(watcher, NULL);
		close_memory();
	}
	pthread_mutex_unlock(&opening);
}

int watch_begin(uintptr_t base, uintptr_t end)
{
	struct uffdio_register wanted = {.range = {base, end - base}, .mode = UFFDIO_REGISTER_MODE_WP};
	if (!maps_anonymous(base, end))
		return -EOPNOTSUPP;
	return ioctl(memory, UFFDIO_REGISTER, &wanted) < 0 ? -errno : 0;
}

void watch_end(uintptr_t base, uintptr_t end)
{
	struct uffdio_range range = {base, end - base};
	ioctl(memory, UFFDIO_UNREGISTER, &range);
}
