/*
 * ivshmem.c - the ivshmem rail: guests of one host have a shared memory device each (QEMU's ivshmem-plain), of the same
 * memory, which a process maps as a file (resource2 of the PCI device; any other file that can be shared will do for
 * processes of one machine).
 *
 * The file is cut into as many equal parts as there are guests, and in the part of its own guest a process makes the
 * rings that others send to it by, each in one of the places there. Which places are taken is said by locks on the file
 * (F_OFD_SETLK), which end with the process. Another guest does not see them, and may still write into the ring of a
 * process that has ended: so a place has a mark of its writer as well, and is not used again before the writer has let
 * go of it, or the memory is a new one.
 *
 * Peers find each other by udp: the writer asks for a ring (RING_WANTED), the reader offers one (RING_OFFER), with a
 * nonce that it has put there, by which the writer sees that it has the same memory before it, and begins (RING_OPEN)
 * or refuses (RING_REFUSED). From there on it is as with other rings (rail.c).
 */
#include "ivshmem.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "link.h"

/* Room for data of a ring, bytes: the same for all, so that places are. */
#define DATA_BYTES (128u << 10)
#define PAGE 4096

static size_t place_size(void)
{
	return (offsetof(struct place, ring) + ring_size(DATA_BYTES) + PAGE - 1) & ~(size_t)(PAGE - 1);
}

static struct place *place_at(const struct area *area, uint64_t offset)
{
	return (struct place *)(area->map + offset);
}

static struct place *place_of(struct ring_memory *ring)
{
	return (struct place *)((uint8_t *)ring - offsetof(struct place, ring));
}

static int map_area(struct area *area, int fd, uint32_t part, uint32_t parts)
{
	struct stat status;
	if (!parts || part >= parts)
		return -EINVAL;
	if (fstat(fd, &status))
		return -errno;
	uint64_t each = status.st_size / parts & ~(uint64_t)(PAGE - 1);
	area->fd = fd;
	area->size = status.st_size;
	area->begin = each * part;
	area->places = each / place_size();
	if (!area->places)
		return -ENOSPC;
	area->taken = calloc(area->places, sizeof(*area->taken));
	if (!area->taken)
		return -ENOMEM;
	area->map = mmap(NULL, area->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return area->map == MAP_FAILED ? -errno : 0;
}

/* Takes the memory; the descriptor is the context's from now on, unless this fails. Under the lock. */
int ivshmem_open(struct pm_context *context, int fd, uint32_t part, uint32_t parts)
{
	struct area *area = context->area ? NULL : calloc(1, sizeof(*area));
	if (!area)
		return context->area ? -EBUSY : -ENOMEM;
	int error = map_area(area, fd, part, parts);
	if (error) {
		free(area->taken);
		free(area);
		return error;
	}
	context->area = area;
	return 0;
}

/* Gives it back, when no ring is there any more. Under the lock. */
void ivshmem_close(struct pm_context *context)
{
	struct area *area = context->area;
	if (!area)
		return;
	context->area = NULL;
	munmap(area->map, area->size);
	close(area->fd);
	free(area->taken);
	free(area);
}

static uint32_t number(const char *digits)
{
	unsigned long value = strtoul(digits, NULL, 10);
	return value < UINT32_MAX ? value : UINT32_MAX; /* so many parts there are nowhere */
}

/* Reads which part of how many it is: 0/2. False: that is no such thing. */
static bool read_part(const char *text, uint32_t *part, uint32_t *parts)
{
	static const char digits[] = "0123456789";
	const char *slash = text + strspn(text, digits), *end = *slash ? slash + 1 + strspn(slash + 1, digits) : slash;
	if (slash == text || *slash != '/' || end == slash + 1 || *end)
		return false;
	*part = number(text);
	*parts = number(slash + 1);
	return true;
}

/* Opens memory that is written as in $PM_IVSHMEM: a path, and where there are several guests a colon and which one of
 * how many this is, from 0: 0/2. The descriptor, or -errno. */
int ivshmem_find(const char *given, uint32_t *part, uint32_t *parts)
{
	const char *colon = strrchr(given, ':');
	if (!colon || !read_part(colon + 1, part, parts)) {
		colon = given + strlen(given); /* names of PCI devices have colons, too */
		*part = 0;
		*parts = 1;
	}
	char *path = strndup(given, colon - given);
	if (!path)
		return -ENOMEM;
	int fd = open(path, O_RDWR | O_CLOEXEC), error = -errno;
	free(path);
	return fd < 0 ? error : fd;
}

int ivshmem_from_environment(struct pm_context *context)
{
	const char *given = getenv("PM_IVSHMEM");
	uint32_t part, parts;
	int fd = given ? ivshmem_find(given, &part, &parts) : 0;
	if (!given || fd < 0)
		return fd;
	int error = ivshmem_open(context, fd, part, parts);
	if (error)
		close(fd);
	return error;
}

/* The reader's side. */

static bool lock_place(const struct area *area, uint64_t offset, short type)
{
	struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = offset, .l_len = place_size()};
	return !fcntl(area->fd, F_OFD_SETLK, &range);
}

/* A place that nobody reads from, and nobody may still write to; -ENOSPC: there is none. */
static int64_t find_place(struct area *area)
{
	for (uint32_t i = 0; i < area->places; i++) {
		uint64_t offset = area->begin + i * place_size();
		if (area->taken[i] || !lock_place(area, offset, F_WRLCK))
			continue;
		if (atomic_load(&place_at(area, offset)->writer) != MAY_WRITE) {
			area->taken[i] = true;
			return offset;
		}
		lock_place(area, offset, F_UNLCK);
	}
	return -ENOSPC;
}

/* Makes a ring for the peer to send by; NULL: there is no room. */
struct inbound *ivshmem_make(struct pm_peer *peer, struct ring_offer *offer)
{
	struct pm_context *context = peer->endpoint->context;
	struct inbound *inbound = link_inbound(peer, RAIL_IVSHMEM, peer->offers + 1);
	pthread_mutex_lock(&context->lock);
	int64_t offset = context->area && inbound ? find_place(context->area) : -ENOSPC;
	struct place *place = offset < 0 ? NULL : place_at(context->area, offset);
	uint64_t size = context->area ? context->area->size : 0;
	pthread_mutex_unlock(&context->lock);
	if (!place) {
		free(inbound);
		return NULL;
	}
	memset(place, 0, offsetof(struct place, ring) + ring_size(DATA_BYTES));
	randombytes_buf(place->nonce, sizeof(place->nonce));
	atomic_store(&place->writer, MAY_WRITE);
	ring_reader_open(&inbound->ring, &place->ring, DATA_BYTES);
	inbound->ring_size = ring_size(DATA_BYTES);
	peer->offers = inbound->generation;
	inbound->asleep = &place->asleep;
	inbound->place = offset;
	*offer = (struct ring_offer){inbound->generation, RAIL_IVSHMEM, offset, size, DATA_BYTES, 0, {0}};
	memcpy(offer->nonce, place->nonce, sizeof(offer->nonce));
	return inbound;
}

/* The writer has not begun, and will not. */
void ivshmem_unused(struct inbound *inbound)
{
	atomic_store(&place_of(inbound->ring.memory)->writer, NONE_YET);
}

/* Reads no more there. Anybody may have the place when its writer has let go of it, too. */
void ivshmem_give_up(struct pm_context *context, struct inbound *inbound)
{
	pthread_mutex_lock(&context->lock);
	struct area *area = context->area;
	lock_place(area, inbound->place, F_UNLCK);
	area->taken[(inbound->place - area->begin) / place_size()] = false;
	pthread_mutex_unlock(&context->lock);
}

/* The writer's side. */

/* Makes the peer's outbound of an offer; false: that is no memory of this process, or no place in it. */
bool ivshmem_take(struct pm_peer *peer, const struct ring_offer *offer)
{
	struct pm_context *context = peer->endpoint->context;
	pthread_mutex_lock(&context->lock);
	struct area *area = context->area;
	bool fits = area && offer->size == area->size && offer->data_bytes == DATA_BYTES && offer->offset % PAGE == 0 &&
		    offer->offset <= area->size && area->size - offer->offset >= place_size();
	struct place *place = fits ? place_at(area, offer->offset) : NULL;
	/* All that its reader has written there is seen, too. */
	fits = fits && atomic_load(&place->writer) == MAY_WRITE && !memcmp(place->nonce, offer->nonce, sizeof(offer->nonce));
	struct outbound *outbound = fits ? link_outbound(peer, RAIL_IVSHMEM, offer->generation) : NULL;
	pthread_mutex_unlock(&context->lock);
	if (!outbound)
		return false;
	ring_writer_open(&outbound->ring, &place->ring, DATA_BYTES);
	outbound->ring_size = ring_size(DATA_BYTES);
	outbound->asleep = &place->asleep;
	atomic_store(&outbound->ready, true);
	peer->outbound = outbound;
	return true;
}

/* Writes no more there. */
void ivshmem_let_go(struct outbound *outbound)
{
	atomic_store(&place_of(outbound->ring.memory)->writer, HAS_LET_GO);
}
