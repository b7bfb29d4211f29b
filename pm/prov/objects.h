/*
 * objects.h - the objects of the libfabric provider "pm": those that its callers open, and what is in them.
 *
 * Locking: an endpoint, its queues and its peers belong to one thread at a time, as with FI_THREAD_DOMAIN. Where the
 * caller asked for more, the domain is "locked": each operation that the caller calls takes the domain's mutex
 * (prov_lock, prov_unlock), and nothing inside takes it again.
 */
#ifndef PROV_OBJECTS_H
#define PROV_OBJECTS_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <time.h>
#include <uthash.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include "pm.h"
#include "pool.h"
#include "wire.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define PROV_NAME "pm"
#define PROV_IOV_LIMIT WIRE_PARTS
#define PROV_SEGMENTS (2 * PROV_IOV_LIMIT - 1) /* pieces when one list of parts is laid over another */
/* Of operands, as many as there is room for in a message. */
#define PROV_ATOMIC_BYTES (PM_MAX_MESSAGE - sizeof(struct wire_atomic) - WIRE_PARTS * sizeof(struct wire_part))
#define PROV_ATOMIC_WINDOW ((uint32_t)4 << 20) /* bytes under way to one peer, after which it is waited for answers */
#define PROV_ADDRESS_FORMAT (FI_PROV_SPECIFIC | 0x504d)
#define PROV_EAGER_LIMIT (PM_MAX_MESSAGE - sizeof(struct wire_request)) /* FI_PM_EAGER is at most this */
#define PROV_LEAST_INJECT 512 /* bytes; Intel MPI injects its own headers whatever it was promised */
#define PROV_MESSAGE_LIMIT ((size_t)1 << 40) /* bytes */
#define PROV_QUEUE_SIZE 1024                 /* of a context, as promised; the real ones grow */
#define PROV_QUEUE_LIMIT 65536               /* the most that a caller may ask for */
#define PROV_MR_MODE (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

/* Capabilities, as fi_getinfo(3) groups them: callers get the primary ones that they ask for, with those modifiers or
 * all of them, and the secondary ones in any case: also FI_REMOTE_COMM where there is only the rail shm, as Open MPI takes
 * no provider without it even on one machine. */
#define PROV_PRIMARY (FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | (prov_tunables.atomics ? FI_ATOMIC : 0))
#define PROV_MESSAGES (FI_SEND | FI_RECV)
#define PROV_ACCESSES (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define PROV_SECONDARY (FI_MULTI_RECV | FI_SOURCE | FI_LOCAL_COMM | FI_REMOTE_COMM)
#define PROV_ALL (PROV_PRIMARY | PROV_MESSAGES | PROV_ACCESSES | PROV_SECONDARY)

/* Messages are matched in the order in which they were sent, and atomic operations done in that in which they began. */
#define PROV_ATOMIC_ORDER (FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW)

extern struct fi_provider prov_provider;

/* The tunables, read once when the provider is loaded. */
struct prov_tunables {
	size_t eager;      /* FI_PM_EAGER: bytes of payload sent along with the header */
	size_t inject;     /* bytes that may be injected: as many, but no fewer than callers rely on */
	size_t unexpected; /* FI_PM_UNEXPECTED: bytes kept for receives to come, before senders are told to hold */
	int atomics;       /* FI_PM_ATOMICS: whether they are offered */
};
extern struct prov_tunables prov_tunables;

struct prov_fabric {
	struct fid_fabric fid;
	int users; /* open domains and event queues */
};

struct prov_domain {
	struct fid_domain fid;
	struct prov_fabric *fabric;
	struct pm_context *context;
	bool locked;
	pthread_mutex_t mutex;
	int users; /* what is open in it; atomic */
};

struct prov_mr {
	struct fid_mr fid;
	struct prov_domain *domain;
	struct pm_region *region; /* NULL where nobody else may access it */
};

/* An address known to the caller by its fi_addr_t, the entry's number. Entries stay where they are. */
struct prov_av_entry {
	struct pm_address address;
	uint32_t index;
	bool used;
	UT_hash_handle by_address; /* the first entry of an address only */
};

struct prov_ep;

struct prov_av {
	struct fid_av fid;
	struct prov_domain *domain;
	struct prov_pool entries;
	uint32_t count; /* entries ever used: those above are not */
	struct prov_av_entry *by_address;
	LIST_HEAD(, prov_ep) endpoints; /* bound to it */
};

/* What a completion says; the entries of all formats begin alike. */
struct prov_completion {
	struct fi_cq_tagged_entry entry;
	fi_addr_t source;
};

struct prov_cq_error {
	struct fi_cq_err_entry entry;
	fi_addr_t source;
	STAILQ_ENTRY(prov_cq_error) link;
};

/* What completion queues and counters have in common (collector.c). */
struct prov_collector {
	struct prov_ep **endpoints; /* bound to it */
	uint32_t endpoint_count;
	bool armed;                 /* somebody may sleep: rings when something is put into it */
	bool native;                /* it has been slept on by its descriptor: nobody can say when that has ended */
	bool rung;                  /* since it was armed */
	bool signaled;              /* who sleeps is to come out */
	uint32_t sleepers;          /* threads in prov_collector_sleep */
	int fd, bell;               /* an epoll of the endpoints' descriptors and the bell, an eventfd; -1: not needed so far */
	enum fi_wait_obj object;
	int users;                  /* bindings */
	struct prov_domain *domain;
};
#define PROV_COLLECTORS 6 /* that an endpoint may have */

struct prov_cq {
	struct fid_cq fid;
	/* The buffer of the caller who is reading just now: completions go there at once if it takes whole entries. */
	struct fi_cq_tagged_entry *direct, *direct_end;
	struct prov_completion *ring;
	uint32_t head, tail, mask; /* taken, put, entries of the ring less one */
	size_t entry_size;
	struct prov_collector collector;
	STAILQ_HEAD(, prov_cq_error) errors;
	uint32_t spin_credit, empty_readings; /* see look_on */
	bool was_empty; /* the last reading found nothing */
	uint32_t vain_readings; /* in a row; see give_way */
	struct prov_cq_error *last_error; /* whose data the caller may still look at */
};

struct prov_cntr {
	struct fid_cntr fid;
	uint64_t value, errors;
	uint64_t value_seen, errors_seen; /* by its caller */
	struct prov_collector collector;
};

/* A control message that found no room. */
struct prov_control {
	STAILQ_ENTRY(prov_control) link;
	uint8_t kind;
	uint32_t length;
	char bytes[];
};

/* What an endpoint knows of another. Lives as long as the endpoint. */
struct prov_peer {
	struct pm_peer *pm;
	size_t eager_room;  /* payloads must be shorter to go eagerly; 0 on HOLD */
	fi_addr_t address;  /* FI_ADDR_NOTAVAIL as long as the address vector lacks it */
	struct prov_ep *endpoint;
	bool gone;
	bool awaited;       /* when it was looked last whether anything is */
	bool holding;       /* we said HOLD to it */
	uint64_t held;      /* bytes that came from it since */
	TAILQ_ENTRY(prov_peer) link;    /* all of the endpoint */
	TAILQ_ENTRY(prov_peer) blocked; /* those with controls */
	STAILQ_HEAD(, prov_control) controls;
	uint64_t control_bytes;         /* of those */
	uint32_t atomic_bytes;          /* of atomic operations that it has not answered */
	TAILQ_HEAD(, prov_operation) operations; /* not ended */
};

/* Bits of prov_receive.flags and prov_arrival.flags; the first two are those of the wire. */
#define PROV_TAGGED WIRE_IS_TAGGED
#define PROV_DATA WIRE_HAS_DATA
#define PROV_RTS 4u      /* arrival: the payload is still with the sender */
#define PROV_CONFIRM 8u  /* arrival: the sender waits for a FIN; send: a FIN is wanted */
#define PROV_COMPLETE 16u /* a completion is wanted */
#define PROV_MULTI 32u   /* receive: takes messages one after the other until it is used up */
#define PROV_RETIRED 64u /* multi-receive: takes no more */
#define PROV_INJECT 128u /* send: the buffer is free at once */
#define PROV_ON_ARRIVAL WIRE_ON_ARRIVAL /* send, with PROV_CONFIRM: the FIN need not wait for a receive */

/* A receive that waits for its message. */
struct prov_receive {
	TAILQ_ENTRY(prov_receive) link;
	uint64_t tag, mask; /* those bits of the tag that count */
	struct prov_peer *peer; /* only from it; NULL: from any */
	void *context;
	uint32_t flags;
	uint32_t part_count;
	uint32_t children; /* of a multi-receive: messages being read into it */
	struct iovec parts[PROV_IOV_LIMIT];
};
TAILQ_HEAD(prov_receives, prov_receive);

/* A message as it came, or as it waits for a receive. */
struct prov_arrival {
	struct prov_peer *peer;
	uint64_t tag, data, request;
	uint32_t flags;
	uint32_t part_count;    /* of an RTS */
	uint64_t length;        /* bytes, all of them */
	const void *payload;    /* not of an RTS */
	struct wire_part parts[WIRE_PARTS];
};

#define PROV_INLINE_PAYLOAD 128

/* A message that nobody has asked for so far. */
struct prov_unexpected {
	TAILQ_ENTRY(prov_unexpected) link;
	struct prov_arrival arrival;
	uint32_t size; /* bytes counted against the bound */
	void *buffer;  /* from the pool of large payloads, or NULL */
	char payload[PROV_INLINE_PAYLOAD];
};
TAILQ_HEAD(prov_unexpecteds, prov_unexpected);

/* Messages match receives of the same side only. */
struct prov_side {
	struct prov_receives posted;
	struct prov_unexpecteds unexpected;
};

/* How an operation ended, for its completion. */
struct prov_ended {
	uint32_t flags; /* PROV_TAGGED, PROV_DATA, PROV_COMPLETE */
	int status;     /* 0 or -errno */
	void *context;
	void *buffer;   /* of a receive: where it begins */
	uint64_t length, overflow; /* bytes moved, and those that had no place */
	uint64_t tag, data;
	fi_addr_t source;
	struct prov_receive *multi; /* the multi-receive that it went into */
};

/* What is to be sent. */
struct prov_send {
	const struct iovec *parts;
	size_t count;
	uint64_t length; /* bytes of all parts */
	uint64_t tag, data;
	void *context;
	uint32_t flags;  /* PROV_TAGGED, PROV_DATA, PROV_COMPLETE, PROV_CONFIRM, PROV_INJECT */
};

enum prov_operation_type {
	PROV_FREE = 0,
	PROV_SEND,          /* waits for a FIN */
	PROV_RECEIVE_READ,  /* pm_read of a matched RTS */
	PROV_RMA_READ,
	PROV_RMA_WRITE,
	PROV_ATOMIC,        /* waits for its answer; segments: where the result goes */
};

/* A piece of memory to be moved by one pm_read or pm_write. */
struct prov_segment {
	void *local;
	uint64_t address, key;
	size_t length;
};

/* Something under way that ends later than the call which began it. */
struct prov_operation {
	TAILQ_ENTRY(prov_operation) link; /* of its peer */
	TAILQ_ENTRY(prov_operation) retry;
	enum prov_operation_type type;
	uint32_t index, generation;
	bool retrying;
	struct prov_peer *peer;
	int status;                     /* the first failure */
	struct prov_ended ended_ok;     /* what to report if there was none */
	uint64_t request;               /* of a receive: the sender's, to be answered */
	void *copy;                     /* of something injected; freed at the end */
	struct pm_region *regions[WIRE_PARTS]; /* registered for it */
	uint32_t region_count;
	uint32_t count, started, ended; /* of the segments */
	struct prov_segment segments[PROV_SEGMENTS];
};
TAILQ_HEAD(prov_operations, prov_operation);

struct prov_ep {
	struct fid_ep fid;
	struct prov_domain *domain;
	struct pm_endpoint *pm;
	struct prov_peer **peers; /* by fi_addr_t, filled on first use */
	uint64_t peer_count;
	uint32_t send_flags, receive_flags; /* what calls without flags mean: PROV_COMPLETE, PROV_CONFIRM, ... */
	uint32_t sends;             /* since the endpoint last took what had arrived */
	struct prov_cq *tx_cq, *rx_cq;
	struct prov_cntr *send_cntr, *receive_cntr, *read_cntr, *write_cntr;
	struct prov_side tagged, untagged;
	struct prov_pool receives, unexpecteds, payloads, operations;
	struct prov_operations retries;     /* waiting for room */
	uint32_t retry_count;
	uint32_t regions;                   /* registered for operations under way */
	uint32_t transfers;                 /* pm_reads and pm_writes under way */
	TAILQ_HEAD(prov_peers, prov_peer) all_peers;
	uint32_t known_peers;
	uint32_t empty_looks;               /* for messages */
	time_t awaited_s;                   /* when it was looked last of which peers something is awaited */
	struct prov_peers blocked;
	size_t min_multi_receive;
	uint64_t caps, tx_op_flags, rx_op_flags;
	size_t eager;
	uint64_t unexpected_bytes;
	uint32_t holding;                   /* peers told to hold */
	uint64_t dropped;                   /* messages that made no sense */
	uint64_t atomics;                   /* operations done here for others */
	struct prov_unexpecteds claimed;
	struct prov_av *av;
	LIST_ENTRY(prov_ep) av_link;
	bool enabled, tx_selective, rx_selective;
};

#endif
