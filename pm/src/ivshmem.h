/* ivshmem.h - rings in memory that several guests share (ivshmem.c). */
#ifndef PM_IVSHMEM_H
#define PM_IVSHMEM_H

#include "internal.h"

#define IVSHMEM_NONCE 16

/* The memory of a context, its part of it, and which of the places there it has taken. Under the context's lock. */
struct area {
	int fd;
	uint8_t *map;
	size_t size;
	uint64_t begin;
	uint32_t places;
	bool *taken;
};

enum writer { NONE_YET, MAY_WRITE, HAS_LET_GO };

/* What stands before a ring. */
struct place {
	uint8_t nonce[IVSHMEM_NONCE];
	_Alignas(RING_LINE) _Atomic uint32_t asleep; /* the reader's: it wants to be woken */
	_Alignas(RING_LINE) _Atomic uint32_t writer; /* enum writer: the first is the reader's, the last the writer's word */
	struct ring_memory ring;
};

/* What a reader offers. */
struct ring_offer {
	uint32_t generation, rail;
	uint64_t offset, size; /* of the place in the memory, and of that */
	uint32_t data_bytes, zero;
	uint8_t nonce[IVSHMEM_NONCE];
};

int ivshmem_open(struct pm_context *context, int fd, uint32_t part, uint32_t parts);
void ivshmem_close(struct pm_context *context);
int ivshmem_find(const char *given, uint32_t *part, uint32_t *parts);
int ivshmem_from_environment(struct pm_context *context);
struct inbound *ivshmem_make(struct pm_peer *peer, struct ring_offer *offer);
void ivshmem_unused(struct inbound *inbound);
void ivshmem_give_up(struct pm_context *context, struct inbound *inbound);
bool ivshmem_take(struct pm_peer *peer, const struct ring_offer *offer);
void ivshmem_let_go(struct outbound *outbound);

#endif
