/* pool.c - objects of one size: growing and closing; the rest is inline in pool.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define POOL_ALIGNMENT 64 /* a cache line */

void prov_pool_open(struct prov_pool *pool, size_t size, size_t index_offset)
{
	memset(pool, 0, sizeof(*pool));
	pool->size = (size + POOL_ALIGNMENT - 1) / POOL_ALIGNMENT * POOL_ALIGNMENT;
	pool->index_offset = index_offset;
}

void prov_pool_close(struct prov_pool *pool)
{
	for (uint32_t i = 0; i < pool->chunk_count; i++)
		free(pool->chunks[i]);
	free(pool->chunks);
	memset(pool, 0, sizeof(*pool));
}

int prov_pool_grow(struct prov_pool *pool)
{
	char **chunks = realloc(pool->chunks, (pool->chunk_count + 1) * sizeof(*chunks));
	char *chunk;

	if (!chunks)
		return -ENOMEM;
	pool->chunks = chunks;
	chunk = aligned_alloc(POOL_ALIGNMENT, POOL_CHUNK * pool->size);
	if (!chunk)
		return -ENOMEM;
	memset(chunk, 0, POOL_CHUNK * pool->size);
	for (uint32_t i = POOL_CHUNK; i-- > 0;) {
		char *object = chunk + i * pool->size;
		uint32_t index = pool->chunk_count * POOL_CHUNK + i;

		if (pool->index_offset != SIZE_MAX)
			memcpy(object + pool->index_offset, &index, sizeof(index));
		prov_pool_give(pool, object);
	}
	pool->chunks[pool->chunk_count++] = chunk;
	return 0;
}
