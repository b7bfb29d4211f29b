/* said.h - messages about remote memory as a good peer would say them, for a fuzzer to spoil: what is in them, such as
 * keys and the numbers of operations, would hardly be guessed. */
#ifndef SAID_H
#define SAID_H

#include <string.h>

#include "copied.h"

#define SAID_MOST 64 /* octets of the longest, without its data */

/* What is spoken about. */
struct subject {
	struct pm_peer *peer;       /* who says it */
	uint64_t address, key;      /* memory of the process under test that may be accessed */
	uint64_t place;             /* the peer's memory, */
	uint32_t place_key;         /* the device's key of that, */
	uint32_t generation;        /* and its ring to the process under test, or 0 */
};

/* A message of that type; its length, 0: there is no good one. */
static inline uint32_t said(const struct subject *of, uint8_t type, uint8_t message[SAID_MOST])
{
	uint64_t answering = of->peer->outbound ? of->peer->outbound->generation : 0, id = 1ull << 32, wanted = of->key;
	const struct operation *operation;
	TAILQ_FOREACH(operation, &of->peer->endpoint->operations, entry) {
		if (operation->node.event.peer != of->peer)
			continue;
		id = operation->id;
		wanted = operation->key;
		break;
	}
	const uint64_t all[][SAID_MOST / 8] = {
		[WRITE_DATA] = {id, of->address, of->key, 64, 0},
		[WRITE_DONE] = {id, 0},
		[READ_REQUEST] = {id, of->address, of->key, 3000, of->place, answering << 32 | of->place_key},
		[READ_DATA] = {id, 0, 0},
		[READ_PLACED] = {id},
		[REGION_WANTED] = {of->key, of->generation},
		[REGION_IS] = {wanted, of->place, 1 << 20, (uint64_t)of->place_key << 32 | answering, 0},
	};
	static const uint8_t words[] = {
		[WRITE_DATA] = 5, [WRITE_DONE] = 2, [READ_REQUEST] = 6, [READ_DATA] = 3, [READ_PLACED] = 1, [REGION_WANTED] = 2,
		[REGION_IS] = 5,
	};
	if (type >= sizeof(words))
		return 0;
	memcpy(message, all[type], 8 * words[type]);
	return 8 * words[type];
}

/* The same, spoiled by the input where that is not zero. */
static inline uint32_t misspoken(const struct subject *of, uint8_t type, const uint8_t *data, size_t size, uint8_t message[SAID_MOST])
{
	uint32_t length = said(of, type, message);
	for (size_t i = 0; i < size && i < length; i++)
		message[i] ^= data[i];
	return length;
}

#endif
