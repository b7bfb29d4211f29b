/*
 * pool.h - objects of one size, taken and given back without malloc; chunks are allocated as they are needed and
 * stay until the pool is closed.
 */
#ifndef PROV_POOL_H
#define PROV_POOL_H

#include <stddef.h>
#include <stdint.h>

/* Objects in a chunk. */
#define POOL_CHUNK 64

struct prov_pool {
	void *free;          /* the objects not in use, chained through their first word */
	size_t size;         /* bytes of one object, a multiple of 64 */
	size_t index_offset; /* where in an object its number is kept (uint32_t), or SIZE_MAX: nowhere */
	char **chunks;
	uint32_t chunk_count;
};

void prov_pool_open(struct prov_pool *pool, size_t size, size_t index_offset);
void prov_pool_close(struct prov_pool *pool);
/* Adds a chunk; 0 or -ENOMEM. */
int prov_pool_grow(struct prov_pool *pool);

/* An object, with the contents that it had when it was given back (zeroes at first) but for the first word; NULL
 * when there is no memory. */
static inline void *prov_pool_take(struct prov_pool *pool)
{
	void *object = pool->free;

	if (__builtin_expect(!object, 0)) {
		if (prov_pool_grow(pool))
			return NULL;
		object = pool->free;
	}
	pool->free = *(void **)object;
	return object;
}

static inline void prov_pool_give(struct prov_pool *pool, void *object)
{
	*(void **)object = pool->free;
	pool->free = object;
}

/* The object of that number, in use or not; NULL when there is none. */
static inline void *prov_pool_at(const struct prov_pool *pool, uint32_t index)
{
	if (index / POOL_CHUNK >= pool->chunk_count)
		return NULL;
	return pool->chunks[index / POOL_CHUNK] + index % POOL_CHUNK * pool->size;
}

#endif
