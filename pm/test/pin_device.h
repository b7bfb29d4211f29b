/* pin_device.h - a device that only writes down what it is told to register, and checks that it makes sense; for the tests
 * of the pin-down cache. */
#ifndef PIN_DEVICE_H
#define PIN_DEVICE_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "pin.h"
#include "test.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE 4096ul
#define MOST (64 * PAGE)

/* One registration. Its handle says what the memory held then. */
struct registration {
	uint8_t *base;
	size_t length;
	bool writable, live;
	uint64_t stamp;
};

struct device {
	struct pin_device device;
	atomic_int pins, unpins;
	int error, errors; /* what so many calls of pin fail with */
	size_t room;       /* pages, 0: any number */
	atomic_size_t used;
	size_t extra;      /* bytes that it needs for each */
};

/* A page holds more than what is the caller's. */
__attribute__((noinline, no_sanitize("address", "thread"))) static uint64_t stamp_of(const void *page)
{
	return *(const volatile uint64_t *)page;
}

static int device_pin(struct pin_device *base, void *memory, size_t length, bool writable, void **handle)
{
	struct device *device = (struct device *)base;
	CHECK((uintptr_t)memory % PAGE == 0 && length % PAGE == 0);
	if (device->errors && device->errors--)
		return -device->error;
	if (device->room && device->used + length / PAGE > device->room)
		return -ENOMEM;
	if (madvise(memory, length, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
		return -EFAULT;
	struct registration *made = malloc(sizeof(*made) + device->extra);
	*made = (struct registration){memory, length, writable, true, stamp_of(memory)};
	device->used += length / PAGE;
	device->pins++;
	*handle = made;
	return 0;
}

static void device_unpin(struct pin_device *base, void *handle)
{
	struct device *device = (struct device *)base;
	struct registration *given = handle;
	CHECK(given->live);
	given->live = false;
	device->used -= given->length / PAGE;
	device->unpins++;
	free(given);
}

static struct device device;
static struct pin_cache *cache;

static inline void begin(size_t most)
{
	device = (struct device){.device = {device_pin, device_unpin}};
	CHECK_IS(pin_open(&device.device, most, &cache), 0);
}

static inline void end(void)
{
	pin_close(cache);
	CHECK_IS(device.pins, device.unpins);
	CHECK_IS(device.used, 0);
}

static inline uint8_t *map_at(void *where, size_t length, int flags)
{
	void *memory = mmap(where, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	CHECK(memory != MAP_FAILED);
	return memory;
}

static inline struct pin *get(const void *base, size_t length, bool hit)
{
	struct pin *pin;
	bool was_hit;
	CHECK_IS(pin_get(cache, base, length, true, &pin, &was_hit), 0);
	CHECK_IS(was_hit, hit);
	struct registration *registration = pin->handle;
	CHECK(registration->live && registration->writable);
	CHECK(registration->base <= (uint8_t *)base && (uint8_t *)base + length <= registration->base + registration->length);
	return pin;
}

static inline void use(const void *base, size_t length, bool hit)
{
	pin_put(cache, get(base, length, hit));
}

/* For a test that cannot do without. */
static inline void skip_without_watch(void)
{
	begin(MOST);
	int keeps = pin_keeps(cache);
	end();
	if (keeps < 0) {
		printf("userfaultfd(2) is not to be had: %s\n", strerror(-keeps));
		exit(SKIPPED);
	}
}

#endif
