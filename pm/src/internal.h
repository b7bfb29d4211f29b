/*
 * internal.h - the structures behind pm.h. Who may touch what: the owner is the thread that uses the endpoint, the
 * keeper is the context's own thread, which makes connections and notices their ends (keeper.c). What both touch is
 * atomic, or under the context's lock.
 */
#ifndef PM_INTERNAL_H
#define PM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include <uthash.h>

#include "flow.h"
#include "pm.h"
#include "ring.h"
#include "shared.h"

#define EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* Types of messages in a ring; MESSAGE is the caller's, the others are remote memory access by copies (copied.c). */
enum message_type {
	MESSAGE = 0,
	WRITE_DATA = 1,
	WRITE_DONE = 2,
	READ_REQUEST = 3,
	READ_DATA = 4,
	HELP = 5, /* a request to share a large direct read (help.c) */
	/* Remote memory access by devices (verbs_access.c). */
	READ_PLACED = 6,   /* the bytes of a read are where they belong */
	REGION_WANTED = 7, /* how is that region written to? */
	REGION_IS = 8,     /* so */
	/* About rings, on the udp rail alone (rail.c). */
	RING_OPEN = 9,     /* what follows comes by that ring */
	RING_END = 10,     /* nothing more comes by it: please close it */
	RING_CLOSED = 11,  /* nothing more is read from it: what was in it from there on is to be sent again */
	RAIL_JOINED = 12,  /* the sender can be reached by that rail again */
	RING_WANTED = 13,  /* please offer one */
	RING_OFFER = 14,   /* here it is (ivshmem.c, verbs.c) */
	RING_REFUSED = 15, /* there is none, or it is of no use */
};

/* The rails, the best first. */
enum rail {
	RAIL_SHM = PM_RAIL_SHM, RAIL_IVSHMEM = PM_RAIL_IVSHMEM, RAIL_VERBS = PM_RAIL_VERBS, RAIL_UDP = PM_RAIL_UDP, RAILS = PM_RAILS
};
_Static_assert(PM_RAILS <= PM_RAILS_ROOM, "each rail has a place in the statistics");

/* A connection's socket, watched by the keeper. */
struct socket {
	int fd;
	enum socket_kind { SOCKET_LISTENER, SOCKET_WAKE, SOCKET_PACKETS, SOCKET_STRANGER, SOCKET_ORDER, SOCKET_IN, SOCKET_OUT } kind;
	bool closed;                 /* waits for the keeper to free it */
	bool root;                   /* a stranger's that is root, and not of this user: no messages */
	pid_t pid;                   /* the process on the other end, of a stranger's and what becomes of it */
	union {
		struct inbound *inbound;
		struct outbound *outbound;
		struct order *order;
		struct pm_endpoint *endpoint;
	};
	LIST_ENTRY(socket) entry;
};

/* A read that the peer has been asked to share; under way while there is an operation. */
struct help_wanted {
	struct operation *operation;
	uint32_t serial;
	uint32_t chunk, chunks;            /* bytes of one, and how many */
	uint32_t mine, theirs;             /* chunks claimed; theirs is known when nothing can be claimed any more */
	bool closed;                       /* that is now */
	bool early;                        /* closed before all was claimed: some of it nobody copies */
	bool forbidden;                    /* the peer did what cannot be: it is not asked again */
	int status;                        /* of what this side has read */
};

/* A read of the peer's that this side may share. */
struct help_asked {
	uint32_t serial;                   /* 0: there is none */
	uint32_t chunk, chunks, done;
	uint64_t address, key, length;
	uint64_t destination;              /* in the peer's memory */
};

/* A ring to a peer. Made by the owner, connected by the keeper, freed with the endpoint, or when its rail is left. */
struct outbound {
	/* Used for every message. */
	struct ring_writer ring;
	_Atomic int gone;                  /* -errno: nothing arrives any more */
	bool remote;                       /* the reader is another machine's process: no barrier reaches it (wait.c) */
	bool failed;                       /* its device cannot use it any more: it is to be left */
	struct verbs_ring *verbs;          /* or NULL */
	_Atomic uint32_t *asleep;          /* the reader wants to be woken */
	struct pm_statistics *statistics;  /* own */
	/* Used seldom. */
	_Atomic bool ready;                /* what is below has been filled in, and ring */
	struct pm_peer *peer;
	struct shared_page *page;          /* the peer's */
	size_t ring_size;
	int doorbell;
	pid_t pid;
	bool direct;                       /* its memory can be read and written by system call */
	struct help_wanted help;
	struct socket *socket;
	STAILQ_ENTRY(outbound) connecting;
	enum rail rail;
	uint32_t generation;               /* which of the rings to this peer it is */
	bool after_udp;                    /* messages have gone by udp before: it begins with a RING_OPEN there */
	/* Used while it is being left. */
	bool own;                          /* the ring is a copy, or none */
	bool end_told, closed;             /* the peer has been told, and has answered */
	uint64_t cells_closed, bytes_closed; /* up to where it has read */
};

/* A ring from a peer. Made by the keeper, then the owner's. */
struct inbound {
	struct ring_reader ring;
	struct pm_peer *peer;
	_Atomic int gone;                  /* not 0: the peer is; what is in the ring is still good */
	bool closed;                       /* it is a copy, and read to what was in it then (rail.c) */
	bool closed_told, asked_to_close;
	bool unfenced;
	bool ended;                        /* gone, and empty */
	size_t ring_size;
	struct pm_endpoint *endpoint;
	struct pm_address from;
	pid_t pid;                         /* who has made this connection, whatever it says to be */
	struct help_asked help;
	struct socket *socket;             /* the keeper's */
	struct inbound *next;              /* among the arrivals, those that wait, or those of which the end is to be told */
	enum rail rail;
	uint32_t generation;
	bool waits;                        /* for its RING_OPEN */
	uint64_t end, end_byte;            /* how far it is read, when closed */
	_Atomic uint32_t *asleep;          /* of a writer that does not see the endpoint's own (ivshmem.c) */
	uint64_t place;                    /* in that memory */
	struct verbs_ring *verbs;          /* or NULL */
};

struct event_node {
	STAILQ_ENTRY(event_node) entry;
	struct pm_event event;
};
STAILQ_HEAD(event_list, event_node);

struct pm_peer {
	struct outbound *out;              /* by which messages go, or NULL */
	struct udp_link *udp;
	void *data;
	struct pm_endpoint *endpoint;
	_Atomic bool over_udp;             /* messages go that way: out is NULL then */
	_Atomic bool leaving;              /* the ring is being left: nothing is sent until it is */
	_Atomic bool watched;              /* they go by a ring with a socket, which ends with the peer */
	_Atomic uint64_t no_room_ns;       /* when there was no room in another one last */
	unsigned joins_untold;             /* rails that can be used again, a bit each */
	unsigned rings_wanted;             /* rails by which the other may be reached, and has not been tried; a bit each */
	bool asked;                        /* it has been asked for one, and has not answered */
	struct unanswered *unanswered;     /* what it has said about rings; NULL: nothing yet */
	uint32_t offers;                   /* rings offered to it */
	struct verbs_ring *verbs_in;       /* from it, or NULL */
	struct outbound *outbound;         /* in use, asked for and not ready, or being left */
	_Atomic unsigned rings;            /* from it, that are being read: what it sent by udp comes after them */
	uint32_t generation;               /* of the last ring to it */
	_Atomic int status;                /* 0, or why nothing arrives any more */
	_Atomic unsigned copies;           /* operations by copies that wait for an answer */
	_Atomic bool awaited;              /* something else is, says the caller */
	unsigned services;                 /* of this peer, that wait to be answered */
	unsigned bulk_writes;              /* to it, that are beside the messages and not yet told by one */
	TAILQ_HEAD(, operation) reads;     /* from it, that bulk may come for: under the udp rail's lock */
	bool told_gone;
	struct event_node gone;
	struct pm_address address;
	UT_hash_handle hh;
};

/* A pm_read or pm_write that has not ended. */
struct operation {
	struct event_node node;            /* first: handed out when it has ended */
	uint64_t id;                       /* index in the endpoint's table, generation above */
	uint8_t *local;
	uint64_t address, key;
	size_t length, done;               /* done: moved, or sent off */
	bool checked;                      /* whose memory it is, for a direct write */
	bool alone;                        /* the peer is not, or no longer, asked for help */
	bool copied;                       /* goes through the rings */
	bool sent;                         /* all of it has been sent off, and an answer is awaited */
	bool ended;
	bool udp;                          /* the udp rail knows of it */
	bool begun;                        /* a write: handed over to that */
	enum bulk_state { BULK_SENT = 1, BULK_WRITTEN } bulk_state; /* a write by the verbs rail */
	struct pin *pin;                   /* a read's memory, registered with that, or NULL */
	/* Under that rail's lock. */
	uint64_t placed;                   /* a read: bytes that have come as bulk */
	struct flow_bulk bulk;             /* a write's bytes */
	TAILQ_ENTRY(operation) bulk_entry;
	TAILQ_ENTRY(operation) entry;
};

/* Something a peer has asked for, and is to be answered. */
struct service {
	struct pm_peer *peer;
	uint64_t id, address, key, length, done;
	int status;
	uint8_t answer;                    /* WRITE_DONE, READ_DATA or REGION_IS */
	bool begun;                        /* handed over to the udp rail */
	bool placed;                       /* handed over to the verbs rail */
	uint32_t generation;               /* of the ring that goes by, or 0 */
	uint32_t place_key;
	uint64_t place;                    /* where the bytes belong, and the device's key of that */
	struct flow_bulk bulk;             /* under that one's lock */
	TAILQ_ENTRY(service) entry;
};

/* How an owner sleeps by means of its own (wait.c). */
struct sleeper {
	int alarm;
	bool begun, alarm_set;
	bool starved;                      /* somebody was refused before it was begun */
	unsigned channels;                 /* of the endpoint's, when it was told its descriptors */
	uint64_t began_ns;
};

#define INBOUND_UDP ((struct inbound *)1)

struct pm_endpoint {
	/* Used for every message. */
	struct inbound **inbound;
	unsigned inbound_count, inbound_at;
	unsigned streak;                   /* messages taken from that one on end */
	struct inbound *current;           /* whose message the caller holds, or INBOUND_UDP, or NULL */
	struct udp_link *current_udp;      /* whose it then is */
	struct udp *udp;                   /* NULL: without that rail */
	struct verbs_endpoint *verbs;      /* NULL: no ring of that rail has been asked for */
	uint32_t current_length;
	unsigned turns;                    /* counts calls of pm_receive, for what is done only now and then */
	bool busy;                         /* there are operations, services, or peers to help */
	_Atomic bool attention;            /* the keeper has news */
	_Atomic bool unconfirmed;          /* the verbs rail may have sent what has not arrived */
	_Atomic uintptr_t inside;          /* the owner is in one of the functions, or holds a message (seize.c) */
	_Atomic uint32_t seized;           /* it has to stay outside */
	struct pm_statistics *statistics;
	/* Used seldom. */
	_Atomic(struct inbound *) arrivals;
	struct inbound *waiting;           /* rings whose RING_OPEN has not come */
	struct inbound *closing;           /* rings that have been read to their end, of which the peer is to be told */
	_Atomic bool switching;            /* rails are being left or joined */
	_Atomic unsigned in_use;           /* rails of which there is memory, a bit for each, as last seen by rail_progress */
	_Atomic bool held;                 /* it has been put aside */
	pthread_mutex_t seat;              /* who has seized it holds this */
	unsigned inbound_room;
	unsigned unfenced;                 /* peers that may not wake this endpoint */
	unsigned helping;                  /* peers whose reads can be shared */
	bool starved;                      /* somebody was refused for want of room */
	struct pm_context *context;
	uint32_t number;
	int doorbell;
	struct pm_address address;
	struct pm_peer *peers;             /* by address */
	struct event_list events;
	TAILQ_HEAD(, operation) operations;
	TAILQ_HEAD(, service) services;
	struct operation **table;          /* of operations by index */
	uint32_t *table_free;
	uint32_t table_room, table_free_count;
	struct shared_endpoint *shared;
	struct sleeper *sleeper;           /* NULL: nobody has asked for a descriptor */
	unsigned channels;                 /* completion channels that it has had, of the verbs rail */
};

struct pm_region {
	struct pm_context *context;
	uint64_t key;
	struct pin *pin;                   /* peers have been told the device's key of it; under the lock */
};

struct pm_context {
	uint8_t id[CONTEXT_ID_SIZE];
	uint8_t job_key[PM_JOB_KEY_SIZE];
	uint32_t ring_bytes;
	bool direct;
	_Atomic unsigned rails;            /* that may be used, a bit for each */
	struct area *area;                 /* memory shared with other guests, or NULL; under the lock */
	struct verbs *verbs;               /* the device of that rail, or NULL; under the lock */
	unsigned long patience_s;
	struct udp_links *links;           /* by which this machine is reached, NULL: by one */
	bool fenced;                       /* membarrier reaches this process */
	struct shared_page *page;
	int page_fd, epoll;
	struct socket *listener, *wake;
	pthread_t keeper;
	pthread_mutex_t lock;              /* of all below */
	bool stopping;
	_Atomic bool ticking;              /* the keeper looks after the udp rail's endpoints */
	_Atomic bool pacing;               /* and has been told to look after rails that are left or joined */
	_Atomic bool confirming;           /* and whether what the verbs rail has sent has arrived */
	uint64_t confirm_at_ns;            /* when it looks for that next, or 0; the keeper's */
	struct pm_endpoint *endpoints[SHARED_ENDPOINTS];
	uint32_t serial;                   /* of the last endpoint */
	STAILQ_HEAD(, outbound) connecting;
	LIST_HEAD(, socket) sockets, closed_sockets;
	TAILQ_HEAD(, order) orders;        /* that have not been carried out */
	struct pm_region *regions;         /* by their place in the table */
	uint32_t *region_free;             /* stack of entries that are not in use any more */
	uint32_t region_free_count, region_count; /* so many at the front have ever been in use */
};

/* address.c */
void address_make(struct pm_address *address, const uint8_t id[CONTEXT_ID_SIZE], uint32_t endpoint, uint32_t serial);
const uint8_t *address_id(const struct pm_address *address);
uint32_t address_endpoint(const struct pm_address *address);
bool address_valid(const struct pm_address *address);
int hex_parse(const char *text, uint8_t *bytes, size_t count);

/* memory.c */
int memory_make(const char *name, size_t size, bool others_read_only, void **memory);
int memory_map(int fd, size_t size, bool read_only, void **memory);

/* socket.c */
int socket_listen(const uint8_t id[CONTEXT_ID_SIZE]);
int socket_connect(const uint8_t id[CONTEXT_ID_SIZE]);
int socket_peer(int fd, pid_t *pid);
int socket_subject(int fd, pid_t *pid);
int socket_stranger(int fd, pid_t *pid, bool *root);
int socket_send(int fd, const void *data, size_t length, const int *fds, int count);
int socket_receive(int fd, void *data, size_t length, int *fds, int count);

/* keeper.c */
int keeper_start(struct pm_context *context);
void keeper_stop(struct pm_context *context);
void keeper_connect(struct pm_context *context, struct outbound *outbound);
void keeper_forget(struct pm_context *context, struct socket *socket);
void keeper_tick(struct pm_context *context);
void keeper_pace(struct pm_context *context);
void keeper_confirm(struct pm_context *context);
struct socket *keeper_watch(struct pm_context *context, int fd, enum socket_kind kind);
void keeper_watch_again(struct pm_context *context, struct socket *socket);
void endpoint_notice(struct pm_endpoint *endpoint);

/* welcome.c */
void welcome_stranger(struct pm_context *context, struct socket *socket);
int welcome_take(struct pm_context *context, struct outbound *outbound);

/* seize.c */
bool endpoint_stay_out(struct pm_endpoint *endpoint);
bool endpoint_seize(struct pm_endpoint *endpoint);
void endpoint_give_back(struct pm_endpoint *endpoint);

/* wait.c */
void sleeper_free(struct pm_endpoint *endpoint);

/* rail.c */
int rail_find(const char *name, size_t length, enum rail *rail);
void rail_notice(struct pm_endpoint *endpoint);
void rail_progress(struct pm_endpoint *endpoint);
bool rail_handle(struct pm_peer *peer, const struct ring_message *message);

/* order.c */
struct order;
void order_take(struct pm_context *context, struct socket *socket, const struct hello *hello, int memory);
void order_forget(struct pm_context *context, struct socket *socket);
void order_carry_out(struct pm_endpoint *endpoint);
void order_endpoint_closed(struct pm_context *context, uint32_t number);
bool order_progress(struct pm_context *context);
void order_forget_all(struct pm_context *context);

/* peer.c */
int peer_find(struct pm_endpoint *endpoint, const struct pm_address *address, struct pm_peer **found);

/* operation.c */
void operation_progress(struct pm_endpoint *endpoint);
void operation_end(struct operation *operation, int status);
void operation_again(struct operation *operation);
struct operation *operation_find(struct pm_peer *peer, uint64_t id);
void operation_peer_gone(struct pm_peer *peer, int status);
void operation_free(struct pm_endpoint *endpoint, struct operation *operation);
void operation_free_all(struct pm_endpoint *endpoint);

/* direct.c */
int direct_step(struct outbound *outbound, struct operation *operation);
int direct_read(struct outbound *outbound, void *here, uint64_t there, size_t length, size_t *moved);
int direct_write(struct outbound *outbound, const void *here, uint64_t there, size_t length, size_t *moved);

/* help.c */
#define HELP_LEAST (32u << 10) /* the shortest read, bytes, that is worth to be shared */
bool help_ask(struct outbound *outbound, struct operation *operation);
int help_step(struct outbound *outbound, struct operation *operation);
void help_peer_gone(struct pm_peer *peer);
bool help_leave(struct outbound *outbound);
void help_settle(struct pm_endpoint *endpoint);
void help_handle(struct inbound *inbound, const struct ring_message *message);
void help_progress(struct pm_endpoint *endpoint);
void help_forget(struct pm_endpoint *endpoint, struct inbound *inbound);

/* copied.c */
int copied_step(struct operation *operation);
void copied_handle(struct pm_peer *peer, const struct ring_message *message, enum rail rail);
void copied_progress(struct pm_endpoint *endpoint);
void copied_peer_gone(struct pm_peer *peer);

/* region.c */
int region_check(const struct shared_page *page, uint64_t key, uint64_t address, uint64_t length, unsigned access);

/* survey.c */
void statistics_copy(struct pm_statistics *to, const struct pm_statistics *from);

/* Whether a flag is set; what is read after that is not older. As two instructions, where compilers make three of an
 * atomic load and a branch; a thread sanitizer has to see the load. */
static inline bool flag_is_set(const _Atomic uint32_t *flag)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
	bool set;
	__asm__ volatile("cmpl $0, %1" : "=@ccne"(set) : "m"(*flag) : "memory");
	return set;
#else
	return atomic_load_explicit(flag, memory_order_acquire);
#endif
}

/* The owner comes in: false, if the endpoint has been put aside. While it is inside, nobody else touches what is its
 * own. Two stores, a look and a branch: who seizes an endpoint makes the owner's processor pass a barrier (seize.c). */
static inline bool endpoint_enter(struct pm_endpoint *endpoint)
{
#ifdef PM_FIXED_RAILS /* only to measure what it costs (bench/cost): no orders may be given then */
	return true;
#endif
	atomic_store_explicit(&endpoint->inside, 1, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	return likely(!flag_is_set(&endpoint->seized)) || endpoint_stay_out(endpoint);
}

static inline void endpoint_leave(struct pm_endpoint *endpoint)
{
#ifdef PM_FIXED_RAILS
	return;
#endif
	atomic_store_explicit(&endpoint->inside, (uintptr_t)endpoint->current, memory_order_release);
}

static inline bool rail_allowed(const struct pm_context *context, enum rail rail)
{
	return atomic_load_explicit(&context->rails, memory_order_relaxed) & 1u << rail;
}

static inline uint64_t clock_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Wakes who waits for an eventfd. */
static inline void bell_ring(int fd)
{
	uint64_t one = 1;
	(void)!write(fd, &one, sizeof(one));
}

/* Adds to a counter that only this thread writes and others may read. */
static inline void count(uint64_t *counter, uint64_t more)
{
	__atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + more, __ATOMIC_RELAXED);
}

/* Adds to one that owner and keeper both write: what it counts is rare. */
static inline void count_both(uint64_t *counter, uint64_t more)
{
	__atomic_fetch_add(counter, more, __ATOMIC_RELAXED);
}

#endif
