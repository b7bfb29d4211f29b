/* hash.h - XXH3 with a secret, by the widest registers that there are: the body of hash.c, hash_avx2.c and hash_avx512.c,
 * which make the same of the same bytes. */
#ifndef PM_HASH_H
#define PM_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_SECRET 192

/* The compiler has to be told of wider registers in a way that only this one knows. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HASH_WIDER
#endif

uint64_t hash_secret(const void *data, size_t length, const uint8_t secret[HASH_SECRET]);
void hash_grow(uint8_t secret[HASH_SECRET], uint64_t seed);
uint64_t hash_avx2(const void *data, size_t length, const uint8_t secret[HASH_SECRET]);
uint64_t hash_avx512(const void *data, size_t length, const uint8_t secret[HASH_SECRET]);

#endif
