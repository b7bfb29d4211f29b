/*
 * pin.c - the pin-down cache: which memory is registered, who uses it, and what goes first. All is under the watch's
 * lock (pin_watch.c), but for what calls the device: that may free memory, so pins that are no more kept are put into a
 * list, `dead', and unpinned by the next one who has left the lock. Ranges that are kept never overlap.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "pin.h"

#define MOST_PINS 1024
/* A range that overlaps with others takes them in, if that makes it at most so many times as long. */
#define MOST_GROWTH 4
/* How often somebody else's munmap is waited for, before memory is registered for once instead. */
#define MOST_YIELDS 50
/* Of the machine's memory, by default. */
#define DEFAULT_PART 8

TAILQ_HEAD(pin_list, pin);

struct pin_cache {
	struct pin_device *device;
	size_t most_bytes;
	int keeps;
	LIST_ENTRY(pin_cache) entry;
	/* Under the lock. */
	struct pin *kept[MOST_PINS]; /* by address */
	size_t count, bytes;         /* of those */
	struct pin_list unused;      /* of those as well, the one put first before */
	struct pin_list making;
	struct pin_list dead;
};

static LIST_HEAD(, pin_cache) caches; /* that keep, under the lock */

int pin_default_bytes(size_t *bytes)
{
	const char *given = getenv("PM_PIN_BYTES");
	struct rlimit locked;
	char *end;
	if (given) {
		errno = 0;
		*bytes = strtoul(given, &end, 10);
		return *given < '0' || *given > '9' || *end || errno ? -EINVAL : 0;
	}
	*bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / DEFAULT_PART;
	if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur / 2 < *bytes)
		*bytes = locked.rlim_cur / 2;
	return 0;
}

int pin_open(struct pin_device *device, size_t most_bytes, struct pin_cache **opened)
{
	struct pin_cache *cache = calloc(1, sizeof(*cache));
	if (!cache)
		return -ENOMEM;
	cache->device = device;
	TAILQ_INIT(&cache->unused);
	TAILQ_INIT(&cache->making);
	TAILQ_INIT(&cache->dead);
	int error = most_bytes ? watch_open() : 0;
	cache->most_bytes = error ? 0 : most_bytes;
	cache->keeps = error ? error : most_bytes != 0;
	if (cache->most_bytes) {
		watch_lock();
		LIST_INSERT_HEAD(&caches, cache, entry);
		watch_unlock();
	}
	*opened = cache;
	return 0;
}

int pin_keeps(const struct pin_cache *cache)
{
	return cache->keeps;
}

size_t pin_kept_bytes(const struct pin_cache *cache)
{
	watch_lock();
	size_t bytes = cache->bytes;
	watch_unlock();
	return bytes;
}

/* Leaves the lock, and unpins what is dead. */
static void leave(struct pin_cache *cache)
{
	struct pin_list dead = TAILQ_HEAD_INITIALIZER(dead);
	TAILQ_CONCAT(&dead, &cache->dead, entry);
	watch_unlock();
	struct pin *pin;
	while ((pin = TAILQ_FIRST(&dead))) {
		TAILQ_REMOVE(&dead, pin, entry);
		cache->device->unpin(cache->device, pin->handle);
		free(pin);
	}
}

/* The number of the first one that ends behind an address. */
static size_t find(const struct pin_cache *cache, uintptr_t base)
{
	size_t low = 0, high = cache->count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (cache->kept[middle]->end <= base)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Keeps nothing of a range any more. */
static void forget(struct pin_cache *cache, uintptr_t base, uintptr_t end)
{
	size_t first = find(cache, base), next = first;
	for (; next < cache->count && cache->kept[next]->base < end; next++) {
		struct pin *pin = cache->kept[next];
		pin->state = PIN_DEAD;
		cache->bytes -= pin->end - pin->base;
		if (pin->users)
			continue;
		TAILQ_REMOVE(&cache->unused, pin, entry);
		TAILQ_INSERT_TAIL(&cache->dead, pin, entry);
	}
	memmove(&cache->kept[first], &cache->kept[next], (cache->count - next) * sizeof(*cache->kept));
	cache->count -= next - first;
}

static void change(struct pin_cache *cache, uintptr_t base, uintptr_t end)
{
	struct pin *pin;
	forget(cache, base, end);
	TAILQ_FOREACH(pin, &cache->making, entry)
		if (pin->base < end && base < pin->end)
			pin->state = PIN_DEAD;
}

void pin_changed(uintptr_t base, uintptr_t end)
{
	struct pin_cache *cache;
	LIST_FOREACH(cache, &caches, entry)
		change(cache, base, end);
}

void pin_forked(void)
{
	LIST_INIT(&caches);
}

/* Whether any cache keeps something of a range, or will. */
static bool wanted(uintptr_t base, uintptr_t end)
{
	struct pin_cache *cache;
	struct pin *pin;
	LIST_FOREACH(cache, &caches, entry) {
		size_t number = find(cache, base);
		if (number < cache->count && cache->kept[number]->base < end)
			return true;
		TAILQ_FOREACH(pin, &cache->making, entry)
			if (pin->base < end && base < pin->end)
				return true;
	}
	return false;
}

/* Gives up the one that has not been used for longest, if there is one. Then it need not be watched, either, and lies
 * in one mapping with what is around it again: a process may have some 65000. */
static bool give_up_one(struct pin_cache *cache)
{
	struct pin *pin = TAILQ_FIRST(&cache->unused);
	if (!pin)
		return false;
	forget(cache, pin->base, pin->end);
	if (!wanted(pin->base, pin->end))
		watch_end(pin->base, pin->end);
	return true;
}

static void give_up_all(struct pin_cache *cache)
{
	watch_lock();
	while (give_up_one(cache))
		;
	leave(cache);
}

/* Keeps a pin, in place of those that overlap with it, if there is room. */
static void keep(struct pin_cache *cache, struct pin *pin)
{
	size_t length = pin->end - pin->base;
	forget(cache, pin->base, pin->end);
	while (cache->count == MOST_PINS || cache->bytes + length > cache->most_bytes)
		if (!give_up_one(cache)) {
			pin->state = PIN_DEAD;
			return;
		}
	size_t number = find(cache, pin->base);
	memmove(&cache->kept[number + 1], &cache->kept[number], (cache->count - number) * sizeof(*cache->kept));
	cache->kept[number] = pin;
	cache->count++;
	cache->bytes += length;
	pin->state = PIN_KEPT;
}

/* Whether the table is as the memory is; else another thread is about to change some. */
static bool settled(struct pin_cache *cache)
{
	if (!cache->most_bytes)
		return false;
	for (int yields = 0; !watch_settled(); yields++) {
		if (yields == MOST_YIELDS)
			return false;
		watch_unlock();
		sched_yield();
		watch_lock();
	}
	return true;
}

/* The one that covers a range, for one more user. */
static struct pin *hit_on(struct pin_cache *cache, uintptr_t base, uintptr_t end)
{
	struct pin *pin = NULL;
	watch_lock();
	size_t number = settled(cache) ? find(cache, base) : cache->count;
	if (number < cache->count && cache->kept[number]->base <= base && end <= cache->kept[number]->end) {
		pin = cache->kept[number];
		if (!pin->users++)
			TAILQ_REMOVE(&cache->unused, pin, entry);
	}
	leave(cache);
	return pin;
}

/* Takes in what overlaps, if that is not too much. */
static void widen(struct pin_cache *cache, struct pin *pin)
{
	uintptr_t base = pin->base, end = pin->end;
	size_t length = end - base;
	for (size_t i = find(cache, base); i < cache->count && cache->kept[i]->base < pin->end; i++) {
		if (cache->kept[i]->base < base)
			base = cache->kept[i]->base;
		if (cache->kept[i]->end > end)
			end = cache->kept[i]->end;
	}
	if (end - base <= cache->most_bytes / 2 && (end - base) / MOST_GROWTH <= length) {
		pin->base = base;
		pin->end = end;
	}
}

static int pin_memory(struct pin_cache *cache, struct pin *pin, bool writable)
{
	struct pin_device *device = cache->device;
	void *base = (void *)pin->base;
	int error = device->pin(device, base, pin->end - pin->base, writable, &pin->handle);
	if (error == -ENOMEM || error == -EAGAIN) {
		give_up_all(cache);
		error = device->pin(device, base, pin->end - pin->base, writable, &pin->handle);
	}
	return error;
}

/* Announces a pin that is to be kept, if it may be: from now on it is told when memory in its range changes. */
static bool announce(struct pin_cache *cache, struct pin *pin)
{
	watch_lock();
	bool may = pin->end - pin->base <= cache->most_bytes && settled(cache);
	if (may) {
		widen(cache, pin);
		pin->state = PIN_MAKING;
		TAILQ_INSERT_TAIL(&cache->making, pin, entry);
	}
	leave(cache);
	return may;
}

/* Pins what has been announced, and keeps it unless it has changed meanwhile: what was taken in is not the caller's. */
static int pin_to_keep(struct pin_cache *cache, struct pin *pin)
{
	int error = watch_begin(pin->base, pin->end);
	if (!error)
		error = pin_memory(cache, pin, true);
	watch_lock();
	TAILQ_REMOVE(&cache->making, pin, entry);
	if (!error && pin->state == PIN_MAKING)
		keep(cache, pin);
	else
		pin->state = PIN_DEAD;
	leave(cache);
	return error;
}

static int pin_new(struct pin_cache *cache, uintptr_t base, uintptr_t end, bool writable, struct pin **made)
{
	struct pin *pin = malloc(sizeof(*pin));
	if (!pin)
		return -ENOMEM;
	*pin = (struct pin){.base = base, .end = end, .users = 1, .state = PIN_DEAD};
	*made = pin;
	if (announce(cache, pin) && pin_to_keep(cache, pin) == 0)
		return 0;
	/* For this use alone, and no more than was asked for. */
	pin->base = base;
	pin->end = end;
	int error = pin_memory(cache, pin, writable);
	if (error)
		free(pin);
	return error;
}

int pin_get(struct pin_cache *cache, const void *base, size_t length, bool writable, struct pin **pin, bool *hit)
{
	uintptr_t page = getpagesize(), from = (uintptr_t)base & -page, to = ((uintptr_t)base + length + page - 1) & -page;
	if (!length || to <= from || to - from < length)
		return -EINVAL;
	struct pin *found = hit_on(cache, from, to);
	*hit = found;
	if (!found)
		return pin_new(cache, from, to, writable, pin);
	*pin = found;
	return 0;
}

void pin_put(struct pin_cache *cache, struct pin *pin)
{
	watch_lock();
	if (!--pin->users)
		TAILQ_INSERT_TAIL(pin->state == PIN_KEPT ? &cache->unused : &cache->dead, pin, entry);
	leave(cache);
}

void pin_drop(struct pin_cache *cache, const void *base, size_t length)
{
	watch_lock();
	change(cache, (uintptr_t)base, (uintptr_t)base + length);
	leave(cache);
}

void pin_close(struct pin_cache *cache)
{
	bool watches = cache->most_bytes;
	watch_lock();
	forget(cache, 0, UINTPTR_MAX);
	if (watches)
		LIST_REMOVE(cache, entry);
	leave(cache);
	if (watches)
		watch_close();
	free(cache);
}
