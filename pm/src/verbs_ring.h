/* verbs_ring.h - the queue pairs of the verbs rail, and what hangs on them; for the files verbs*.c alone. */
#ifndef PM_VERBS_RING_H
#define PM_VERBS_RING_H

#include <infiniband/verbs.h>

#include "pin.h"
#include "verbs.h"

/* Room for data of a ring, bytes. */
#define VERBS_DATA_BYTES (256u << 10)
/* Remote accesses that are on their way by one queue pair, at most; bytes of a piece of one, and its pieces, at most. */
#define VERBS_BULKS 32
#define VERBS_PIECE (64u << 20)
#define VERBS_PIECES 256
/* What a queue pair can be asked to send: the messages of a whole ring, pieces of remote accesses, and some credits. */
#define VERBS_CELLS (VERBS_DATA_BYTES / RING_DATA_PER_CELL)
#define VERBS_CREDITS 64
#define VERBS_SENDS (VERBS_CELLS + VERBS_PIECES + VERBS_BULKS + VERBS_CREDITS)
/* What may come to a gate before the endpoint looks: all that may be on its way to the rings there. */
#define VERBS_RECEIVES 8192
#define VERBS_COMES_TO_READER (VERBS_CELLS + VERBS_CREDITS)
#define VERBS_COMES_TO_WRITER VERBS_CREDITS
/* A completion is asked for every so many messages. */
#define VERBS_SIGNAL 16
/* Of the other's regions, so many are remembered. */
#define VERBS_REGIONS 64

/* The functions of libibverbs that are not in its header: the library is loaded when there is a device to be used. */
struct verbs_library {
	struct ibv_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *device);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *device);
	int (*query_port)(struct ibv_context *device, uint8_t port, struct ibv_port_attr *found);
	int (*query_gid_ex)(struct ibv_context *device, uint32_t port, uint32_t index, struct ibv_gid_entry *found, uint32_t flags, size_t size);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *device);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *base, size_t length, int access);
	int (*dereg_mr)(struct ibv_mr *mr);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *device);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *device, int entries, void *cookie, struct ibv_comp_channel *channel, int vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cookie);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned count);
	struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *wanted);
	int (*destroy_srq)(struct ibv_srq *srq);
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
	int (*destroy_qp)(struct ibv_qp *qp);
};
extern struct verbs_library verbs_library;

/* A context's device. */
struct verbs {
	struct pin_device pins_of; /* first: what the cache pins with */
	struct pin_cache *pins;
	struct pin_cache *regions; /* keeps nothing: a region is registered for itself, and no more when it is gone */
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_port_attr port_found;
	union ibv_gid gid;
	uint32_t piece;            /* bytes of a piece of a remote access, at most */
	uint8_t port;
	uint8_t gid_index;
};

/* Where what comes by some queue pairs is waited for. */
struct verbs_gate {
	struct ibv_cq *came;
	struct ibv_srq *srq;
	unsigned receives;         /* that are to be asked for again */
	unsigned promised;         /* that the rings may need at once */
	LIST_ENTRY(verbs_gate) entry;
};

/* What an endpoint has there. */
struct verbs_endpoint {
	struct verbs *verbs;
	struct ibv_comp_channel *channel;
	LIST_HEAD(, verbs_gate) gates;
	unsigned looks;
	struct verbs_ring *rings;  /* by number of the queue pair */
};

/* What a completion is of, in the order in which they were asked for. */
struct verbs_sent {
	uint32_t slots;            /* of the send queue that it frees */
	uint64_t operation;        /* id of a write of which it is the end, or 0 */
	struct pin *pin;           /* memory that is not needed any more, or NULL */
};

/* A region of the peer's. */
struct verbs_region {
	uint64_t key;              /* 0: none */
	uint64_t address, length;
	uint32_t remote_key;
	int status;                /* 0; -EINPROGRESS: it has been asked for; else why it cannot be used */
};

/* A ring, or the way to one, and the queue pair of it. */
struct verbs_ring {
	struct verbs_endpoint *of;
	struct pm_peer *peer;
	struct outbound *outbound; /* the writer's, or */
	struct inbound *inbound;   /* the reader's */
	struct verbs_gate *gate;
	unsigned promised;         /* receives, of the gate's */
	struct ibv_qp *qp;
	struct ibv_cq *sent;
	struct ibv_mr *mr;
	struct ring_memory *memory;
	uint32_t number;           /* of the queue pair */
	uint32_t sequence;
	uint32_t inline_bytes;     /* that can be sent without being looked up by the device */
	bool failed;
	/* What has been asked for, and not been heard of. */
	uint32_t used, unsignaled; /* slots of the send queue; the last of them that no completion will tell of */
	uint32_t first, count;     /* of those that will */
	unsigned bulks;            /* remote accesses among them */
	struct verbs_sent asked[VERBS_SENDS];
	/* The writer's. */
	uint64_t cell, byte;       /* up to which it has been sent */
	uint64_t far_address;
	uint32_t far_key;
	struct verbs_region regions[VERBS_REGIONS];
	/* The reader's. */
	uint64_t arrived;          /* cells */
	uint64_t cells_credited, bytes_credited;
	UT_hash_handle hh;
};

/* verbs_device.c */
struct pin *verbs_pin(struct pm_endpoint *endpoint, const void *base, size_t length, bool writable);
void verbs_unpin(struct pm_endpoint *endpoint, struct pin *pin);

/* verbs_turn.c */
bool verbs_send(struct verbs_ring *ring, struct ibv_send_wr *work, struct verbs_sent asked);
bool verbs_ask_for_more(struct verbs_gate *gate);
void verbs_poll_sent(struct verbs_ring *ring);

/* verbs_access.c */
void verbs_give_back(struct verbs_ring *ring);
void verbs_written(struct pm_endpoint *endpoint, uint64_t id);

static inline struct ibv_mr *verbs_mr(const struct pin *pin)
{
	return pin->handle;
}

#endif
