/*
 * verbs.c - the verbs rail: rings in the memory of their readers, which the writers' devices write into (RDMA, by reliable
 * connections). Each ring has a pair of queue pairs of its own.
 *
 * The writer has a ring of the same shape in memory of its own, which is sent off message by message
 * (RDMA_WRITE_WITH_IMM), each to the place that it has in the other: a short one into its cell, a longer one into the
 * data. What a cell's control word has to say is the immediate, and the word itself is written by the reader when the
 * completion says that all of the message is there; so nothing is relied on about the order in which a device writes
 * memory. How much has been taken comes back the same way (a SEND_WITH_IMM without data). What has been written, taken and
 * read is thus known on both sides as with rings in shared memory, and leaving a ring is no different (rail.c).
 *
 * Large remote accesses are RDMA writes on the same queue pairs (verbs_access.c), so what is said after them is read after
 * them.
 *
 * Peers find each other by udp: the writer makes its queue pair and asks for a ring (RING_WANTED), the reader makes the
 * ring and its queue pair, connected, and offers it (RING_OFFER), and the writer connects its own and begins (RING_OPEN);
 * or either says that it cannot (RING_REFUSED). A queue pair that fails - a cable, or a peer that has moved to another
 * host - ends the ring, not the peer: it is left, and not tried again before one of the two is told to join the rail.
 */
#include "verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "link.h"
#include "ring.h"
#include "verbs_ring.h"

/* A packet that is not acknowledged is sent again after 4.096 us times 2 to that power, so often (InfiniBand
 * Architecture Specification 1, 9.7.6.1.3: 0.5 s); a receiver without room is tried again for ever (7), after 0.64 ms (12). */
#define TIMEOUT 17
#define RETRIES 7
#define ROOM_RETRIES 7
#define ROOM_TIMER 12
#define HOPS 64
#define SEQUENCE_MASK 0xffffff
#define INLINE_BYTES 64

static size_t memory_bytes(void)
{
	return ring_size(VERBS_DATA_BYTES);
}

static void gate_free(struct verbs_gate *gate)
{
	if (gate->srq)
		verbs_library.destroy_srq(gate->srq);
	if (gate->came)
		verbs_library.destroy_cq(gate->came);
	free(gate);
}

/* A gate with room for a ring to which so much may come at once; NULL: there is none. */
static struct verbs_gate *find_gate(struct verbs_endpoint *own, unsigned promised)
{
	struct verbs_gate *gate;
	struct ibv_srq_init_attr wanted = {.attr = {.max_wr = VERBS_RECEIVES, .max_sge = 1}};
	LIST_FOREACH(gate, &own->gates, entry)
		if (gate->promised + promised <= VERBS_RECEIVES)
			return gate;
	gate = calloc(1, sizeof(*gate));
	if (!gate)
		return NULL;
	gate->receives = VERBS_RECEIVES;
	gate->came = verbs_library.create_cq(own->verbs->device, VERBS_RECEIVES, NULL, own->channel, 0);
	gate->srq = gate->came ? verbs_library.create_srq(own->verbs->pd, &wanted) : NULL;
	if (!gate->srq || !verbs_ask_for_more(gate)) {
		gate_free(gate);
		return NULL;
	}
	LIST_INSERT_HEAD(&own->gates, gate, entry);
	return gate;
}

static void endpoint_free(struct verbs_endpoint *own)
{
	while (!LIST_EMPTY(&own->gates)) {
		struct verbs_gate *gate = LIST_FIRST(&own->gates);
		LIST_REMOVE(gate, entry);
		gate_free(gate);
	}
	if (own->channel)
		verbs_library.destroy_comp_channel(own->channel);
	free(own);
}

/* What an endpoint needs for its first ring; false: it is not to be had. */
static bool endpoint_open(struct pm_endpoint *endpoint)
{
	struct verbs *verbs = endpoint->context->verbs;
	struct verbs_endpoint *own = endpoint->verbs;
	if (own)
		return true;
	own = calloc(1, sizeof(*own));
	if (!own)
		return false;
	own->verbs = verbs;
	LIST_INIT(&own->gates);
	own->channel = verbs_library.create_comp_channel(verbs->device);
	if (own->channel && !fcntl(own->channel->fd, F_SETFL, O_NONBLOCK)) {
		endpoint->verbs = own;
		endpoint->channels++;
		return true;
	}
	endpoint_free(own);
	return false;
}

/* Gives back what no ring needs any more. */
void verbs_endpoint_close(struct pm_endpoint *endpoint)
{
	struct verbs_endpoint *own = endpoint->verbs;
	if (!own || own->rings)
		return;
	endpoint->verbs = NULL;
	endpoint_free(own);
}

static void ring_free(struct verbs_ring *ring)
{
	if (ring->qp)
		verbs_library.destroy_qp(ring->qp);
	if (ring->gate)
		ring->gate->promised -= ring->promised;
	if (ring->sent)
		verbs_library.destroy_cq(ring->sent);
	if (ring->mr)
		verbs_library.dereg_mr(ring->mr);
	if (ring->memory)
		munmap(ring->memory, memory_bytes());
	free(ring);
}

static bool make_queue_pair(struct verbs_ring *ring, int access)
{
	struct verbs *verbs = ring->of->verbs;
	struct ibv_qp_init_attr wanted = {
		.send_cq = ring->sent, .recv_cq = ring->gate->came, .srq = ring->gate->srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = VERBS_SENDS, .max_send_sge = 1, .max_inline_data = INLINE_BYTES},
	};
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = verbs->port, .qp_access_flags = access & IBV_ACCESS_REMOTE_WRITE,
	};
	ring->qp = verbs_library.create_qp(verbs->pd, &wanted);
	if (!ring->qp) {
		wanted.cap = (struct ibv_qp_cap){.max_send_wr = VERBS_SENDS, .max_send_sge = 1};
		ring->qp = verbs_library.create_qp(verbs->pd, &wanted);
	}
	if (!ring->qp)
		return false;
	ring->inline_bytes = wanted.cap.max_inline_data;
	ring->number = ring->qp->qp_num;
	ring->sequence = randombytes_random() & SEQUENCE_MASK;
	return !verbs_library.modify_qp(ring->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* Memory of a ring's shape, and a queue pair; NULL: not to be had. */
static struct verbs_ring *ring_make(struct pm_peer *peer, int access, unsigned promised)
{
	struct verbs_ring *ring = endpoint_open(peer->endpoint) ? calloc(1, sizeof(*ring)) : NULL;
	if (!ring)
		return NULL;
	struct verbs *verbs = peer->endpoint->verbs->verbs;
	ring->of = peer->endpoint->verbs;
	ring->peer = peer;
	ring->gate = find_gate(ring->of, promised);
	if (ring->gate)
		ring->gate->promised += ring->promised = promised;
	ring->memory = mmap(NULL, memory_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (ring->memory == MAP_FAILED)
		ring->memory = NULL;
	else
		ring->mr = verbs_library.reg_mr(verbs->pd, ring->memory, memory_bytes(), access);
	if (ring->mr && ring->gate)
		ring->sent = verbs_library.create_cq(verbs->device, VERBS_SENDS, ring, ring->of->channel, 0);
	if (!ring->sent || !make_queue_pair(ring, access)) {
		ring_free(ring);
		return NULL;
	}
	HASH_ADD(hh, ring->of->rings, number, sizeof(ring->number), ring);
	return ring;
}

static struct verbs_where where(const struct verbs_ring *ring)
{
	const struct verbs *verbs = ring->of->verbs;
	struct verbs_where place = {
		.queue_pair = ring->number, .sequence = ring->sequence, .lid = verbs->port_found.lid, .mtu = verbs->port_found.active_mtu,
	};
	memcpy(place.gid, verbs->gid.raw, sizeof(place.gid));
	return place;
}

/* Connects a queue pair to the other's. */
static bool connect_to(struct verbs_ring *ring, const struct verbs_where *far)
{
	const struct verbs *verbs = ring->of->verbs;
	uint8_t mtu = verbs->port_found.active_mtu;
	struct ibv_qp_attr ready = {
		.qp_state = IBV_QPS_RTR, .path_mtu = far->mtu < mtu ? far->mtu : mtu, .dest_qp_num = far->queue_pair & SEQUENCE_MASK,
		.rq_psn = far->sequence & SEQUENCE_MASK, .max_dest_rd_atomic = 1, .min_rnr_timer = ROOM_TIMER,
		.ah_attr = {.dlid = far->lid, .port_num = verbs->port},
	};
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS, .sq_psn = ring->sequence, .timeout = TIMEOUT, .retry_cnt = RETRIES, .rnr_retry = ROOM_RETRIES,
		.max_rd_atomic = 1,
	};
	if (far->mtu < IBV_MTU_256 || far->mtu > IBV_MTU_4096)
		return false;
	if (verbs->port_found.link_layer == IBV_LINK_LAYER_ETHERNET) {
		ready.ah_attr.is_global = 1;
		memcpy(ready.ah_attr.grh.dgid.raw, far->gid, sizeof(far->gid));
		ready.ah_attr.grh.sgid_index = verbs->gid_index;
		ready.ah_attr.grh.hop_limit = HOPS;
	}
	return !verbs_library.modify_qp(ring->qp, &ready, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) &&
	       !verbs_library.modify_qp(ring->qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* The writer's side. */

/* Makes the peer's outbound, which is not ready, and what to ask for; false: that cannot be. */
bool verbs_ask(struct pm_peer *peer, struct verbs_wanted *wanted)
{
	struct outbound *outbound = link_outbound(peer, RAIL_VERBS, peer->generation + 1);
	struct verbs_ring *ring = outbound ? ring_make(peer, 0, VERBS_COMES_TO_WRITER) : NULL;
	if (!ring) {
		free(outbound);
		return false;
	}
	ring->outbound = outbound;
	ring_writer_open(&outbound->ring, ring->memory, VERBS_DATA_BYTES);
	outbound->verbs = ring;
	outbound->ring_size = memory_bytes();
	peer->generation = outbound->generation;
	peer->outbound = outbound;
	*wanted = (struct verbs_wanted){outbound->generation, RAIL_VERBS, where(ring)};
	return true;
}

/* The ring that was asked for is there; false: it cannot be used, or was not asked for. */
bool verbs_take(struct pm_peer *peer, const struct verbs_offer *offer)
{
	struct outbound *outbound = peer->outbound;
	if (!outbound || outbound->rail != RAIL_VERBS || outbound->generation != offer->generation || atomic_load(&outbound->ready))
		return false;
	if (offer->data_bytes != VERBS_DATA_BYTES || !connect_to(outbound->verbs, &offer->where)) {
		atomic_store(&outbound->gone, -EOPNOTSUPP);
		return false;
	}
	outbound->verbs->far_address = offer->address;
	outbound->verbs->far_key = offer->key;
	atomic_store(&outbound->ready, true);
	return true;
}

/* The reader's side. */

/* Makes a ring for the peer to send by; NULL: that cannot be. */
struct inbound *verbs_make(struct pm_peer *peer, const struct verbs_wanted *wanted, struct verbs_offer *offer)
{
	struct inbound *inbound = link_inbound(peer, RAIL_VERBS, wanted->generation);
	struct verbs_ring *ring = inbound ? ring_make(peer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, VERBS_COMES_TO_READER) : NULL;
	if (ring && !connect_to(ring, &wanted->where)) {
		verbs_let_go(ring);
		ring = NULL;
	}
	if (!ring) {
		free(inbound);
		return NULL;
	}
	ring->inbound = inbound;
	ring_reader_open(&inbound->ring, ring->memory, VERBS_DATA_BYTES);
	inbound->verbs = ring;
	inbound->ring_size = memory_bytes();
	peer->verbs_in = ring;
	*offer = (struct verbs_offer){
		.generation = wanted->generation, .rail = RAIL_VERBS, .where = where(ring),
		.key = ring->mr->rkey, .data_bytes = VERBS_DATA_BYTES, .address = (uintptr_t)ring->memory,
	};
	return inbound;
}

/* Ends a ring: nothing comes by it, and nothing is read from this side's memory, when this returns. What was on its way
 * is not known to have arrived. */
void verbs_let_go(struct verbs_ring *ring)
{
	struct pm_endpoint *endpoint = ring->peer->endpoint;
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	HASH_DEL(ring->of->rings, ring);
	/* Completions that are left are of a number that is not known any more, and may soon be another's. A provider may forget
	 * them when the queue pair ends, and the receives that they have used: so they are looked for before, and after. */
	verbs_library.modify_qp(ring->qp, &error, IBV_QP_STATE);
	verbs_look(endpoint);
	verbs_library.destroy_qp(ring->qp);
	ring->qp = NULL;
	verbs_look(endpoint);
	verbs_give_back(ring);
	ring_free(ring);
}
