/*
 * pinned.c - curves of remote accesses of which so many of a hundred find their memory in the pin-down cache: what pinning
 * costs, as the paper on the RWC PC Cluster II has it.
 *
 * Each size has a context of its own, of which the cache has room for some buffers of that size. A buffer that is used all
 * the time is always found in it; of buffers that take turns, and are some more than it has room for, none is. So a miss
 * pins one buffer and unpins another one, from the first on that is measured.
 */
#include "perf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEPT (WINDOW + 2)   /* buffers in the cache: those in use, the one that stays, and one that goes */
#define OTHERS (KEPT + 2)
#define TOLERANCE 2         /* of a hundred */
#define PATIENCE 10.0       /* seconds, until accesses go by a rail that pins */
#define LESS_PATIENCE 1.0   /* where nobody has asked for these curves */

struct pinned {
	size_t size;
	struct side side; /* of its own, to the server's first */
	struct rotation rotation;
	struct tally {
		uint64_t accesses, hits, misses;
	} tallies[CURVES];
};

static struct pm_statistics statistics_of(const struct side *side)
{
	struct pm_statistics statistics;
	pm_statistics(side->endpoint, &statistics);
	return statistics;
}

/* Waits until a side's remote accesses go by a rail that pins memory; false: they don't. */
static bool settle(struct side *side, char *buffer, size_t size, uint64_t address, double seconds)
{
	for (double until = now() + seconds; now() < until;) {
		access_once(side, true, buffer, size, address);
		struct pm_statistics statistics = statistics_of(side);
		if (statistics.rails[PM_RAIL_VERBS].accesses)
			return true;
		if (statistics.rails[PM_RAIL_SHM].accesses)
			return false;
		usleep(1000);
	}
	return false;
}

/* Those of the beginning; the library reads the environment when they first come to the rail, so afterwards it may change. */
static bool settle_sides(struct link *link, double seconds)
{
	for (int i = 0; i < SIDES; i++)
		if (!settle(&link->sides[i], link->buffer, link->largest, link->remote_address, seconds))
			return false;
	return true;
}

/* false: accesses of this size pin nothing. */
static bool open_size(struct link *link, struct pinned *pinned, size_t size, const struct pm_address *server)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), stride = (size + page - 1) / page * page;
	char kept[32];
	snprintf(kept, sizeof kept, "%zu", KEPT * stride);
	setenv("PM_PIN_BYTES", kept, 1);
	*pinned = (struct pinned){ .size = size, .rotation = { .stride = stride, .room = OTHERS * stride } };
	pinned->rotation.same = map_memory(stride);
	pinned->rotation.others = map_memory(pinned->rotation.room);
	side_open(&pinned->side, false);
	side_find(&pinned->side, server);
	pinned->side.remote_key = link->sides[SIDE_DIRECT].remote_key;
	if (!settle(&pinned->side, pinned->rotation.same, size, link->remote_address, PATIENCE))
		fail(0, "remote accesses of %zu bytes do not go by the rail by which others go", size);
	/* What ended last may have begun on another rail. */
	access_once(&pinned->side, true, pinned->rotation.same, size, link->remote_address);
	struct pm_statistics statistics = statistics_of(&pinned->side);
	return statistics.pin_hits + statistics.pin_misses > 0;
}

static void close_size(struct pinned *pinned)
{
	side_close(&pinned->side);
	munmap(pinned->rotation.same, pinned->rotation.stride);
	munmap(pinned->rotation.others, pinned->rotation.room);
}

/* From the longest on: where one pins nothing, neither do those that are shorter. */
static void open_sizes(struct link *link, const struct settings *settings, const struct pm_address *server)
{
	for (int i = settings->size_count; i-- > 0; link->pinned_count++) {
		struct pinned *pinned = &link->pinned[link->pinned_count];
		if (!open_size(link, pinned, settings->sizes[i], server)) {
			close_size(pinned);
			return;
		}
	}
}

static bool any_wanted(const struct settings *settings)
{
	for (int curve = 0; curve < CURVES; curve++)
		if (curve_hits(curve) >= 0 && settings->curves[curve])
			return true;
	return false;
}

static void leave_out(struct settings *settings)
{
	if (settings->chosen)
		fail(0, "curves of hits: remote accesses of %zu bytes pin no memory, by the rail that they go by here", settings->sizes[settings->size_count - 1]);
	fprintf(stderr, "pm-perf: no memory is pinned here: curves of hits are left out\n");
	for (int curve = 0; curve < CURVES; curve++)
		if (curve_hits(curve) >= 0)
			settings->curves[curve] = false;
}

void pinned_open(struct link *link, struct settings *settings, const struct pm_address *server)
{
	if (!any_wanted(settings))
		return;
	link->pinned = calloc((size_t)settings->size_count, sizeof *link->pinned);
	if (!link->pinned)
		fail(-ENOMEM, "room for %d sizes", settings->size_count);
	if (settle_sides(link, settings->chosen ? PATIENCE : LESS_PATIENCE))
		open_sizes(link, settings, server);
	if (!link->pinned_count)
		leave_out(settings);
}

void pinned_close(struct link *link)
{
	for (int i = 0; i < link->pinned_count; i++)
		close_size(&link->pinned[i]);
	free(link->pinned);
}

static struct pinned *find(const struct link *link, size_t size)
{
	for (int i = 0; i < link->pinned_count; i++)
		if (link->pinned[i].size == size)
			return &link->pinned[i];
	return NULL;
}

bool pinned_has(const struct link *link, enum curve curve, size_t size)
{
	return curve_hits(curve) < 0 || find(link, size);
}

const struct side *pinned_side(const struct link *link, size_t size)
{
	return &find(link, size)->side;
}

/* The server has begun to attend. */
double pinned_batch(struct link *link, const struct order *order)
{
	struct pinned *pinned = find(link, order->size);
	struct tally *tally = &pinned->tallies[order->curve];
	pinned->rotation.same_percent = curve_hits(order->curve);
	if (pinned->rotation.same_percent) /* another curve may have put it out of the cache */
		access_once(&pinned->side, curve_writes(order->curve), pinned->rotation.same, order->size, link->remote_address);
	struct pm_statistics before = statistics_of(&pinned->side);
	double took = access_batch(&pinned->side, order, &pinned->rotation, link->remote_address);
	struct pm_statistics after = statistics_of(&pinned->side);
	side_send(&link->sides[SIDE_DIRECT], KIND_END, NULL, 0);
	tally->accesses += (uint64_t)order->count;
	tally->hits += after.pin_hits - before.pin_hits;
	tally->misses += after.pin_misses - before.pin_misses;
	return took;
}

double pinned_hits(const struct link *link, enum curve curve, size_t size)
{
	const struct tally *tally = &find(link, size)->tallies[curve];
	double all = (double)tally->accesses, percent = 100 * (double)tally->hits / all, wanted = curve_hits(curve);
	double pinned = 100 * (double)(tally->hits + tally->misses) / all;
	if (pinned < 100 - TOLERANCE || percent < wanted - TOLERANCE || percent > wanted + TOLERANCE)
		fail(0, "%s, %zu bytes: of %.0f accesses %.0f %% have pinned their memory or found it pinned, and %.0f %% were hits", curve_names[curve],
			size, all, pinned, percent);
	return percent;
}
