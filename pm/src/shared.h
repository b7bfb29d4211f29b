/*
 * shared.h - what processes of one machine tell each other: the page of each context, which others map read-only, and
 * the two messages that make a connection over a Unix socket. Nothing in here is believed unchecked.
 *
 * A context listens on an abstract Unix socket (SOCK_SEQPACKET) named "pm/" and its id in hexadecimal. Who wants to
 * send to one of its endpoints connects, sends a hello, and gets a welcome with three descriptors: the page, a ring
 * of its own to that endpoint, and the endpoint's doorbell (an eventfd, rung when the page says that it sleeps). The
 * socket then stays open, and its end is the end of the other process. No name is left in any file system.
 */
#ifndef PM_SHARED_H
#define PM_SHARED_H

#include <stdatomic.h>
#include <stdint.h>

#include "pm.h"

#define SHARED_MAGIC 0x3130656761704d50ull /* "PMpage01" */
#define SHARED_VERSION 5
#define SHARED_ENDPOINTS 64
#define SHARED_REGIONS 262144
#define CONTEXT_ID_SIZE 16
#define SOCKET_PREFIX "pm/"

/* One entry of the table of regions. A key is the entry's number and, above it, its generation, which is odd while
 * the entry is in use: a key of a region that is gone fits nothing. */
struct shared_region {
	_Atomic uint64_t generation;
	_Atomic uint64_t base, length;
	_Atomic uint64_t access; /* enum pm_access */
};

#define REGION_BITS 18
_Static_assert(1 << REGION_BITS == SHARED_REGIONS, "a key has room for the number of each region");

struct shared_endpoint {
	_Alignas(128) _Atomic uint32_t serial; /* of the endpoint, in its address; 0: there is none */
	_Atomic uint32_t asleep;               /* ring the doorbell after a message */
	struct pm_address address;
	_Alignas(128) struct pm_statistics statistics;
};

_Static_assert(sizeof(struct shared_endpoint) == 640, "as pm(7) says");

struct shared_page {
	uint64_t magic;
	uint32_t version;
	int32_t pid;
	uint8_t id[CONTEXT_ID_SIZE];
	uint64_t id_address; /* where in the process's memory its id lies: read first, to be sure whose memory it is */
	struct shared_endpoint endpoints[SHARED_ENDPOINTS];
	struct shared_region regions[SHARED_REGIONS];
};

#define HELLO_MAGIC 0x31306f6c65684d50ull   /* "PMhelo01" */
#define WELCOME_MAGIC 0x3130656d6c634d50ull /* "PMclme01" */

enum hello_kind {
	HELLO_CONNECT = 1, /* makes a ring */
	HELLO_SURVEY = 2,  /* asks for the page only, and needs no key */
	HELLO_ORDER = 3,   /* the control channel (order.c); needs no key, either */
};

enum order_kind {
	ORDER_LEAVE = 1,   /* give all memory of the rail back, and use it no more */
	ORDER_JOIN = 2,    /* the rail may be used again */
	ORDER_SAVE = 3,    /* put the endpoint `to' aside */
	ORDER_RESTORE = 4, /* and take it up again */
	ORDER_GONE = 5,    /* the endpoint `from' is no more */
};

/* A sender that cannot be reached by membarrier: who receives from it must not rely on being woken. */
#define HELLO_UNFENCED 1
/* The ring is not to be read before a RING_OPEN has come by udp. */
#define HELLO_AFTER_UDP 2

struct hello {
	uint64_t magic;
	uint32_t kind;
	uint32_t flags;
	uint8_t job_key[PM_JOB_KEY_SIZE];
	struct pm_address from, to;
	uint32_t generation; /* the sender's number for the ring */
	uint16_t rail;
	uint16_t order;
	uint32_t part, parts; /* ORDER_JOIN of ivshmem, of which the memory comes with it */
};
_Static_assert(sizeof(struct hello) == 160, "no padding");

/* With status 0 come the descriptors: page, ring, doorbell; to a survey the page alone. */
struct welcome {
	uint64_t magic;
	int32_t status; /* 0 or -errno */
	uint32_t ring_bytes;
};

#endif
