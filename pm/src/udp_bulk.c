/*
 * udp_bulk.c - remote memory access over the udp rail: bytes go from where they lie to where they belong.
 *
 * A read is asked for by a message, as on any rail (copied.c). Its answer is bulk, sent from the region's memory and put
 * into the reader's by whichever thread takes it out of the socket; when all of it is there the read ends. A write is
 * bulk, too, which says where it belongs in a region; when all of it has been numbered a message follows, that is read
 * when all is there, and answered. All under the rail's lock, so that memory that has been taken away - an operation
 * has ended, a region is gone - is not touched any more when the function that takes it away returns.
 */
#include <errno.h>
#include <string.h>

#include "message.h"

/* A read is about to be asked for. */
void udp_expect(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	struct udp *udp = peer->endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	operation->udp = true;
	TAILQ_INSERT_TAIL(&peer->reads, operation, bulk_entry);
	pthread_mutex_unlock(&udp->lock);
}

/* An operation has ended: its memory is the caller's again. */
void udp_forget(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	struct udp *udp = peer->endpoint->udp;
	if (!operation->udp || !udp)
		return;
	operation->udp = false;
	pthread_mutex_lock(&udp->lock);
	if (operation->node.event.type == PM_WRITE_DONE) {
		flow_bulk_remove(&peer->udp->flow, &operation->bulk);
	} else if (operation->placed == operation->length) {
		TAILQ_REMOVE(&udp->placed, operation, bulk_entry);
	} else {
		TAILQ_REMOVE(&peer->reads, operation, bulk_entry);
	}
	pthread_mutex_unlock(&udp->lock);
}

/* Ends the reads of which all has come. */
void udp_end_placed(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	struct operation *operation;
	for (;;) {
		pthread_mutex_lock(&udp->lock);
		operation = TAILQ_FIRST(&udp->placed);
		pthread_mutex_unlock(&udp->lock);
		if (!operation)
			return;
		operation_end(operation, 0);
	}
}

static struct operation *read_of(struct udp_link *link, uint64_t id)
{
	struct operation *operation;
	TAILQ_FOREACH(operation, &link->peer->reads, bulk_entry) {
		if (operation->id == id)
			return operation;
	}
	return NULL;
}

static void place_write(struct pm_endpoint *endpoint, const struct udp_bulk *head, const uint8_t *payload)
{
	if (!region_check(endpoint->context->page, head->name, head->at, head->packet.length, PM_REMOTE_WRITE))
		memcpy((void *)(uintptr_t)head->at, payload, head->packet.length);
}

static void place_read(struct udp *udp, struct udp_link *link, const struct udp_bulk *head, const uint8_t *payload)
{
	struct operation *operation = read_of(link, head->name);
	uint64_t length = head->packet.length;
	if (!operation || head->at > operation->length || length > operation->length - head->at)
		return;
	memcpy(operation->local + head->at, payload, length);
	/* Nothing comes twice, but from a peer that is up to no good. */
	uint64_t left = operation->length - operation->placed;
	operation->placed += length < left ? length : left;
	if (operation->placed == operation->length) {
		TAILQ_REMOVE(&link->peer->reads, operation, bulk_entry);
		TAILQ_INSERT_TAIL(&udp->placed, operation, bulk_entry);
	}
}

/* A segment of bulk has come. What belongs nowhere has lost its place - a region is gone, and a message will say so - or
 * was never right; either way it has arrived. */
void udp_take_bulk(struct pm_endpoint *endpoint, struct udp_link *link, const struct udp_bulk *head, const uint8_t *payload,
		   uint64_t now_ns)
{
	if (!flow_arrive_bulk(&link->flow, now_ns, head->packet.sequence) || !head->packet.length)
		return;
	if (head->packet.type == UDP_WRITE)
		place_write(endpoint, head, payload);
	else
		place_read(endpoint->udp, link, head, payload);
}

static void send_bulk(struct udp *udp, struct udp_link *link, struct flow_bulk *bulk)
{
	flow_bulk_add(&link->flow, bulk);
	if (link->sure)
		udp_flush(udp, link, clock_ns(), true);
	udp->look_at_ns = 0;
}

/* Sends a write's bytes off; whether all have a number by now, so that what is said from here on is read after them. */
bool udp_write_numbered(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	struct udp *udp = peer->endpoint->udp;
	struct flow_bulk *bulk = &operation->bulk;
	pthread_mutex_lock(&udp->lock);
	if (!operation->begun && peer->udp->open) {
		*bulk = (struct flow_bulk){
			.memory = operation->local, .length = operation->length, .type = UDP_WRITE, .name = operation->key,
			.at = operation->address,
		};
		operation->udp = operation->begun = true;
		peer->bulk_writes++;
		send_bulk(udp, peer->udp, bulk);
	}
	bool numbered = operation->begun && bulk->cut == bulk->length;
	pthread_mutex_unlock(&udp->lock);
	keeper_tick(peer->endpoint->context);
	return numbered;
}

/* Sends the answer to a read as far as it can be; 0: the peer has it, -EAGAIN: not yet, -EACCES: the region is gone. */
int udp_answer(struct service *service)
{
	struct pm_peer *peer = service->peer;
	struct udp *udp = peer->endpoint->udp;
	struct flow_bulk *bulk = &service->bulk;
	pthread_mutex_lock(&udp->lock);
	/* It may have been asked for by a ring before greetings have been exchanged. */
	int status = peer->udp->open ? 0 : -EAGAIN;
	if (!status && !service->begun) {
		status = region_check(peer->endpoint->context->page, service->key, service->address, service->length, PM_REMOTE_READ);
		*bulk = (struct flow_bulk){
			.memory = (uint8_t *)(uintptr_t)service->address, .length = service->length, .type = UDP_READ,
			.name = service->id, .key = service->key,
		};
		service->begun = true;
		if (!status)
			send_bulk(udp, peer->udp, bulk);
	}
	if (!status)
		status = bulk->listed ? -EAGAIN : bulk->removed ? -EACCES : 0;
	pthread_mutex_unlock(&udp->lock);
	keeper_tick(peer->endpoint->context);
	return status;
}

/* The peer is gone, and so is what it has asked for. */
void udp_answer_forget(struct service *service)
{
	struct pm_peer *peer = service->peer;
	struct udp *udp = peer->endpoint->udp;
	if (!service->begun || !udp)
		return;
	pthread_mutex_lock(&udp->lock);
	flow_bulk_remove(&peer->udp->flow, &service->bulk);
	pthread_mutex_unlock(&udp->lock);
}

static void region_gone(struct udp *udp, uint64_t key)
{
	for (uint32_t i = 0; i < udp->count; i++) {
		struct udp_link *link = udp->links[i];
		struct flow_bulk *bulk, *next;
		if (!link->open)
			continue;
		for (bulk = TAILQ_FIRST(&link->flow.bulks); bulk; bulk = next) {
			next = TAILQ_NEXT(bulk, entry);
			if (bulk->type == UDP_READ && bulk->key == key)
				flow_bulk_remove(&link->flow, bulk);
		}
	}
}

/* A key opens nothing any more: whoever is at the region's memory now is waited for, and what was to be sent from it is
 * not. Under the context's lock. */
void udp_region_gone(struct pm_context *context, uint64_t key)
{
	for (int i = 0; i < SHARED_ENDPOINTS; i++) {
		struct udp *udp = context->endpoints[i] ? context->endpoints[i]->udp : NULL;
		if (!udp)
			continue;
		pthread_mutex_lock(&udp->lock);
		region_gone(udp, key);
		pthread_mutex_unlock(&udp->lock);
	}
}
