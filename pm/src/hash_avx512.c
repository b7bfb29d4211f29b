/* hash_avx512.c - hash.h with registers of 512 bits. */
#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC target("avx512f")
#define XXH_VECTOR XXH_AVX512
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "hash.h"

#ifdef HASH_WIDER
uint64_t hash_avx512(const void *data, size_t length, const uint8_t secret[HASH_SECRET])
{
	return XXH3_64bits_withSecret(data, length, secret, HASH_SECRET);
}
#endif
