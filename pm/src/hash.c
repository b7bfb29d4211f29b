/* hash.c - hash.h, by what the processor has. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "hash.h"

_Static_assert(HASH_SECRET == XXH_SECRET_DEFAULT_SIZE, "libxxhash's size");

static uint64_t hash_plain(const void *data, size_t length, const uint8_t secret[HASH_SECRET])
{
	return XXH3_64bits_withSecret(data, length, secret, HASH_SECRET);
}

static uint64_t (*best)(const void *, size_t, const uint8_t *) = hash_plain;

#ifdef HASH_WIDER
__attribute__((constructor)) static void choose(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f"))
		best = hash_avx512;
	else if (__builtin_cpu_supports("avx2"))
		best = hash_avx2;
}
#endif

uint64_t hash_secret(const void *data, size_t length, const uint8_t secret[HASH_SECRET])
{
	return best(data, length, secret);
}

void hash_grow(uint8_t secret[HASH_SECRET], uint64_t seed)
{
	XXH3_generateSecret_fromSeed(secret, seed);
}
