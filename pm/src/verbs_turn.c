/* verbs_turn.c - the verbs rail: sending, and looking at what has come and what has been sent. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "link.h"
#include "verbs_ring.h"

/* Completions that are taken at once. */
#define AT_ONCE 32
/* What a sender that only sends has failed at is looked for every so many looks, a power of two. */
#define SELDOM 64
/* Receives are asked for so many at once. */
#define MORE 64
#define NAP_NS 100000

/* The type of an immediate that tells what has been taken: cells, and lines of data, which the remaining 24 bits hold. */
#define CREDITS 0xff
#define CELL_BITS 11
#define LINE_BITS 13
_Static_assert(VERBS_DATA_BYTES / RING_DATA_PER_CELL < 1 << CELL_BITS && VERBS_DATA_BYTES / RING_LINE < 1 << LINE_BITS, "all at once");

/* The queue pair can do nothing any more: the ring is left. */
static void fail(struct verbs_ring *ring)
{
	if (ring->failed)
		return;
	ring->failed = true;
	if (ring->outbound)
		ring->outbound->failed = true;
	else
		ring->inbound->asked_to_close = true;
	rail_notice(ring->peer->endpoint);
}

/* Takes note of what has been sent. */
void verbs_poll_sent(struct verbs_ring *ring)
{
	struct pm_endpoint *endpoint = ring->peer->endpoint;
	struct ibv_wc done[AT_ONCE];
	int n;
	do {
		n = ibv_poll_cq(ring->sent, AT_ONCE, done);
		for (int i = 0; i < n && !ring->failed; i++) {
			if (done[i].status != IBV_WC_SUCCESS) {
				fail(ring);
				return;
			}
			struct verbs_sent *asked = &ring->asked[ring->first];
			ring->first = (ring->first + 1) % VERBS_SENDS;
			ring->count--;
			ring->used -= asked->slots;
			ring->bulks -= asked->pin != NULL;
			verbs_unpin(endpoint, asked->pin);
			if (asked->operation)
				verbs_written(endpoint, asked->operation);
		}
	} while (n == AT_ONCE);
	if (n < 0)
		fail(ring);
}

/* Asks the device to send; false: it cannot now, or no more. What `asked' has in it (slots: 1 will do) is told of when it
 * has been done. */
bool verbs_send(struct verbs_ring *ring, struct ibv_send_wr *work, struct verbs_sent asked)
{
	struct ibv_send_wr *bad;
	if (ring->used == VERBS_SENDS)
		verbs_poll_sent(ring);
	if (ring->failed || ring->used == VERBS_SENDS)
		return false;
	bool signal = asked.slots || asked.pin || asked.operation || ring->unsignaled + 1 >= VERBS_SIGNAL;
	work->send_flags |= signal ? IBV_SEND_SIGNALED : 0;
	if (ibv_post_send(ring->qp, work, &bad)) {
		fail(ring);
		return false;
	}
	ring->used++;
	ring->unsignaled++;
	struct pm_endpoint *endpoint = ring->peer->endpoint;
	if (unlikely(!atomic_load_explicit(&endpoint->unconfirmed, memory_order_relaxed))) {
		atomic_store(&endpoint->unconfirmed, true);
		keeper_confirm(endpoint->context);
	}
	if (signal) {
		asked.slots = ring->unsignaled;
		ring->unsignaled = 0;
		ring->asked[(ring->first + ring->count++) % VERBS_SENDS] = asked;
		ring->bulks += asked.pin != NULL;
	}
	return true;
}

/* Sends the message in the next cell. */
static bool send_message(struct verbs_ring *ring, const struct ring_writer *writer)
{
	struct ring_cell *cell = &writer->memory->cells[ring->cell & writer->cell_mask];
	uint32_t control = atomic_load_explicit(&cell->control, memory_order_relaxed), length = control & 0xffff;
	uint64_t place = ring_place(ring->byte, length, writer->data_mask);
	uint8_t *data = length <= RING_INLINE ? cell->payload : writer->data + (place & writer->data_mask);
	struct ibv_sge part = {.addr = (uintptr_t)data, .length = length, .lkey = ring->mr->lkey};
	struct ibv_send_wr work = {
		.sg_list = &part, .num_sge = length > 0, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(control),
		.send_flags = length && length <= ring->inline_bytes ? IBV_SEND_INLINE : 0,
		.wr.rdma = {.remote_addr = ring->far_address + (data - (uint8_t *)ring->memory), .rkey = ring->far_key},
	};
	if (!verbs_send(ring, &work, (struct verbs_sent){0}))
		return false;
	ring->cell++;
	if (length > RING_INLINE)
		ring->byte = place + ring_lines(length);
	return true;
}

/* Sends what has been written into the ring; what cannot be sent now is at the next look. */
void verbs_post(struct outbound *outbound)
{
	struct verbs_ring *ring = outbound->verbs;
	while (ring->cell != outbound->ring.cell && send_message(ring, &outbound->ring))
		;
}

static bool send_credits(struct verbs_ring *ring, uint32_t cells, uint32_t lines, bool signal)
{
	uint32_t both = (lines << CELL_BITS) | cells;
	struct ibv_send_wr work = {
		.opcode = IBV_WR_SEND_WITH_IMM,
		.imm_data = htobe32(((both & 0xff0000) << 8) | (CREDITS << 16) | (both & 0xffff)),
	};
	return verbs_send(ring, &work, (struct verbs_sent){.slots = signal});
}

/* Tells the writer what has been taken. */
static void tell_credits(struct verbs_ring *ring)
{
	const struct ring_reader *reader = &ring->inbound->ring;
	uint32_t cells = reader->cells_told - ring->cells_credited, lines = (reader->bytes_told - ring->bytes_credited) / RING_LINE;
	if ((!cells && !lines) || !send_credits(ring, cells, lines, false))
		return;
	ring->cells_credited += cells;
	ring->bytes_credited += (uint64_t)lines * RING_LINE;
}

static void take_credits(struct verbs_ring *ring, uint32_t immediate)
{
	struct ring_taken *taken = &ring->memory->taken;
	uint32_t both = ((immediate >> 8) & 0xff0000) | (immediate & 0xffff);
	/* The memory is this side's own; what cannot be is noticed where room is looked for (ring.h). */
	atomic_store(&taken->bytes, atomic_load(&taken->bytes) + (uint64_t)(both >> CELL_BITS) * RING_LINE);
	atomic_store(&taken->cells, atomic_load(&taken->cells) + (both & ((1 << CELL_BITS) - 1)));
}

/* A message is in its place. */
static bool take_message(struct verbs_ring *ring, uint32_t immediate)
{
	struct inbound *inbound = ring->inbound;
	struct ring_reader *reader = &inbound->ring;
	if (ring->arrived - reader->cell > reader->cell_mask) {
		reader->broken = true; /* the writer had no room */
		atomic_store(&inbound->endpoint->attention, true);
		return false;
	}
	uint64_t cell = ring->arrived++;
	atomic_store_explicit(&ring->memory->cells[cell & reader->cell_mask].control,
			      (uint64_t)(uint32_t)(cell + 1) << 32 | immediate, memory_order_release);
	return true;
}

/* Something has come; whether it is a message. */
static bool take(struct pm_endpoint *endpoint, const struct ibv_wc *came)
{
	struct verbs_ring *ring;
	uint32_t number = came->qp_num, immediate = be32toh(came->imm_data);
	HASH_FIND(hh, endpoint->verbs->rings, &number, sizeof(number), ring);
	if (!ring)
		return false;
	bool credits = (immediate >> 16 & 0xff) == CREDITS;
	if (came->status != IBV_WC_SUCCESS || !(came->wc_flags & IBV_WC_WITH_IMM) || (!credits && !ring->inbound)) {
		fail(ring);
		return false;
	}
	if (!credits)
		return take_message(ring, immediate);
	if (ring->outbound)
		take_credits(ring, immediate);
	return false;
}

/* Asks for what may come next; false: that cannot be. */
bool verbs_ask_for_more(struct verbs_gate *gate)
{
	struct ibv_recv_wr more[MORE] = {0}, *bad;
	for (int i = 0; i + 1 < MORE; i++)
		more[i].next = &more[i + 1];
	while (gate->receives >= MORE) {
		if (ibv_post_srq_recv(gate->srq, more, &bad))
			return false;
		gate->receives -= MORE;
	}
	return true;
}

static void turn(struct pm_endpoint *endpoint, struct verbs_ring *ring)
{
	if (ring->bulks || (ring->used && (endpoint->verbs->looks & (SELDOM - 1)) == 0))
		verbs_poll_sent(ring);
	if (ring->inbound)
		tell_credits(ring);
	else if (atomic_load_explicit(&ring->outbound->ready, memory_order_relaxed))
		verbs_post(ring->outbound);
}

/* Takes what has come to a gate; whether there is a message. */
static bool take_all(struct pm_endpoint *endpoint, struct verbs_gate *gate)
{
	struct ibv_wc came[AT_ONCE];
	bool message = false;
	int n = AT_ONCE;
	/* All that is there now is taken, and not for ever what comes meanwhile. */
	for (unsigned taken = 0; n == AT_ONCE && taken <= VERBS_RECEIVES; taken += n) {
		n = ibv_poll_cq(gate->came, AT_ONCE, came);
		for (int i = 0; i < n; i++)
			message |= take(endpoint, &came[i]);
		gate->receives += n > 0 ? n : 0;
	}
	verbs_ask_for_more(gate);
	return message;
}

/* Looks at all that has come and been sent; whether there is a message. */
bool verbs_look(struct pm_endpoint *endpoint)
{
	struct verbs_endpoint *own = endpoint->verbs;
	struct verbs_ring *ring, *next;
	struct verbs_gate *gate;
	bool message = false;
	LIST_FOREACH(gate, &own->gates, entry)
		message |= take_all(endpoint, gate);
	own->looks++;
	HASH_ITER(hh, own->rings, ring, next)
		turn(endpoint, ring);
	return message;
}

/* What an owner sleeps on, or -1. */
int verbs_descriptor(const struct pm_endpoint *endpoint)
{
	return endpoint->verbs ? endpoint->verbs->channel->fd : -1;
}

/* What comes from here on makes the descriptor readable. */
void verbs_arm(struct pm_endpoint *endpoint)
{
	struct verbs_endpoint *own = endpoint->verbs;
	struct verbs_ring *ring, *next;
	struct verbs_gate *gate;
	LIST_FOREACH(gate, &own->gates, entry)
		ibv_req_notify_cq(gate->came, 0);
	HASH_ITER(hh, own->rings, ring, next)
		ibv_req_notify_cq(ring->sent, 0);
	own->looks = -1; /* the look that follows is a thorough one */
}

/* Takes back what has made it readable. */
void verbs_woken(struct pm_endpoint *endpoint)
{
	struct ibv_cq *cq;
	void *cookie;
	while (!verbs_library.get_cq_event(endpoint->verbs->channel, &cq, &cookie))
		verbs_library.ack_cq_events(cq, 1);
}

/* No completion tells of the last ones, so something is sent that one tells of: by a writer no bytes, written into the
 * ring, as that takes no receive from a reader that does not look. */
static void send_signaled(struct verbs_ring *ring)
{
	struct ibv_send_wr work = {.opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {.remote_addr = ring->far_address, .rkey = ring->far_key}};
	if (ring->outbound)
		verbs_send(ring, &work, (struct verbs_sent){.slots = 1});
	else
		send_credits(ring, 0, 0, true);
}

/* Whether all that was sent by a ring has arrived. */
static bool all_arrived(struct verbs_ring *ring)
{
	verbs_poll_sent(ring);
	if (ring->outbound && atomic_load(&ring->outbound->ready))
		verbs_post(ring->outbound);
	if (ring->unsignaled)
		send_signaled(ring);
	return !ring->used && (!ring->outbound || ring->cell == ring->outbound->ring.cell);
}

/* For an owner that may not look: whether all that was sent has arrived. What was not by a ring that has failed goes another
 * way when that is left. */
bool verbs_confirm(struct pm_endpoint *endpoint)
{
	struct verbs_ring *ring, *next;
	bool arrived = true;
	if (!endpoint->verbs)
		return true;
	HASH_ITER(hh, endpoint->verbs->rings, ring, next)
		arrived &= all_arrived(ring) || ring->failed;
	return arrived;
}

/* Whether all that was sent has arrived. */
bool verbs_quiet(struct pm_endpoint *endpoint)
{
	struct verbs_ring *ring, *next;
	bool quiet = true;
	if (!endpoint->verbs)
		return true;
	HASH_ITER(hh, endpoint->verbs->rings, ring, next) {
		bool arrived = all_arrived(ring);
		quiet &= ring->outbound ? arrived && !ring->failed : arrived || ring->failed;
	}
	return quiet;
}

static unsigned on_the_way(struct pm_endpoint *endpoint)
{
	struct verbs_ring *ring, *next;
	unsigned used = 0;
	HASH_ITER(hh, endpoint->verbs->rings, ring, next)
		used += ring->used;
	return used;
}

/* Waits until all that was sent has arrived, or nothing more has for some time. */
void verbs_linger(struct pm_endpoint *endpoint)
{
	static const struct timespec nap = {.tv_nsec = NAP_NS};
	uint64_t until = clock_ns() + LINGER_NS;
	unsigned used = 0;
	while (endpoint->verbs && !verbs_quiet(endpoint) && clock_ns() < until) {
		unsigned now = on_the_way(endpoint);
		if (now != used)
			until = clock_ns() + LINGER_NS;
		used = now;
		link_news(endpoint); /* a ring that fails now is left */
		nanosleep(&nap, NULL);
	}
}
