/* region.c - memory that others may read or write: a table in the context's page, which they look at themselves. */
#include <errno.h>

#include "udp.h"
#include "verbs.h"

EXPORT int pm_register(struct pm_context *context, void *base, size_t length, unsigned access, struct pm_region **made)
{
	uintptr_t end;
	if (!access || access & ~(unsigned)(PM_REMOTE_READ | PM_REMOTE_WRITE) ||
	    __builtin_add_overflow((uintptr_t)base, length, &end))
		return -EINVAL;
	pthread_mutex_lock(&context->lock);
	uint32_t index = SHARED_REGIONS;
	if (context->region_free_count)
		index = context->region_free[--context->region_free_count];
	else if (context->region_count < SHARED_REGIONS)
		index = context->region_count++;
	pthread_mutex_unlock(&context->lock);
	if (index == SHARED_REGIONS)
		return -ENOSPC;
	struct pm_region *region = &context->regions[index];
	struct shared_region *shared = &context->page->regions[index];
	atomic_store_explicit(&shared->base, (uintptr_t)base, memory_order_relaxed);
	atomic_store_explicit(&shared->length, length, memory_order_relaxed);
	atomic_store_explicit(&shared->access, access, memory_order_relaxed);
	uint64_t generation = atomic_load_explicit(&shared->generation, memory_order_relaxed) + 1;
	atomic_store_explicit(&shared->generation, generation, memory_order_release);
	region->context = context;
	region->key = generation << REGION_BITS | index;
	*made = region;
	return 0;
}

EXPORT int pm_deregister(struct pm_region *region)
{
	struct pm_context *context = region->context;
	uint32_t index = region->key & (SHARED_REGIONS - 1);
	atomic_store_explicit(&context->page->regions[index].generation, (region->key >> REGION_BITS) + 1,
			      memory_order_seq_cst);
	pthread_mutex_lock(&context->lock);
	udp_region_gone(context, region->key);
	verbs_region_gone(region);
	context->region_free[context->region_free_count++] = index;
	pthread_mutex_unlock(&context->lock);
	return 0;
}

EXPORT uint64_t pm_region_key(const struct pm_region *region)
{
	return region->key;
}

/* 0 if that page's key allows this access to length bytes at address, else -EACCES. */
int region_check(const struct shared_page *page, uint64_t key, uint64_t address, uint64_t length, unsigned access)
{
	const struct shared_region *region = &page->regions[key & (SHARED_REGIONS - 1)];
	uint64_t generation = atomic_load_explicit(&region->generation, memory_order_acquire);
	uint64_t base = atomic_load_explicit(&region->base, memory_order_relaxed);
	uint64_t size = atomic_load_explicit(&region->length, memory_order_relaxed);
	uint64_t allowed = atomic_load_explicit(&region->access, memory_order_relaxed);
	atomic_thread_fence(memory_order_acquire);
	if (generation != key >> REGION_BITS || !(generation & 1) ||
	    generation != atomic_load_explicit(&region->generation, memory_order_relaxed))
		return -EACCES;
	if ((allowed & access) != access || address < base || address - base > size || length > size - (address - base))
		return -EACCES;
	return 0;
}

EXPORT int pm_region_check(const struct pm_context *context, uint64_t key, uint64_t address, size_t length, unsigned access)
{
	return region_check(context->page, key, address, length, access);
}
