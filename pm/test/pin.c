/* pin.c - the pin-down cache: what is kept registered, for how long, and that it is never taken for memory that has been
 * unmapped, moved or given away since. The device only writes down what it is told. */
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "pin_device.h"

/* Some pages with others around them that cannot be touched. */
static uint8_t *map(size_t length)
{
	uint8_t *memory = mmap(NULL, length + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	CHECK(mprotect(memory + PAGE, length, PROT_READ | PROT_WRITE) == 0);
	return memory + PAGE;
}

static void hits(void)
{
	begin(MOST);
	uint8_t *memory = map(16 * PAGE);
	use(memory + 100, 1, false);
	use(memory, PAGE, true);
	use(memory + PAGE - 1, 1, true);
	use(memory + PAGE - 1, 2, false); /* takes the first page in */
	use(memory, 2 * PAGE, true);
	CHECK_IS(device.pins, 2);
	CHECK_IS(device.unpins, 1);
	struct pin *one = get(memory + PAGE, 10, true), *two = get(memory, 10, true), *bad;
	bool hit;
	CHECK(one == two);
	pin_put(cache, one);
	pin_put(cache, two);
	CHECK_IS(pin_get(cache, memory, 0, true, &bad, &hit), -EINVAL);
	CHECK_IS(pin_get(cache, memory, SIZE_MAX, true, &bad, &hit), -EINVAL);
	CHECK_IS(pin_get(cache, memory + 15 * PAGE, 2 * PAGE, true, &bad, &hit), -EFAULT);
	CHECK_IS(device.pins, 2);
	end();
}

/* Those that are taken in go when nobody uses them, and a pin is not made much longer than it was asked for. */
static void overlaps(void)
{
	begin(MOST);
	uint8_t *memory = map(40 * PAGE);
	struct pin *old = get(memory, 2 * PAGE, false);
	use(memory + 4 * PAGE, 2 * PAGE, false);
	use(memory + PAGE, 4 * PAGE, false);
	CHECK_IS(device.unpins, 1);
	use(memory, 6 * PAGE, true);
	CHECK(((struct registration *)old->handle)->live);
	pin_put(cache, old);
	CHECK_IS(device.unpins, 2);
	use(memory + 5 * PAGE, 2 * PAGE, false);
	use(memory, 7 * PAGE, true);
	use(memory + 6 * PAGE, 2 * PAGE, false);
	use(memory, 8 * PAGE, true);
	use(memory + 7 * PAGE, 2 * PAGE, false); /* 9 pages for 2 */
	use(memory + 7 * PAGE, 2 * PAGE, true);
	CHECK_IS(device.used, 2);
	use(memory, PAGE, false);
	end();
}

static void bounds(void)
{
	begin(4 * PAGE);
	uint8_t *memory = map(20 * PAGE);
	use(memory, PAGE, false);
	use(memory + 2 * PAGE, PAGE, false);
	use(memory + 4 * PAGE, 2 * PAGE, false);
	use(memory, PAGE, true);
	use(memory + 8 * PAGE, PAGE, false); /* the one at 2 goes */
	use(memory, PAGE, true);
	use(memory + 4 * PAGE, PAGE, true);
	CHECK_IS(device.used, 4);
	use(memory + 2 * PAGE, PAGE, false);
	CHECK_IS(device.used, 4);
	use(memory + 10 * PAGE, 5 * PAGE, false); /* more than all */
	use(memory + 4 * PAGE, PAGE, true);
	/* What is in use stays, and what comes on top of it is for once. */
	struct pin *pins[] = {get(memory + 4 * PAGE, PAGE, true), get(memory + 8 * PAGE, 2 * PAGE, false), get(memory, PAGE, false)};
	use(memory, PAGE, false);
	for (int i = 0; i < 3; i++)
		CHECK(((struct registration *)pins[i]->handle)->live);
	for (int i = 0; i < 3; i++)
		pin_put(cache, pins[i]);
	end();
	begin(1 << 30);
	memory = map(4096 * PAGE);
	for (int i = 0; i < 2000; i++)
		use(memory + 2 * i * PAGE, PAGE, false);
	CHECK_IS(device.used, 1024);
	use(memory + 2 * (2000 - 1024) * PAGE, PAGE, true);
	use(memory + 2 * (2000 - 1025) * PAGE, PAGE, false);
	end();
	munmap(memory - PAGE, 4098 * PAGE);
}

/* After something has happened to memory, that it is pinned anew, and what was pinned before is not for long. */
static void gone(uint8_t *memory, size_t length)
{
	int unpins = device.unpins;
	use(memory, length, false);
	CHECK_IS(device.unpins, unpins + 1);
	use(memory, length, true);
}

static void changes(void)
{
	begin(MOST);
	uint8_t *memory = map(8 * PAGE), *other = map(8 * PAGE);
	use(memory, 4 * PAGE, false);
	munmap(memory + 3 * PAGE, PAGE);
	map_at(memory + 3 * PAGE, PAGE, MAP_FIXED_NOREPLACE);
	gone(memory, 4 * PAGE);
	map_at(memory, PAGE, MAP_FIXED);
	gone(memory, 4 * PAGE);
	CHECK(madvise(memory + PAGE, PAGE, MADV_DONTNEED) == 0);
	gone(memory, 4 * PAGE);
	CHECK(madvise(memory + PAGE, PAGE, MADV_FREE) == 0);
	gone(memory, 4 * PAGE);
	CHECK(mremap(memory, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
	map_at(memory, 4 * PAGE, MAP_FIXED_NOREPLACE);
	gone(memory, 4 * PAGE);
	use(other, 4 * PAGE, false);
	pin_drop(cache, memory, 4 * PAGE);
	CHECK(mremap(memory, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
	gone(other, 4 * PAGE);
	CHECK(mremap(other, 4 * PAGE, 3 * PAGE, 0) == other);
	CHECK(mremap(other, 3 * PAGE, 4 * PAGE, 0) == other);
	gone(other, 4 * PAGE);
	use(other + 4 * PAGE, PAGE, false);
	munmap(other, 4 * PAGE);
	use(other + 4 * PAGE, PAGE, true); /* it was beside */
	pin_drop(cache, other + 4 * PAGE + 10, 1);
	CHECK_IS(device.used, 0);
	use(other + 4 * PAGE, PAGE, false);
	end();
}

/* What was in use while it was unmapped is unpinned by who used it, and not before. */
static void in_use(void)
{
	begin(MOST);
	uint8_t *memory = map(4 * PAGE);
	struct pin *pin = get(memory, 4 * PAGE, false), *dropped;
	munmap(memory, 4 * PAGE);
	map_at(memory, 4 * PAGE, MAP_FIXED_NOREPLACE);
	dropped = get(memory, 4 * PAGE, false);
	CHECK_IS(device.unpins, 0);
	pin_drop(cache, memory, 4 * PAGE);
	use(memory, 4 * PAGE, false);
	CHECK_IS(device.unpins, 0);
	pin_put(cache, pin);
	pin_put(cache, dropped);
	CHECK_IS(device.unpins, 2);
	end();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which have a heap of their own */
/* The heap is made smaller inside free. */
static void heap(void)
{
	begin(256 << 20);
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TRIM_THRESHOLD, 65536);
	for (int i = 0; i < 20; i++) {
		uint8_t *top = malloc(32 << 20);
		CHECK(top);
		memset(top, i, 32 << 20);
		use(top, 32 << 20, false);
		use(top + PAGE, PAGE, true);
		CHECK_IS(device.pins - device.unpins, 1);
		free(top);
	}
	end();
}

/* Also when it is the device that frees, what lies above. */
static void device_heap(void)
{
	begin(256 << 20);
	device.extra = 1 << 20;
	for (int i = 0; i < 20; i++) {
		void *below = malloc(4 << 20);
		volatile uintptr_t where = (uintptr_t)below;
		uintptr_t heap_end;
		use(below, 4 << 20, false);
		free(below);
		heap_end = (uintptr_t)sbrk(0);
		pin_drop(cache, (void *)where, 1);
		CHECK((uintptr_t)sbrk(0) < heap_end - (4 << 20));
	}
	end();
}
#else
static void heap(void) {}
static void device_heap(void) {}
#endif

static void not_kept(void)
{
	struct pin *pin;
	bool hit;
	begin(MOST);
	uint8_t *memory = map(4 * PAGE);
	int shared = shmget(IPC_PRIVATE, PAGE, 0600), file = memfd_create("pin", 0);
	CHECK(file >= 0 && shared >= 0 && ftruncate(file, PAGE) == 0);
	uint8_t *const others[] = {
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0),
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
		shmat(shared, NULL, 0),
		mmap(memory + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0), /* amidst others */
	};
	shmctl(shared, IPC_RMID, NULL);
	for (int i = 0; i < 5; i++) {
		CHECK(maps_query((uintptr_t)others[i], (uintptr_t)others[i] + PAGE) <= 0);
		CHECK(!maps_read((uintptr_t)others[i], (uintptr_t)others[i] + PAGE));
	}
	for (int i = 0; i < 10; i++)
		use(others[i / 2], PAGE, false);
	use(memory, 4 * PAGE, false);
	use(memory, 4 * PAGE, false);
	CHECK_IS(device.used, 0);
	use(memory, PAGE, false);
	use(memory, PAGE, true);
	/* What can only be read is pinned for that. */
	CHECK(mprotect(memory + 2 * PAGE, PAGE, PROT_READ) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK_IS(pin_get(cache, memory + 2 * PAGE, PAGE, false, &pin, &hit), 0);
		CHECK(!hit && !((struct registration *)pin->handle)->writable);
		pin_put(cache, pin);
		CHECK_IS(pin_get(cache, memory + 2 * PAGE, PAGE, true, &pin, &hit), -EFAULT);
	}
	end();
}

/* Both ways to look at mappings say the same. */
static void maps(void)
{
	uint8_t *memory = map(4 * PAGE);
	CHECK(mprotect(memory + PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0); /* a mapping of its own, and good */
	for (size_t from = 0; from < 6; from++)
		for (size_t to = from + 1; to <= 6; to++) {
			uintptr_t base = (uintptr_t)(memory - PAGE) + from * PAGE, end = (uintptr_t)(memory - PAGE) + to * PAGE;
			bool good = from >= 1 && to <= 5;
			CHECK_IS(maps_read(base, end), good);
			CHECK_IS(maps_anonymous(base, end), good);
			int query = maps_query(base, end);
			CHECK(query == good || query == -ENOTTY);
		}
	munmap(memory + 2 * PAGE, PAGE);
	CHECK(!maps_read((uintptr_t)memory, (uintptr_t)memory + 4 * PAGE));
	CHECK(!maps_anonymous((uintptr_t)memory, (uintptr_t)memory + 4 * PAGE));
}

/* Memory that the program watches by a userfaultfd of its own. */
static void watched(void)
{
	begin(MOST);
	uint8_t *memory = map(4 * PAGE);
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register wanted = {.range = {(uintptr_t)memory, PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
	int fd = syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY);
	CHECK(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &wanted) == 0);
	use(memory, 2 * PAGE, false);
	use(memory, 2 * PAGE, false);
	CHECK_IS(device.used, 0);
	close(fd);
	use(memory, 2 * PAGE, false);
	use(memory, 2 * PAGE, true);
	end();
}

static void no_room(void)
{
	struct pin *pin;
	bool hit;
	begin(MOST);
	device.room = 4;
	uint8_t *memory = map(16 * PAGE);
	use(memory, PAGE, false);
	struct pin *used = get(memory + 2 * PAGE, PAGE, false);
	use(memory + 4 * PAGE, 2 * PAGE, false);
	use(memory + 8 * PAGE, 3 * PAGE, false);
	CHECK_IS(device.used, 4);
	CHECK_IS(pin_get(cache, memory + 12 * PAGE, 4 * PAGE, true, &pin, &hit), -ENOMEM);
	CHECK_IS(device.used, 1);
	pin_put(cache, used);
	use(memory + 2 * PAGE, PAGE, true);
	device.room = 0;
	device.error = EAGAIN;
	device.errors = 1;
	use(memory, PAGE, false);
	device.error = EIO;
	device.errors = 2;
	CHECK_IS(pin_get(cache, memory + 8 * PAGE, PAGE, true, &pin, &hit), -EIO);
	end();
}

static void no_cache(void)
{
	begin(0);
	CHECK_IS(pin_keeps(cache), 0);
	uint8_t *memory = map(PAGE);
	struct pin *pin = get(memory, PAGE, false);
	use(memory, PAGE, false);
	CHECK_IS(device.unpins, 1);
	pin_put(cache, pin);
	CHECK_IS(device.used, 0);
	end();
}

static void defaults(void)
{
	size_t bytes;
	static const char *const bad[] = {"", "x", "1x", "-1", " 1", "99999999999999999999999"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		setenv("PM_PIN_BYTES", bad[i], 1);
		CHECK_IS(pin_default_bytes(&bytes), -EINVAL);
	}
	setenv("PM_PIN_BYTES", "12345", 1);
	CHECK_IS(pin_default_bytes(&bytes), 0);
	CHECK_IS(bytes, 12345);
	unsetenv("PM_PIN_BYTES");
	struct rlimit limit;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	limit.rlim_cur = 65536;
	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	CHECK_IS(pin_default_bytes(&bytes), 0);
	CHECK_IS(bytes, 32768);
}

int main(void)
{
	alarm(90);
	no_cache();
	defaults();
	skip_without_watch();
	hits();
	overlaps();
	bounds();
	changes();
	in_use();
	heap();
	device_heap();
	maps();
	not_kept();
	watched();
	no_room();
	return 0;
}
