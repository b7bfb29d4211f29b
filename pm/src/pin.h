/*
 * pin.h - memory that is registered with a device, and stays so after use: PM's pin-down cache. Unpinning is put off
 * until it must happen: the room is needed, the device has none, or the memory is unmapped, moved or given away, which
 * userfaultfd(2) tells (pin_watch.c). docs/design/pm-pin.md says why it is so.
 *
 * All functions may be called by any thread. After fork(2) a child must leave the caches of its parent alone.
 */
#ifndef PM_PIN_H
#define PM_PIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

/* What registers memory with a device, and gives it back. Called by any thread that calls the functions below, also at
 * the same time, and never under a lock of theirs. Ranges are whole pages. */
struct pin_device {
	int (*pin)(struct pin_device *device, void *base, size_t length, bool writable, void **handle); /* 0 or -errno */
	void (*unpin)(struct pin_device *device, void *handle);
};

/* Memory that is registered; stays so until it is put. */
struct pin {
	void *handle;
	/* Private. */
	uintptr_t base, end;
	unsigned users;
	enum pin_state { PIN_MAKING, PIN_KEPT, PIN_DEAD } state;
	TAILQ_ENTRY(pin) entry; /* among those that are being made, unused, or dead and unused */
};

struct pin_cache;

/* Bytes to keep by default: $PM_PIN_BYTES, else an eighth of the machine's memory, but no more than half of what the
 * process may lock. -EINVAL where the variable is no number. */
int pin_default_bytes(size_t *bytes);

/* most_bytes: that are kept registered at most; 0: none, each pin_get registers and each pin_put unregisters. */
int pin_open(struct pin_device *device, size_t most_bytes, struct pin_cache **opened);

/* All have been put. */
void pin_close(struct pin_cache *cache);

/* 1: it keeps; 0: it was told not to; -errno: userfaultfd(2) is not to be had, so it keeps nothing. */
int pin_keeps(const struct pin_cache *cache);

/* Bytes that it keeps now. */
size_t pin_kept_bytes(const struct pin_cache *cache);

/*
 * Registers memory, or finds that it is. The range is the caller's until it is put: nobody unmaps, moves or gives away
 * (madvise(2)) any of it meanwhile. What is kept is writable; memory that is not is registered for each use, for
 * reading, if that is all that is wanted. -EINVAL: no range; -ENOMEM; or what the device says.
 */
int pin_get(struct pin_cache *cache, const void *base, size_t length, bool writable, struct pin **pin, bool *hit);
void pin_put(struct pin_cache *cache, struct pin *pin);

/* Nothing of it is kept from now on: what is in use goes when it is put. */
void pin_drop(struct pin_cache *cache, const void *base, size_t length);

/* pin_watch.c, for pin.c alone. What has been watched for once is told of until watch_end, or it is unmapped. */
int watch_open(void);
void watch_close(void);
/* Of all caches: there is one userfaultfd in a process, as a page can be watched by one only. Who holds it must not call
 * what may unmap memory: that would wait for an event to be read, which needs the lock. */
void watch_lock(void);
void watch_unlock(void);
/* Under the lock: whether all changes that have been made have been told to pin_changed. */
bool watch_settled(void);
/* 0, or -errno: this memory cannot be watched. */
int watch_begin(uintptr_t base, uintptr_t end);
/* Under the lock. */
void watch_end(uintptr_t base, uintptr_t end);
/* Called under the lock: what was mapped there is not any more, or will not be soon. */
void pin_changed(uintptr_t base, uintptr_t end);
/* Called in a child: the caches are its parent's. */
void pin_forked(void);

/* pin_maps.c. Whether all of a range is mapped, private, writable, and of no file. */
bool maps_anonymous(uintptr_t base, uintptr_t end);
/* The two ways to find out; -errno: this one cannot. */
int maps_query(uintptr_t base, uintptr_t end);
bool maps_read(uintptr_t base, uintptr_t end);

#endif
