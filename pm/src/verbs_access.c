/*
 * verbs_access.c - large remote accesses over the verbs rail: RDMA writes from where the bytes lie to where they belong.
 *
 * A write needs the device's key of the region, which is asked for once for each ring and region (REGION_WANTED, answered
 * by REGION_IS when the peer next receives); from then on the peer has nothing to do. It has ended when the device says that
 * the bytes are there. A region that peers know the key of loses it when it is deregistered, at once.
 *
 * A read is asked for by a message as on any rail (copied.c), which says where the bytes are wanted. The peer has its
 * device write them there, and says so by the same ring (READ_PLACED): as that comes after them, they are there when it
 * is read. If it comes another way, because the ring has been left meanwhile, nothing is known, and the read is asked for
 * again.
 *
 * All memory that takes part is registered by way of the pin-down cache (pin.h).
 */
#include <errno.h>
#include <string.h>

#include "copied.h"
#include "message.h"
#include "verbs_ring.h"

struct region_wanted {
	uint64_t key;
	uint32_t generation, zero; /* of the ring by which it is to be written to */
};

struct region_is {
	uint64_t key, address, length;
	uint32_t generation, remote_key;
	int32_t status;            /* 0, -EACCES: there is none that may be written to, else: not this way */
	uint32_t zero;
};

struct read_placed {
	uint64_t id;
};

static void drop(struct pm_peer *peer)
{
	count_both(&peer->endpoint->statistics->dropped, 1);
}

/* Has a piece of memory written, the last of an access with what is to be told then. */
static bool send_pieces(struct verbs_ring *ring, const uint8_t *from, struct pin *pin, uint64_t address, uint32_t key, size_t length,
			struct verbs_sent asked)
{
	uint32_t most = ring->of->verbs->piece;
	for (size_t done = 0; done < length;) {
		size_t left = length - done, piece = left < most ? left : most;
		struct ibv_sge part = {.addr = (uintptr_t)from + done, .length = piece, .lkey = verbs_mr(pin)->lkey};
		struct ibv_send_wr work = {
			.sg_list = &part, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = {.remote_addr = address + done, .rkey = key},
		};
		if (!verbs_send(ring, &work, piece == left ? asked : (struct verbs_sent){0}))
			return false;
		done += piece;
	}
	return true;
}

/* Whether a remote access is not too long for one. */
static bool fits(const struct verbs_endpoint *own, size_t length)
{
	return length <= (size_t)own->verbs->piece * VERBS_PIECES;
}

/* What messages may need is left to them. */
static bool has_slots(const struct verbs_ring *ring, size_t length)
{
	return ring->bulks < VERBS_BULKS && ring->used + length / ring->of->verbs->piece + 1 <= VERBS_SENDS - VERBS_CELLS;
}

static bool has_room(struct verbs_ring *ring, size_t length)
{
	if (!has_slots(ring, length))
		verbs_poll_sent(ring);
	return has_slots(ring, length);
}

static struct verbs_region *region_slot(struct verbs_ring *ring, uint64_t key)
{
	return &ring->regions[(key ^ key >> REGION_BITS) % VERBS_REGIONS];
}

/* Writes. */

static int ask_for_region(struct pm_peer *peer, struct verbs_region *region, uint64_t key)
{
	struct region_wanted wanted = {key, peer->out->generation, 0};
	void *buffer;
	if (region->status == -EINPROGRESS)
		return 0; /* another one's turn */
	int error = message_reserve(peer, sizeof(wanted), &buffer);
	if (error)
		return error == -EAGAIN ? 0 : error;
	memcpy(buffer, &wanted, sizeof(wanted));
	*region = (struct verbs_region){.key = key, .status = -EINPROGRESS};
	message_commit(peer, 0, REGION_WANTED);
	return 0;
}

/* Moves a write on that goes by the peer's ring; 1: all is there, 0: not yet, -EPERM: it does not go this way, else its
 * error. */
int verbs_write(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	struct verbs_ring *ring = peer->out->verbs;
	struct verbs_region *region = region_slot(ring, operation->key);
	if (operation->bulk_state)
		return 0;
	if (!fits(peer->endpoint->verbs, operation->length))
		return -EPERM;
	if (region->key != operation->key)
		return ask_for_region(peer, region, operation->key);
	if (region->status)
		return region->status == -EINPROGRESS ? 0 : region->status == -EACCES ? -EACCES : -EPERM;
	uint64_t at = operation->address - region->address;
	if (operation->address < region->address || at > region->length || operation->length > region->length - at)
		return -EACCES;
	if (!has_room(ring, operation->length))
		return 0;
	struct pin *pin = verbs_pin(peer->endpoint, operation->local, operation->length, false);
	if (!pin)
		return -EPERM;
	operation->bulk_state = BULK_SENT;
	if (!send_pieces(ring, operation->local, pin, operation->address, region->remote_key, operation->length,
			 (struct verbs_sent){.operation = operation->id, .pin = pin})) {
		operation->bulk_state = 0; /* the ring has failed, and is about to be left */
		verbs_unpin(peer->endpoint, pin);
		return 0;
	}
	count(&peer->endpoint->statistics->direct_bytes, operation->length);
	return 0;
}

static struct operation *sent_write(struct pm_endpoint *endpoint, uint64_t id)
{
	struct operation *operation = endpoint->table[(uint32_t)id];
	return operation->id == id && !operation->ended && operation->bulk_state == BULK_SENT ? operation : NULL;
}

/* All bytes of a write are there. It is ended when operations are next gone through. */
void verbs_written(struct pm_endpoint *endpoint, uint64_t id)
{
	struct operation *operation = sent_write(endpoint, id);
	if (!operation)
		return; /* its peer was found to be gone */
	operation->bulk_state = BULK_WRITTEN;
	atomic_store(&endpoint->attention, true);
}

static void answer_region(struct pm_peer *peer, const struct ring_message *message)
{
	struct region_wanted wanted;
	memcpy(&wanted, message->data, sizeof(wanted));
	copied_serve(peer, (struct service){.answer = REGION_IS, .key = wanted.key, .generation = wanted.generation});
}

/* Registers a region with the device for as long as there is the region; false: that cannot be, or it is gone. The key's
 * generation is looked at under the lock, as pm_deregister takes that after it has changed it. */
static bool pin_region(struct pm_endpoint *endpoint, uint64_t key, uint64_t address, uint64_t length, uint32_t *remote_key)
{
	struct pm_context *context = endpoint->context;
	struct pin_cache *pins = endpoint->verbs->verbs->regions;
	struct pm_region *region = &context->regions[key & (SHARED_REGIONS - 1)];
	struct pin *pin = NULL;
	bool hit;
	for (int i = 0; i < 2; i++) {
		pthread_mutex_lock(&context->lock);
		bool there = !region_check(context->page, key, address, length, PM_REMOTE_WRITE);
		if (there && !region->pin) {
			region->pin = pin;
			pin = NULL;
		}
		there = there && region->pin;
		*remote_key = there ? verbs_mr(region->pin)->rkey : 0;
		pthread_mutex_unlock(&context->lock);
		if (pin)
			pin_put(pins, pin); /* it is gone, or another endpoint was faster */
		if (there)
			return true;
		if (i > 0 || pin_get(pins, (void *)(uintptr_t)address, length, true, &pin, &hit))
			return false;
	}
	return false;
}

/* Tells a peer how a region is written to; 0, or -EAGAIN. */
int verbs_answer_region(struct service *service)
{
	struct pm_peer *peer = service->peer;
	struct shared_region *shared = &peer->endpoint->context->page->regions[service->key & (SHARED_REGIONS - 1)];
	struct region_is answer = {.key = service->key, .generation = service->generation, .status = -EACCES};
	void *buffer;
	int error = message_reserve(peer, sizeof(answer), &buffer);
	if (error)
		return error;
	uint64_t address = atomic_load(&shared->base), length = atomic_load(&shared->length);
	if (!region_check(peer->endpoint->context->page, service->key, address, length, PM_REMOTE_WRITE)) {
		bool still = peer->verbs_in && peer->verbs_in->inbound->generation == service->generation;
		answer.address = address;
		answer.length = length;
		answer.status = still && pin_region(peer->endpoint, service->key, address, length, &answer.remote_key) ? 0 : -EPERM;
	}
	memcpy(buffer, &answer, sizeof(answer));
	message_commit(peer, 0, REGION_IS);
	return 0;
}

static void take_region(struct pm_peer *peer, const struct ring_message *message)
{
	struct outbound *out = peer->out;
	struct region_is is;
	memcpy(&is, message->data, sizeof(is));
	if (!out || !out->verbs || out->generation != is.generation)
		return; /* that ring has been left */
	struct verbs_region *region = region_slot(out->verbs, is.key);
	if (region->key != is.key || region->status != -EINPROGRESS) {
		drop(peer);
		return;
	}
	*region = (struct verbs_region){is.key, is.address, is.length, is.remote_key, is.status == -EINPROGRESS ? -EPERM : is.status};
}

/* Reads. */

/* Has a read's bytes brought by the peer's device, if it has a ring to this side; the request says where to. */
void verbs_expect(struct operation *operation, struct read_request *request)
{
	struct pm_peer *peer = operation->node.event.peer;
	struct verbs_ring *ring = peer->verbs_in;
	if (!ring || ring->failed || operation->length <= VERBS_BULK_LEAST || !fits(ring->of, operation->length))
		return;
	operation->pin = verbs_pin(peer->endpoint, operation->local, operation->length, true);
	if (!operation->pin)
		return;
	request->place = (uintptr_t)operation->local;
	request->place_key = verbs_mr(operation->pin)->rkey;
	request->generation = ring->inbound->generation;
}

/* The read has ended, or its bytes come another way; if it has failed, the device is kept from writing what is late. */
void verbs_forget(struct operation *operation, bool failed)
{
	struct pm_endpoint *endpoint = operation->node.event.peer->endpoint;
	if (!operation->pin)
		return;
	if (failed)
		pin_drop(endpoint->verbs->verbs->pins, operation->local, operation->length);
	verbs_unpin(endpoint, operation->pin);
	operation->pin = NULL;
}

/* Whether the answer to a read goes by the ring that it wants. */
bool verbs_answers(const struct service *service)
{
	const struct outbound *out = service->peer->out;
	return service->generation && !service->begun && !service->done && out && out->verbs &&
	       out->generation == service->generation && !out->failed && fits(out->verbs->of, service->length);
}

/* Sends the answer to a read; 0, -EAGAIN: not all of it yet, -EACCES: the region is gone, -EPERM: it does not go this way. */
int verbs_answer(struct service *service)
{
	struct pm_peer *peer = service->peer;
	struct pm_endpoint *endpoint = peer->endpoint;
	struct verbs_ring *ring = peer->out->verbs;
	const uint8_t *from = (uint8_t *)(uintptr_t)service->address;
	struct read_placed placed = {service->id};
	void *buffer;
	if (!service->placed) {
		if (region_check(endpoint->context->page, service->key, service->address, service->length, PM_REMOTE_READ))
			return -EACCES;
		if (!has_room(ring, service->length))
			return -EAGAIN;
		struct pin *pin = verbs_pin(endpoint, from, service->length, false);
		if (!pin)
			return -EPERM;
		if (!send_pieces(ring, from, pin, service->place, service->place_key, service->length, (struct verbs_sent){.pin = pin})) {
			verbs_unpin(endpoint, pin);
			return -EAGAIN;
		}
		service->placed = true;
	}
	int error = message_reserve(peer, sizeof(placed), &buffer);
	if (error)
		return error;
	memcpy(buffer, &placed, sizeof(placed));
	message_commit(peer, 0, READ_PLACED);
	return 0;
}

static void take_placed(struct pm_peer *peer, const struct ring_message *message, bool by_ring)
{
	struct read_placed placed;
	memcpy(&placed, message->data, sizeof(placed));
	struct operation *operation = operation_find(peer, placed.id);
	if (!operation || operation->node.event.type != PM_READ_DONE) {
		drop(peer);
	} else if (by_ring && operation->pin) {
		count(&peer->endpoint->statistics->direct_bytes, operation->length);
		operation_end(operation, 0);
	} else {
		operation_again(operation);
	}
}

/* Handles a message about remote accesses by this rail, which may come by another if this one has been left. */
void verbs_handle(struct pm_peer *peer, const struct ring_message *message, bool by_ring)
{
	static const uint32_t lengths[] = {
		[READ_PLACED] = sizeof(struct read_placed), [REGION_WANTED] = sizeof(struct region_wanted),
		[REGION_IS] = sizeof(struct region_is),
	};
	if (message->length != lengths[message->type])
		drop(peer);
	else if (message->type == READ_PLACED)
		take_placed(peer, message, by_ring);
	else if (message->type == REGION_WANTED)
		answer_region(peer, message);
	else
		take_region(peer, message);
}

/* A ring's queue pair is no more: what is not known to have been done is done another way. */
void verbs_give_back(struct verbs_ring *ring)
{
	struct pm_peer *peer = ring->peer;
	struct pm_endpoint *endpoint = peer->endpoint;
	struct operation *operation;
	for (; ring->count; ring->count--) {
		struct verbs_sent *asked = &ring->asked[ring->first];
		ring->first = (ring->first + 1) % VERBS_SENDS;
		operation = asked->operation ? sent_write(endpoint, asked->operation) : NULL;
		if (operation)
			operation->bulk_state = 0;
		verbs_unpin(endpoint, asked->pin);
	}
	if (peer->verbs_in != ring)
		return;
	peer->verbs_in = NULL;
	TAILQ_FOREACH(operation, &endpoint->operations, entry) {
		if (operation->node.event.peer == peer)
			verbs_forget(operation, false);
	}
}
