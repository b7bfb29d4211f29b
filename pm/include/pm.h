/*
 * pm.h - PM, a user-level message library for parallel programs: reliable ordered messages without a system call,
 * and remote memory access without a copy, between the processes of one job.
 *
 * After PM of the RWC PC Cluster II (Tezuka et al.): messages received in place, remote memory write, several
 * channels in a process. pm(7) is the overview; each function has a page of its own in section 3.
 *
 * Functions return 0 or a positive count on success and -errno on failure, and print nothing. An endpoint, with its
 * peers, is used by one thread at a time; different endpoints may be used by different threads at once, and functions
 * of a context by any thread.
 */
#ifndef PM_H
#define PM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The longest message, bytes. Longer things travel by remote memory access. */
#define PM_MAX_MESSAGE 16384

/* Bytes of a job key. */
#define PM_JOB_KEY_SIZE 32

/* A process's membership in a job. */
struct pm_context;
/* A channel of a context: it has an address, sends and receives. */
struct pm_endpoint;
/* What an endpoint knows of another endpoint, wherever it is. Lives as long as the endpoint. */
struct pm_peer;
/* A piece of memory that others of the job may read or write. */
struct pm_region;

/* Where an endpoint is to be found; says nothing of a host, so it stays true when the process is moved. Compare and
 * copy it as bytes. */
struct pm_address {
	uint8_t bytes[48];
};

/* How to open a context. Zeroed members mean the default. */
struct pm_options {
	size_t size;             /* of this structure, as the caller knows it */
	const uint8_t *job_key;  /* PM_JOB_KEY_SIZE bytes that the job's processes share; default: $PM_JOB_KEY, in
	                          * hexadecimal, else zeroes. What comes from a process with another key is dropped. */
	size_t ring_bytes;       /* room for what one peer may have on its way to an endpoint, a power of two of at
	                          * least 65536; default: $PM_RING_BYTES, else 262144 */
	int no_direct;           /* not 0: never read or write another process's memory by system call (cross-memory
	                          * attach), but copy through the rings; default: $PM_CMA is "0" */
};

int pm_context_open(const struct pm_options *options, struct pm_context **context);
int pm_context_close(struct pm_context *context);

int pm_endpoint_open(struct pm_context *context, struct pm_endpoint **endpoint);
int pm_endpoint_close(struct pm_endpoint *endpoint);
int pm_endpoint_address(struct pm_endpoint *endpoint, struct pm_address *address);

/* Bytes of an address written as text, with the final zero. */
#define PM_ADDRESS_TEXT (2 * sizeof(struct pm_address) + 1)
void pm_address_format(const struct pm_address *address, char text[PM_ADDRESS_TEXT]);
int pm_address_parse(const char *text, struct pm_address *address);

/* Finds the peer with that address, or makes it. No connection is made before it is first used. */
int pm_peer_get(struct pm_endpoint *endpoint, const struct pm_address *address, struct pm_peer **peer);
void pm_peer_address(const struct pm_peer *peer, struct pm_address *address);
/* 0, or -EHOSTUNREACH where no process answers to the address, -EHOSTDOWN when the process is gone, -EACCES when it
 * has another job key, -ETIMEDOUT when it has been silent for as long as $PM_PATIENCE says (pm(7)). */
int pm_peer_status(const struct pm_peer *peer);
/* Says whether something is awaited of the peer that it alone can bring: a peer of which nothing is awaited is not asked
 * whether it is there. What pm_write, pm_read and messages on their way wait for is known without. */
void pm_peer_await(struct pm_peer *peer, int awaited);
/* A pointer of the caller's own, NULL at first. */
void pm_peer_set_data(struct pm_peer *peer, void *data);
void *pm_peer_data(const struct pm_peer *peer);

/* A message that has arrived. */
struct pm_message {
	struct pm_peer *peer; /* who sent it */
	const void *data;     /* where it lies, aligned to 8 bytes; not to be written; the sender, if hostile, can
	                       * still change it: read what is decided upon only once */
	uint32_t length;      /* bytes */
	uint8_t kind;         /* as given to pm_commit or pm_send: the callers' own */
};

/* Sends a message of the count parts, copied: they may be changed at once. -EAGAIN: no room now, or the connection
 * is still being made, or leaves its rail, or the endpoint has been put aside; call pm_receive, then try again. */
int pm_send(struct pm_peer *peer, uint8_t kind, const struct iovec *parts, int count);
/* The same without that copy: gives room for a message of length bytes, to be filled and then sent by pm_commit.
 * Between the two nothing else may be done with the endpoint; a reservation that is not committed is just left. As long
 * as it is open, or a message is held, the endpoint changes no rail. */
int pm_reserve(struct pm_peer *peer, uint32_t length, void **buffer);
void pm_commit(struct pm_peer *peer, uint8_t kind);

/* Takes the next message, if there is one: 1, and it must be given back by pm_release before the next pm_receive;
 * 0: none now. Messages of one peer come in the order in which they were sent. All that an endpoint does, it does
 * inside this function and the sending ones. */
int pm_receive(struct pm_endpoint *endpoint, struct pm_message *message);
void pm_release(struct pm_endpoint *endpoint, const struct pm_message *message);

enum pm_access {
	PM_REMOTE_READ = 1,
	PM_REMOTE_WRITE = 2,
};

/* Lets others of the job read or write length bytes at base, by the region's key, until it is deregistered. */
int pm_register(struct pm_context *context, void *base, size_t length, unsigned access, struct pm_region **region);
int pm_deregister(struct pm_region *region);
uint64_t pm_region_key(const struct pm_region *region);
/* 0 if a key of this context's allows that access, of all those kinds, to length bytes at address, else -EACCES: for who
 * makes an access himself that a peer has asked for. */
int pm_region_check(const struct pm_context *context, uint64_t key, uint64_t address, size_t length, unsigned access);

/* Writes length bytes from local to the peer's memory at address, inside the region of that key, or reads them from
 * there. The end is told by pm_next_event; local must stay until then. When a write has ended the bytes are in the
 * peer's memory. No order holds between these, or between them and messages, before their end. */
int pm_write(struct pm_peer *peer, const void *local, size_t length, uint64_t address, uint64_t key, void *cookie);
int pm_read(struct pm_peer *peer, void *local, size_t length, uint64_t address, uint64_t key, void *cookie);

enum pm_event_type {
	PM_WRITE_DONE = 1,
	PM_READ_DONE = 2,
	PM_PEER_GONE = 3, /* the last that is heard of a peer that has sent something, or was sent something */
};

struct pm_event {
	enum pm_event_type type;
	int status;           /* 0 or -errno: -EACCES bad key, bounds or access; -EHOSTDOWN; -EFAULT */
	struct pm_peer *peer;
	void *cookie;         /* of pm_write or pm_read */
};

/* 1: *event is the next event, 0: there is none. */
int pm_next_event(struct pm_endpoint *endpoint, struct pm_event *event);

/* Sleeps until a message or an event may be there, or timeout_ms milliseconds have passed (-1: no limit). 1: look
 * again, 0: the time is over, -EINTR: a signal came. Costs nothing while it sleeps; may wake for nothing. */
int pm_wait(struct pm_endpoint *endpoint, int timeout_ms);

/* The same where the caller sleeps itself, on other things as well. Between begin and end one of the descriptors becomes
 * readable as soon as pm_wait would wake, or timeout_ms milliseconds after begin. They are the endpoint's, and not to be
 * read from; begin tells when there is a new one. Returns how many there are, or -errno. */
#define PM_WAIT_DESCRIPTORS 4 /* the most */
int pm_wait_descriptors(struct pm_endpoint *endpoint, int descriptors[PM_WAIT_DESCRIPTORS]);
/* 0: now one may sleep on them; 1: look again first; 2: there is a new one, ask for them and begin anew; -errno. */
int pm_wait_begin(struct pm_endpoint *endpoint, int timeout_ms);
/* No longer asleep: others need not ring any more. */
void pm_wait_end(struct pm_endpoint *endpoint);

/* The rails, of which pm(7) tells: places in pm_statistics.rails. */
enum pm_rail {
	PM_RAIL_SHM,
	PM_RAIL_IVSHMEM,
	PM_RAIL_VERBS,
	PM_RAIL_UDP,
	PM_RAILS, /* how many there are; there is room for PM_RAILS_ROOM */
};
#define PM_RAILS_ROOM 8

/* What has gone by one of them. */
struct pm_rail_statistics {
	uint64_t messages, message_bytes; /* sent */
	uint64_t accesses, access_bytes;  /* remote reads and writes of this side that have ended */
};

/* What an endpoint has done so far. Counted without atomic operations: a reader in another thread or process sees
 * each figure soon, not all of one instant. */
struct pm_statistics {
	uint64_t messages_sent, message_bytes_sent;
	uint64_t messages_received, message_bytes_received;
	uint64_t writes, write_bytes;  /* ended, of this side */
	uint64_t reads, read_bytes;
	uint64_t direct_bytes;         /* of those, moved without a copy */
	uint64_t no_room;              /* sends refused with -EAGAIN */
	uint64_t dropped;              /* things from others that made no sense, or were not allowed */
	uint64_t waits, wait_ns;       /* pm_wait that slept, and for how long */
	uint64_t links_out, links_in;  /* connections made, and accepted */
	uint64_t switches;             /* to another rail, of messages to a peer */
	uint64_t pin_hits, pin_misses; /* memory of remote accesses that was found pinned for a device, or was not */
	uint64_t pinned_bytes;         /* that are now */
	uint64_t paths_set_aside;      /* how often one of several to a peer was, as nothing came by it */
	uint64_t reserved[12];         /* 0 */
	struct pm_rail_statistics rails[PM_RAILS_ROOM]; /* by enum pm_rail */
};

void pm_statistics(const struct pm_endpoint *endpoint, struct pm_statistics *statistics);

/* Orders to a process of this user on this machine, named by the address of one of its endpoints; who is root may give
 * them to anybody's. They return when the order has been carried out: 0, -ETIMEDOUT when it has not been within
 * timeout_ms milliseconds (-1: no limit; it holds all the same), or why it cannot be. */

/* Leave that rail ("shm", "ivshmem", "verbs"): give all its memory back at once, and go on over the next one. -EOPNOTSUPP:
 * there is none. */
int pm_order_leave(const struct pm_address *process, const char *rail, int timeout_ms);
/* The rail may be used again, and is taken again where it can be. */
int pm_order_join(const struct pm_address *process, const char *rail, int timeout_ms);
/* The same of the rail ivshmem, with the memory that this guest shares with others: a path, a colon, and which part of
 * how many is this guest's, as in $PM_IVSHMEM (pm(7)). -EBUSY: the process has one. */
int pm_order_join_memory(const struct pm_address *process, const char *memory, int timeout_ms);
/* Put the endpoint aside: from the answer on it neither sends nor receives anything, and all that it has sent has
 * arrived. Its calls find nothing and have no room meanwhile. */
int pm_order_save(const struct pm_address *endpoint, int timeout_ms);
/* Take it up again, as it was. */
int pm_order_restore(const struct pm_address *endpoint, int timeout_ms);
/* The endpoint `gone' is no more: who waits for it waits no longer (PM_PEER_GONE). */
int pm_order_gone(const struct pm_address *process, const struct pm_address *gone, int timeout_ms);

/* One endpoint of any process of this user on this machine; root sees those of all users. */
struct pm_survey_entry {
	struct pm_address address;
	int pid;
	struct pm_statistics statistics;
};

/* Calls each with every endpoint found, until it returns something else than 0, which is returned then. */
int pm_survey(int (*each)(const struct pm_survey_entry *entry, void *argument), void *argument);

/* The library's version, "MAJOR.MINOR.PATCH". */
const char *pm_version(void);

#ifdef __cplusplus
}
#endif
#endif
