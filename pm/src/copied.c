/*
 * copied.c - remote memory access by messages, where the other's memory cannot be reached directly: the peer copies,
 * when it next receives. A write is a train of WRITE_DATA, each of which says where the whole belongs and which part
 * of it this is, answered by WRITE_DONE after the last one. (The key is looked at for each; a key that has become
 * bad stays bad, so the answer to the last one holds for all.) A read is a READ_REQUEST, answered by a train of
 * READ_DATA. Over the udp rail the bytes of large ones go beside the messages (udp_bulk.c): of a write there is then the
 * last WRITE_DATA, without bytes, and of a read only the request. What a peer says is checked against the table of regions, the operation it names, and that operation's
 * bounds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "copied.h"
#include "message.h"
#include "verbs.h"

struct write_data {
	uint64_t id, address, key, length; /* of the whole */
	uint64_t offset;                   /* of this part */
};

struct write_done {
	uint64_t id;
	int64_t status;
};

struct read_data {
	uint64_t id, offset;
	int64_t status; /* not 0: this is the end, without data */
};

#define MOST_WRITTEN (PM_MAX_MESSAGE - sizeof(struct write_data))
#define MOST_READ (PM_MAX_MESSAGE - sizeof(struct read_data))
/* Operations with one peer that wait for an answer; a peer that asks for more at once is not one of ours. */
#define MOST_WAITING 64

/* Whether a write's bytes go beside the messages: not when a ring is about to be gone over to, which waits for those
 * that do, as what is said after them has to go by the udp rail, too. */
static bool write_by_bulk(const struct operation *operation)
{
	const struct pm_peer *peer = operation->node.event.peer;
	return operation->begun ||
	       (peer->over_udp && !peer->outbound && !operation->done && operation->length > UDP_BULK_LEAST);
}

static int send_write(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	void *buffer;
	if (write_by_bulk(operation)) {
		if (!udp_write_numbered(operation))
			return 0;
		operation->done = operation->length;
	}
	while (!operation->sent) {
		size_t left = operation->length - operation->done;
		size_t length = left < MOST_WRITTEN ? left : MOST_WRITTEN;
		int error = message_reserve(peer, sizeof(struct write_data) + length, &buffer);
		if (error)
			return error == -EAGAIN ? 0 : error;
		struct write_data header = {
			operation->id, operation->address, operation->key, operation->length, operation->done,
		};
		buffer = mempcpy(buffer, &header, sizeof(header));
		if (length)
			memcpy(buffer, operation->local + operation->done, length);
		message_commit(peer, 0, WRITE_DATA);
		operation->done += length;
		operation->sent = length == left;
	}
	return 0;
}

static int send_read(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	void *buffer;
	int error = message_reserve(peer, sizeof(struct read_request), &buffer);
	if (error)
		return error == -EAGAIN ? 0 : error;
	struct read_request request = {operation->id, operation->address, operation->key, operation->length, 0, 0, 0};
	verbs_expect(operation, &request);
	if (peer->endpoint->udp && operation->length)
		udp_expect(operation); /* whichever way this is said, the answer may go that one */
	memcpy(buffer, &request, sizeof(request));
	message_commit(peer, 0, READ_REQUEST);
	operation->sent = true;
	return 0;
}

/* Sends what can be sent of an operation; 0, or its error. */
int copied_step(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	if (peer->copies >= MOST_WAITING)
		return 0;
	int error = operation->node.event.type == PM_WRITE_DONE ? send_write(operation) : send_read(operation);
	if (operation->sent) {
		peer->copies++;
		if (peer->out && peer->out->remote)
			udp_look_soon(peer->endpoint);
	}
	if (operation->sent && operation->begun)
		peer->bulk_writes--;
	return error;
}

static void drop(struct pm_peer *peer)
{
	count_both(&peer->endpoint->statistics->dropped, 1);
}

/* What waits to be answered, at most. Over the udp rail an answer stays until all of its segments are acknowledged. */
static unsigned most_services(const struct pm_peer *peer)
{
	return 2 * MOST_WAITING + (peer->udp ? FLOW_SEGMENTS : 0);
}

/* Has something that a peer has asked for answered. */
void copied_serve(struct pm_peer *peer, struct service asked)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	struct service *service = !peer->status && peer->services < most_services(peer) ? malloc(sizeof(*service)) : NULL;
	if (!service) {
		drop(peer);
		return;
	}
	*service = asked;
	service->peer = peer;
	peer->services++;
	TAILQ_INSERT_TAIL(&endpoint->services, service, entry);
	endpoint->busy = true;
}

static void handle_write(struct pm_peer *peer, const uint8_t *data, uint32_t length)
{
	struct write_data header;
	memcpy(&header, data, sizeof(header));
	length -= sizeof(header);
	int status = region_check(peer->endpoint->context->page, header.key, header.address, header.length, PM_REMOTE_WRITE);
	if (header.offset > header.length || length > header.length - header.offset) {
		drop(peer);
		return;
	}
	if (!status && length)
		memcpy((void *)(uintptr_t)(header.address + header.offset), data + sizeof(header), length);
	if (header.offset + length == header.length)
		copied_serve(peer, (struct service){.id = header.id, .status = status, .answer = WRITE_DONE});
}

static void handle_request(struct pm_peer *peer, const uint8_t *data)
{
	struct read_request request;
	memcpy(&request, data, sizeof(request));
	int status = region_check(peer->endpoint->context->page, request.key, request.address, request.length, PM_REMOTE_READ);
	copied_serve(peer, (struct service){
		.id = request.id, .status = status, .answer = READ_DATA,
		.address = request.address, .key = request.key, .length = request.length,
		.place = request.place, .place_key = request.place_key, .generation = request.generation,
	});
}

static void handle_done(struct pm_peer *peer, const uint8_t *data)
{
	struct write_done done;
	memcpy(&done, data, sizeof(done));
	struct operation *operation = operation_find(peer, done.id);
	if (operation && operation->node.event.type == PM_WRITE_DONE)
		operation_end(operation, done.status ? -EACCES : 0);
	else
		drop(peer);
}

static void handle_data(struct pm_peer *peer, const uint8_t *data, uint32_t length)
{
	struct read_data header;
	memcpy(&header, data, sizeof(header));
	length -= sizeof(header);
	struct operation *operation = operation_find(peer, header.id);
	if (!operation && header.status)
		return; /* the region is gone, but what was read of it is all here */
	if (!operation || operation->node.event.type != PM_READ_DONE) {
		drop(peer);
	} else if (header.status) {
		operation_end(operation, -EACCES);
	} else if (header.offset != operation->done || length > operation->length - operation->done) {
		drop(peer);
	} else {
		if (length)
			memcpy(operation->local + operation->done, data + sizeof(header), length);
		operation->done += length;
		if (operation->done == operation->length)
			operation_end(operation, 0);
	}
}

/* Handles a message that is not the caller's. */
void copied_handle(struct pm_peer *peer, const struct ring_message *message, enum rail rail)
{
	static const uint32_t least[] = {
		[WRITE_DATA] = sizeof(struct write_data), [WRITE_DONE] = sizeof(struct write_done),
		[READ_REQUEST] = sizeof(struct read_request), [READ_DATA] = sizeof(struct read_data),
	};
	if (message->type >= READ_PLACED && message->type <= REGION_IS) {
		verbs_handle(peer, message, rail == RAIL_VERBS);
		return;
	}
	if (message->type > READ_DATA || message->length < least[message->type]) {
		drop(peer);
		return;
	}
	switch (message->type) {
	case WRITE_DATA:
		handle_write(peer, message->data, message->length);
		break;
	case WRITE_DONE:
		handle_done(peer, message->data);
		break;
	case READ_REQUEST:
		handle_request(peer, message->data);
		break;
	case READ_DATA:
		handle_data(peer, message->data, message->length);
		break;
	default:
		break;
	}
}

/* A peer that is answered by a ring may have the same memory accessed next by udp, where the keeper serves it: what has been
 * done here is before that, as both pass the lock. */
static void settle(struct pm_endpoint *endpoint)
{
	if (!endpoint->udp)
		return;
	pthread_mutex_lock(&endpoint->udp->lock);
	pthread_mutex_unlock(&endpoint->udp->lock);
}

static int answer_write(struct service *service)
{
	void *buffer;
	int error = message_reserve(service->peer, sizeof(struct write_done), &buffer);
	if (error)
		return error;
	settle(service->peer->endpoint);
	memcpy(buffer, &(struct write_done){service->id, service->status}, sizeof(struct write_done));
	message_commit(service->peer, 0, WRITE_DONE);
	return 0;
}

/* Sends parts of what was asked for; the region may be gone by now, so it is looked at for each. */
static int answer_read(struct service *service)
{
	void *buffer;
	do {
		uint64_t left = service->length - service->done, at = service->address + service->done;
		uint32_t length = left < MOST_READ ? left : MOST_READ;
		int error = message_reserve(service->peer, sizeof(struct read_data) + length, &buffer);
		if (error)
			return error;
		if (!service->status)
			service->status = region_check(service->peer->endpoint->context->page, service->key, at, length, PM_REMOTE_READ);
		struct read_data header = {service->id, service->done, service->status};
		buffer = mempcpy(buffer, &header, sizeof(header));
		if (!service->status && length)
			memcpy(buffer, (void *)(uintptr_t)at, length);
		settle(service->peer->endpoint);
		message_commit(service->peer, 0, READ_DATA);
		service->done += length;
	} while (!service->status && service->done < service->length);
	return 0;
}

/* The same by bulk; only that the region is gone takes a message. */
static int answer_read_by_bulk(struct service *service)
{
	if (!service->status)
		service->status = udp_answer(service);
	if (service->status != -EACCES) {
		int status = service->status;
		service->status = 0;
		return status;
	}
	return answer_read(service);
}

static int answer(struct service *service)
{
	if (service->answer == WRITE_DONE)
		return answer_write(service);
	if (service->answer == REGION_IS)
		return verbs_answer_region(service);
	if (!service->status && verbs_answers(service)) {
		int status = verbs_answer(service);
		if (status != -EACCES && status != -EPERM)
			return status;
		service->generation = 0;
		service->status = status == -EACCES ? status : 0;
	}
	bool by_bulk = service->begun || (service->peer->over_udp && !service->done && service->length > UDP_BULK_LEAST);
	return by_bulk ? answer_read_by_bulk(service) : answer_read(service);
}

static void service_free(struct service *service)
{
	udp_answer_forget(service);
	TAILQ_REMOVE(&service->peer->endpoint->services, service, entry);
	service->peer->services--;
	free(service);
}

/* Answers what can be answered. */
void copied_progress(struct pm_endpoint *endpoint)
{
	struct service *service, *next;
	for (service = TAILQ_FIRST(&endpoint->services); service; service = next) {
		struct pm_peer *peer = service->peer;
		next = TAILQ_NEXT(service, entry);
		int error = answer(service);
		if (peer->status)
			break; /* its services are gone with it */
		if (!error)
			service_free(service);
	}
}

void copied_peer_gone(struct pm_peer *peer)
{
	struct service *service, *next;
	for (service = TAILQ_FIRST(&peer->endpoint->services); service; service = next) {
		next = TAILQ_NEXT(service, entry);
		if (service->peer == peer)
			service_free(service);
	}
}
