/*
 * verbs_hostile.h - a peer on the verbs rail that does what it likes, and the process that is to bear it, in one process.
 * The peer has a device of its own, and says by udp what it likes. It knows all that it would have been told, and looks it
 * up in the structures of the process under test.
 */
#ifndef VERBS_HOSTILE_H
#define VERBS_HOSTILE_H

#include <sched.h>
#include <sys/mman.h>

#include "rail.h"
#include "udp_hostile.h"
#include "verbs_ring.h"

#define GUARDED 16384u                     /* octets of memory that the peer may write to or read, those before and after it not */
/* The peer's memory: the ring that it reads, where it wants the octets of reads, and what it sends from. */
#define HOSTILE_PLACE (320u << 10)
#define HOSTILE_STAGE (HOSTILE_PLACE + (64u << 10))
#define HOSTILE_BYTES (HOSTILE_STAGE + (64u << 10))
#define HOSTILE_RECEIVES 4096
#define CANARY 0xc7
#define FILLING 0x11

/* Must hold; also where assertions are not compiled. */
#define SURELY(condition) \
	do { \
		if (!(condition)) \
			abort(); \
	} while (0)

struct hostile {
	/* The process under test. */
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_region *region;
	struct udp_link *link;
	struct pm_peer *peer;
	/* The peer. */
	struct ibv_qp *writer, *reader;    /* of its ring to that process, and of the one from it; NULL: none */
	uint32_t generation;               /* of the last ring to it */
	unsigned posted;                   /* requests whose ends have not been seen */
	bool failed;                       /* one of the last has */
	bool unattended;                   /* the process under test does not look, however long a request takes */
};

/* The peer's device, and memory. It stays. */
static struct hostile_device {
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_cq *sent, *came;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	uint8_t *memory;
	unsigned receives;                 /* that are to be asked for */
} hostile_device;

/* What the process under test lets the peer read and write, and its own buffer; with canaries around. */
static uint8_t *guarded_open, *guarded_own;

/* Made the first time, and filled anew each time. */
static inline void guard(uint8_t **place)
{
	uint8_t *memory = *place ? *place - GUARDED : mmap(NULL, 3 * GUARDED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	SURELY(memory != MAP_FAILED);
	memset(memory, CANARY, 3 * GUARDED);
	memset(memory + GUARDED, FILLING, GUARDED);
	*place = memory + GUARDED;
}

/* Nothing was written where it must not be, and the peer has got nothing of what it may not read. */
static inline bool hostile_harmless(void)
{
	static uint8_t canaries[GUARDED];
	memset(canaries, CANARY, GUARDED);
	return !memcmp(guarded_open - GUARDED, canaries, GUARDED) && !memcmp(guarded_open + GUARDED, canaries, GUARDED) &&
	       !memcmp(guarded_own - GUARDED, canaries, GUARDED) && !memcmp(guarded_own + GUARDED, canaries, GUARDED) &&
	       !memmem(hostile_device.memory, HOSTILE_STAGE, canaries, 16);
}

static inline void hostile_ask_for_more(void)
{
	struct ibv_recv_wr more = {0}, *bad;
	for (; hostile_device.receives; hostile_device.receives--)
		SURELY(!ibv_post_srq_recv(hostile_device.srq, &more, &bad));
}

/* After the process under test has loaded the library. */
static inline void hostile_open_device(void)
{
	struct hostile_device *own = &hostile_device;
	struct ibv_srq_init_attr wanted = {.attr = {.max_wr = HOSTILE_RECEIVES, .max_sge = 1}};
	if (own->device)
		return;
	struct ibv_device **list = verbs_library.get_device_list(NULL);
	SURELY(list && list[0] && (own->device = verbs_library.open_device(list[0])));
	verbs_library.free_device_list(list);
	own->memory = mmap(NULL, HOSTILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	SURELY(own->memory != MAP_FAILED);
	SURELY((own->pd = verbs_library.alloc_pd(own->device)));
	SURELY((own->sent = verbs_library.create_cq(own->device, 4096, NULL, NULL, 0)));
	SURELY((own->came = verbs_library.create_cq(own->device, 2 * HOSTILE_RECEIVES, NULL, NULL, 0)));
	SURELY((own->srq = verbs_library.create_srq(own->pd, &wanted)));
	own->mr = verbs_library.reg_mr(own->pd, own->memory, HOSTILE_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	SURELY(own->mr);
	own->receives = HOSTILE_RECEIVES;
	hostile_ask_for_more();
}

static inline void hostile_register(struct hostile *hostile)
{
	SURELY(!pm_register(hostile->context, guarded_open, GUARDED, PM_REMOTE_READ | PM_REMOTE_WRITE, &hostile->region));
}

/* The context, which stays, as its device does; false: there is no device. */
static inline bool hostile_context(struct hostile *hostile)
{
	static struct pm_context *context;
	struct pm_options options = {.size = sizeof(options), .ring_bytes = 65536};
	setenv("PM_RAILS", "verbs,udp", 1);
	setenv("PM_ADDRESS", "127.0.0.1", 1);
	if (!context)
		SURELY(!pm_context_open(&options, &context));
	hostile->context = context;
	atomic_fetch_or(&context->rails, 1u << RAIL_VERBS);
	if (!verbs_usable(context))
		return false;
	hostile_open_device();
	return true;
}

/* False: there is no device. */
static inline bool hostile_open(struct hostile *hostile)
{
	*hostile = (struct hostile){0};
	if (!hostile_context(hostile))
		return false;
	guard(&guarded_open);
	guard(&guarded_own);
	memset(hostile_device.memory, 0, HOSTILE_BYTES);
	SURELY(!pm_endpoint_open(hostile->context, &hostile->endpoint) && hostile->endpoint->udp);
	hostile_register(hostile);
	hostile->link = hostile_meet(hostile->endpoint);
	hostile->peer = hostile->link->peer;
	return true;
}

static inline void hostile_receive(struct hostile *hostile)
{
	hostile_receive_all(hostile->endpoint);
}

/* What is about rings is seen by the first look, and handled by the second. */
static inline void hostile_say(struct hostile *hostile, uint8_t type, const void *data, uint32_t length)
{
	hostile_arrive(hostile->link, type, data, length);
	hostile_receive(hostile);
	hostile_receive(hostile);
}

static inline void hostile_tell(struct hostile *hostile, uint8_t type, uint32_t generation, uint64_t cells, uint64_t bytes)
{
	struct ring_news news = {generation, RAIL_VERBS, cells, bytes};
	hostile_say(hostile, type, &news, sizeof(news));
}

/* Waits until what was posted is done. Where there are no receives for it, the process under test has to look, which a
 * request that is merely slow brings about, too. */
static inline void hostile_settle(struct hostile *hostile)
{
	struct ibv_wc done[64];
	for (unsigned tries = 1; hostile->posted; tries++) {
		int n = ibv_poll_cq(hostile_device.sent, 64, done);
		for (int i = 0; i < n; i++)
			hostile->failed |= done[i].status != IBV_WC_SUCCESS;
		hostile->posted -= n;
		if (!n)
			sched_yield();
		if (tries % 10000 == 0 && !hostile->unattended)
			hostile_receive(hostile);
	}
	for (int n = 64; n == 64;) {
		n = ibv_poll_cq(hostile_device.came, 64, done);
		hostile_device.receives += n;
	}
	hostile_ask_for_more();
}

static inline void hostile_hang_up(struct hostile *hostile, struct ibv_qp **qp)
{
	hostile_settle(hostile);
	if (*qp)
		verbs_library.destroy_qp(*qp);
	*qp = NULL;
}

/* A queue pair of the peer's, in the place of the one before. */
static inline void hostile_queue_pair(struct hostile *hostile, struct ibv_qp **qp)
{
	struct ibv_qp_init_attr wanted = {
		.send_cq = hostile_device.sent, .recv_cq = hostile_device.came, .srq = hostile_device.srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 1024, .max_send_sge = 1},
	};
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	hostile_hang_up(hostile, qp);
	*qp = verbs_library.create_qp(hostile_device.pd, &wanted);
	SURELY(*qp && !verbs_library.modify_qp(*qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

/* Connects it to that of a ring of the process under test. */
static inline void hostile_connect(struct ibv_qp *qp, const struct verbs_ring *ring)
{
	struct ibv_qp_attr ready = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = ring->number, .rq_psn = ring->sequence,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.port_num = 1, .is_global = 1, .grh = {.dgid = ring->of->verbs->gid, .sgid_index = 1, .hop_limit = 1}},
	};
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 1, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	SURELY(!verbs_library.modify_qp(qp, &ready, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	SURELY(!verbs_library.modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Where a queue pair of the peer's is. */
static inline struct verbs_where hostile_where(const struct hostile *hostile, const struct ibv_qp *qp)
{
	struct verbs_where place = {.queue_pair = qp->qp_num, .mtu = IBV_MTU_1024};
	memcpy(place.gid, hostile->context->verbs->gid.raw, sizeof(place.gid));
	return place;
}

/* The peer asks for a ring, and is connected to it; false: it does not get one. */
static inline bool hostile_connected(struct hostile *hostile)
{
	if (!hostile->context->verbs)
		return false; /* the rail has been left */
	hostile_queue_pair(hostile, &hostile->writer);
	struct verbs_wanted wanted = {++hostile->generation, RAIL_VERBS, hostile_where(hostile, hostile->writer)};
	hostile_say(hostile, RING_WANTED, &wanted, sizeof(wanted));
	const struct verbs_ring *ring = hostile->peer->verbs_in;
	if (!ring || ring->inbound->generation != hostile->generation)
		return false;
	hostile_connect(hostile->writer, ring);
	return true;
}

/* And begins to write to it. */
static inline bool hostile_ask(struct hostile *hostile)
{
	if (!hostile_connected(hostile))
		return false;
	hostile_tell(hostile, RING_OPEN, hostile->generation, 0, 0);
	return true;
}

/* A good offer of a ring to be read by the peer; false: none is wanted. */
static inline bool hostile_offer(struct hostile *hostile, struct verbs_offer *offer)
{
	const struct outbound *outbound = hostile->peer->outbound;
	if (!outbound || !outbound->verbs || outbound->ready)
		return false;
	hostile_queue_pair(hostile, &hostile->reader);
	hostile_connect(hostile->reader, outbound->verbs);
	*offer = (struct verbs_offer){
		.generation = outbound->generation, .rail = RAIL_VERBS, .where = hostile_where(hostile, hostile->reader),
		.key = hostile_device.mr->rkey, .data_bytes = VERBS_DATA_BYTES, .address = (uintptr_t)hostile_device.memory,
	};
	return true;
}

/* Posts a request with so many octets of the peer's memory; it fails if there is no queue pair that can. */
static inline void hostile_post(struct hostile *hostile, struct ibv_qp *qp, struct ibv_send_wr work, uint32_t length)
{
	struct ibv_sge part = {(uintptr_t)hostile_device.memory + HOSTILE_STAGE, length, hostile_device.mr->lkey};
	struct ibv_send_wr *bad;
	work.sg_list = &part;
	work.num_sge = length > 0;
	work.send_flags = IBV_SEND_SIGNALED;
	if (!qp || ibv_post_send(qp, &work, &bad))
		hostile->failed = true;
	else
		hostile->posted++;
	hostile_settle(hostile);
}

/* An immediate to either side of a ring, with a SEND of so many octets. */
static inline void hostile_immediate(struct hostile *hostile, struct ibv_qp *qp, uint32_t immediate, uint32_t length)
{
	hostile_post(hostile, qp, (struct ibv_send_wr){.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(immediate)}, length);
}

/* Writes so many staged octets into the ring to the process under test, from that octet on. */
static inline void hostile_write(struct hostile *hostile, enum ibv_wr_opcode opcode, uint64_t at, uint32_t length, uint32_t immediate)
{
	const struct verbs_ring *ring = hostile->peer->verbs_in;
	if (!ring)
		return;
	hostile_post(hostile, hostile->writer, (struct ibv_send_wr){
		.opcode = opcode, .imm_data = htobe32(immediate),
		.wr.rdma = {.remote_addr = (uintptr_t)ring->memory + at, .rkey = ring->mr->rkey},
	}, length);
}

/* The next message of the ring as a good writer would write it. */
static inline void hostile_message(struct hostile *hostile, uint8_t type, const void *data, uint32_t length)
{
	const struct verbs_ring *ring = hostile->peer->verbs_in;
	if (!ring)
		return;
	const struct ring_reader *reader = &ring->inbound->ring;
	const uint8_t *place = reader->memory->cells[ring->arrived & reader->cell_mask].payload;
	if (length > RING_INLINE)
		place = reader->data + (ring_place(reader->byte, length, reader->data_mask) & reader->data_mask);
	if (length)
		memcpy(hostile_device.memory + HOSTILE_STAGE, data, length);
	hostile_write(hostile, IBV_WR_RDMA_WRITE_WITH_IMM, place - (uint8_t *)ring->memory, length, ring_control(0, 0, type, length));
	hostile_receive(hostile);
}

static inline void hostile_allow(struct hostile *hostile, bool allowed)
{
	if (allowed)
		atomic_fetch_or(&hostile->context->rails, 1u << RAIL_VERBS);
	else
		atomic_fetch_and(&hostile->context->rails, ~(1u << RAIL_VERBS));
	rail_notice(hostile->endpoint);
	hostile_receive(hostile);
}

/* Leaves the rail, so that nothing is waited for that the peer would have to do, and ends. */
static inline void hostile_close(struct hostile *hostile)
{
	hostile_hang_up(hostile, &hostile->writer);
	hostile_hang_up(hostile, &hostile->reader);
	hostile_allow(hostile, false);
	for (int i = 0; i < 100 && hostile->endpoint->verbs; i++)
		hostile_receive(hostile);
	hostile_part(hostile->link);
	pm_endpoint_close(hostile->endpoint);
	pm_deregister(hostile->region);
}

#endif
