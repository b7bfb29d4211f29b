/* pin_race.c - the pin-down cache while other threads unmap, and other processes are made: a hit is always on the memory
 * that is there. Each thread writes a stamp of its own into memory that it has just been given; what the device saw there
 * when it registered it has to be that stamp. */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "pin_device.h"

#define THREADS 4
#define SECONDS 2
/* Small, so that the threads get each other's addresses. */
#define LENGTH (2 * PAGE)

static double until;
static atomic_ulong stamps = 1, hits, misses;

static void get_stamped(uint8_t *memory, uint64_t stamp)
{
	struct pin *pin;
	bool hit;
	CHECK_IS(pin_get(cache, memory, LENGTH, true, &pin, &hit), 0);
	struct registration *registration = pin->handle;
	CHECK(registration->live && registration->base <= memory && memory + LENGTH <= registration->base + registration->length);
	if (registration->base == memory)
		CHECK_IS(registration->stamp, stamp);
	atomic_fetch_add(hit ? &hits : &misses, 1);
	pin_put(cache, pin);
}

/* By what other ways the memory goes. */
static void take_away(uint8_t *memory, unsigned way)
{
	if (way == 1) {
		uint64_t stamp = stamps++;
		CHECK(madvise(memory, LENGTH, MADV_DONTNEED) == 0);
		*(uint64_t *)memory = stamp;
		get_stamped(memory, stamp);
	} else if (way == 2) {
		uint8_t *moved = mremap(memory, LENGTH, 2 * LENGTH, MREMAP_MAYMOVE);
		CHECK(moved != MAP_FAILED);
		CHECK(munmap(moved + LENGTH, LENGTH) == 0);
		memory = moved;
	}
	CHECK(munmap(memory, LENGTH) == 0);
}

static void *run(void *number)
{
	uint64_t random = (uintptr_t)number + 1;
	do {
		uint8_t *memory = map_at(NULL, LENGTH, 0);
		uint64_t stamp = stamps++;
		*(uint64_t *)memory = stamp;
		get_stamped(memory, stamp);
		get_stamped(memory, stamp);
		take_away(memory, random_next(&random) % 8);
	} while (seconds() < until);
	return NULL;
}

static void race(void)
{
	pthread_t threads[THREADS];
	begin(MOST);
	until = seconds() + SECONDS;
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(hits > 0 && misses > 0);
	end();
}

/* One thread maps and unmaps at the same address, another pins what is there as soon as it is. */
static uint8_t *shared;
static _Atomic uint64_t there, pinned; /* the stamp that is there, and the last one that was pinned */
#define LAST UINT64_MAX

static void *pin_there(void *unused)
{
	(void)unused;
	uint64_t stamp;
	while ((stamp = there) != LAST) {
		if (stamp == pinned) {
			sched_yield();
			continue;
		}
		get_stamped(shared, stamp);
		pinned = stamp;
	}
	return NULL;
}

static void same_address(void)
{
	pthread_t thread;
	begin(MOST);
	shared = map_at(NULL, LENGTH, 0);
	until = seconds() + SECONDS;
	CHECK(pthread_create(&thread, NULL, pin_there, NULL) == 0);
	for (uint64_t stamp = 1; stamp < 100 || seconds() < until; stamp++) {
		map_at(shared, LENGTH, MAP_FIXED);
		*(uint64_t *)shared = stamp;
		there = stamp;
		while (pinned != stamp)
			sched_yield();
	}
	there = LAST;
	pthread_join(thread, NULL);
	end();
}

/* The moment in which memory has been unmapped, and the cache's event is not there yet, made long: the kernel tells one
 * userfaultfd after the other, and the first one here is read late. */
static void *unmap(void *memory)
{
	CHECK(munmap(memory, 2 * PAGE) == 0);
	return NULL;
}

static int watch_too(uint8_t *memory)
{
	int fd = syscall(SYS_userfaultfd, O_NONBLOCK | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_UNMAP};
	struct uffdio_register wanted = {.range = {(uintptr_t)memory, PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
	CHECK(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &wanted) == 0);
	return fd;
}

static void before_event(void)
{
	pthread_t thread;
	struct uffd_msg message;
	begin(MOST);
	uint8_t *memory = map_at(NULL, 2 * PAGE, 0);
	use(memory + PAGE, PAGE, false);
	use(memory + PAGE, PAGE, true);
	int fd = watch_too(memory);
	struct pollfd events = {.fd = fd, .events = POLLIN};
	CHECK(pthread_create(&thread, NULL, unmap, memory) == 0);
	CHECK(poll(&events, 1, 20000) == 1 && events.revents == POLLIN);
	map_at(memory + PAGE, PAGE, MAP_FIXED_NOREPLACE);
	for (int i = 0; i < 3; i++)
		use(memory + PAGE, PAGE, false);
	CHECK(read(fd, &message, sizeof(message)) == sizeof(message));
	pthread_join(thread, NULL);
	use(memory + PAGE, PAGE, false);
	use(memory + PAGE, PAGE, true);
	close(fd);
	end();
}

/* Two caches in a process watch the same memory. */
static void two(void)
{
	begin(MOST);
	struct pin_cache *first = cache, *second;
	CHECK_IS(pin_open(&device.device, PAGE, &second), 0);
	uint8_t *memory = map_at(NULL, 8 * PAGE, 0);
	use(memory, PAGE, false);
	cache = second;
	use(memory, PAGE, false);
	use(memory + 4 * PAGE, PAGE, false); /* the second gives the other one up, the first does not */
	cache = first;
	use(memory, PAGE, true);
	CHECK(madvise(memory, 8 * PAGE, MADV_DONTNEED) == 0);
	use(memory, PAGE, false);
	cache = second;
	use(memory + 4 * PAGE, PAGE, false);
	pin_close(second);
	cache = first;
	use(memory, PAGE, true);
	CHECK(madvise(memory, PAGE, MADV_DONTNEED) == 0);
	use(memory, PAGE, false);
	end();
	munmap(memory, 8 * PAGE);
}

#ifndef __SANITIZE_THREAD__ /* which allows no threads in children of threads */
/* A child keeps nothing of its parent's cache alive, and can have its own. */
static void child(uint8_t *memory, int told, int wait)
{
	char c;
	munmap(memory, 2 * PAGE);
	memory = map_at(memory, PAGE, MAP_FIXED_NOREPLACE);
	begin(MOST);
	use(memory, PAGE, false);
	use(memory, PAGE, true);
	CHECK(madvise(memory, PAGE, MADV_DONTNEED) == 0);
	use(memory, PAGE, false);
	end();
	CHECK(write(told, "x", 1) == 1);
	CHECK(read(wait, &c, 1) == 0); /* until the parent has closed its end */
	_exit(0); /* what the parent has is no leak */
}

static void forked(void)
{
	int to_parent[2], to_child[2];
	char c;
	CHECK(pipe(to_parent) == 0 && pipe(to_child) == 0);
	begin(MOST);
	uint8_t *memory = map_at(NULL, 2 * PAGE, 0), *other = map_at(NULL, 2 * PAGE, 0);
	use(memory, PAGE, false);
	use(other, PAGE, false);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		close(to_child[1]);
		child(memory, to_parent[1], to_child[0]);
	}
	CHECK(read(to_parent[0], &c, 1) == 1);
	use(memory, PAGE, true);
	CHECK(madvise(memory, PAGE, MADV_DONTNEED) == 0);
	use(memory, PAGE, false);
	end();
	/* Nobody reads events any more: nobody waits for that, either. */
	munmap(memory, 2 * PAGE);
	munmap(other, 2 * PAGE);
	close(to_child[1]);
	CHECK_IS(child_status(pid), 0);
}
#else
static void forked(void) {}
#endif

/* A user who may not watch what the kernel does with memory may use the cache. */
static void nobody(void)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(setgid(65534) == 0 && setuid(65534) == 0);
		begin(MOST);
		CHECK_IS(pin_keeps(cache), 1);
		uint8_t *memory = map_at(NULL, PAGE, 0);
		use(memory, PAGE, false);
		use(memory, PAGE, true);
		end();
		_exit(0);
	}
	CHECK_IS(child_status(pid), 0);
}

int main(void)
{
	alarm(90);
	skip_without_watch();
	race();
	same_address();
	before_event();
	two();
	forked();
	if (getuid() == 0)
		nobody();
	printf("%lu hits, %lu misses\n", hits, misses);
	return 0;
}
