/* endpoint.c - a channel: its life, and its messages. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "message.h"
#include "verbs.h"

/* So many messages are taken from one peer on end while others wait. */
#define STREAK 16
/* What is done now and then is done every so many calls, a power of two. */
#define TURNS 64

static int enter(struct pm_endpoint *endpoint)
{
	struct pm_context *context = endpoint->context;
	int error = -ENOSPC;
	pthread_mutex_lock(&context->lock);
	for (uint32_t i = 0; i < SHARED_ENDPOINTS; i++) {
		if (context->endpoints[i])
			continue;
		endpoint->number = i;
		endpoint->shared = &context->page->endpoints[i];
		endpoint->statistics = &endpoint->shared->statistics;
		memset(endpoint->statistics, 0, sizeof(*endpoint->statistics));
		address_make(&endpoint->address, context->id, i, ++context->serial);
		if (rail_allowed(context, RAIL_UDP))
			udp_open(endpoint); /* without it, the endpoint is one of this machine */
		endpoint->shared->address = endpoint->address;
		atomic_store(&endpoint->shared->asleep, 0);
		atomic_store(&endpoint->shared->serial, context->serial);
		context->endpoints[i] = endpoint;
		if (!TAILQ_EMPTY(&context->orders))
			rail_notice(endpoint);
		error = 0;
		break;
	}
	pthread_mutex_unlock(&context->lock);
	return error;
}

EXPORT int pm_endpoint_open(struct pm_context *context, struct pm_endpoint **opened)
{
	struct pm_endpoint *endpoint = calloc(1, sizeof(*endpoint));
	if (!endpoint)
		return -ENOMEM;
	endpoint->context = context;
	pthread_mutex_init(&endpoint->seat, NULL);
	STAILQ_INIT(&endpoint->events);
	TAILQ_INIT(&endpoint->operations);
	TAILQ_INIT(&endpoint->services);
	endpoint->doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	int error = endpoint->doorbell < 0 ? -errno : enter(endpoint);
	if (error) {
		if (endpoint->doorbell >= 0)
			close(endpoint->doorbell);
		pthread_mutex_destroy(&endpoint->seat);
		free(endpoint);
		return error;
	}
	*opened = endpoint;
	return 0;
}

EXPORT int pm_endpoint_close(struct pm_endpoint *endpoint)
{
	struct pm_context *context = endpoint->context;
	struct pm_peer *peer, *next;
	while (!endpoint_enter(endpoint)) {
		/* It was put aside, and now it ends. */
		pthread_mutex_lock(&endpoint->seat);
		atomic_store(&endpoint->held, false);
		endpoint_give_back(endpoint);
	}
	help_settle(endpoint);
	verbs_linger(endpoint);
	udp_close(endpoint);
	pthread_mutex_lock(&context->lock);
	context->endpoints[endpoint->number] = NULL;
	order_endpoint_closed(context, endpoint->number);
	atomic_store(&endpoint->shared->serial, 0);
	pthread_mutex_unlock(&context->lock);
	/* Who has just given it back may still hold that, and nobody else comes to it now. */
	pthread_mutex_lock(&endpoint->seat);
	pthread_mutex_unlock(&endpoint->seat);
	link_close_all(endpoint);
	verbs_endpoint_close(endpoint);
	HASH_ITER(hh, endpoint->peers, peer, next) {
		copied_peer_gone(peer);
		HASH_DEL(endpoint->peers, peer);
		free(peer->unanswered);
		free(peer);
	}
	operation_free_all(endpoint);
	sleeper_free(endpoint);
	close(endpoint->doorbell);
	pthread_mutex_destroy(&endpoint->seat);
	free(endpoint->inbound);
	free(endpoint);
	return 0;
}

EXPORT int pm_endpoint_address(struct pm_endpoint *endpoint, struct pm_address *address)
{
	*address = endpoint->address;
	return 0;
}

static inline int reserve(struct pm_peer *peer, uint32_t length, void **buffer)
{
	if (unlikely(!endpoint_enter(peer->endpoint)))
		return -EAGAIN;
	int error = message_reserve(peer, length, buffer);
	if (unlikely(error))
		endpoint_leave(peer->endpoint);
	return error; /* it is left by commit */
}

static inline void commit(struct pm_peer *peer, uint8_t kind)
{
	struct pm_statistics *statistics = peer->endpoint->statistics;
	count(&statistics->messages_sent, 1);
	count(&statistics->message_bytes_sent, likely(peer->out != NULL) ? peer->out->ring.length : peer->udp->flow.reserved_length);
	message_commit(peer, kind, MESSAGE);
	endpoint_leave(peer->endpoint);
}

EXPORT int pm_reserve(struct pm_peer *peer, uint32_t length, void **buffer)
{
	return reserve(peer, length, buffer);
}

EXPORT void pm_commit(struct pm_peer *peer, uint8_t kind)
{
	commit(peer, kind);
}

EXPORT int pm_send(struct pm_peer *peer, uint8_t kind, const struct iovec *parts, int n)
{
	size_t length = 0;
	void *buffer;
	for (int i = 0; i < n; i++) {
		if (parts[i].iov_len > PM_MAX_MESSAGE - length)
			return -EMSGSIZE;
		length += parts[i].iov_len;
	}
	int error = reserve(peer, length, &buffer);
	if (error)
		return error;
	for (int i = 0; i < n; i++)
		if (parts[i].iov_len)
			buffer = mempcpy(buffer, parts[i].iov_base, parts[i].iov_len);
	commit(peer, kind);
	return 0;
}

/* What is left to do when no message is there, and now and then when there are many. */
static void look_around(struct pm_endpoint *endpoint)
{
	if (unlikely(atomic_load_explicit(&endpoint->attention, memory_order_relaxed)))
		link_news(endpoint);
	if (endpoint->busy)
		operation_progress(endpoint);
}

/* The next message of any peer, beginning with the one that sent last. */
static struct inbound *find_message(struct pm_endpoint *endpoint, struct ring_message *found)
{
	unsigned at = endpoint->inbound_at;
	for (unsigned i = 0; i < endpoint->inbound_count; i++) {
		struct inbound *inbound = endpoint->inbound[at];
		if (ring_peek(&inbound->ring, found, PM_MAX_MESSAGE)) {
			if (at != endpoint->inbound_at) {
				endpoint->inbound_at = at;
				endpoint->streak = 0;
			}
			return inbound;
		}
		if (unlikely(inbound->ring.broken || inbound->closed))
			atomic_store_explicit(&endpoint->attention, true, memory_order_relaxed); /* for this thread */
		if (++at >= endpoint->inbound_count)
			at = 0;
	}
	return NULL;
}

static inline void take(struct pm_endpoint *endpoint, struct inbound *inbound, uint32_t length)
{
	ring_take(&inbound->ring, length);
	if (unlikely(++endpoint->streak >= STREAK)) {
		endpoint->streak = 0;
		if (++endpoint->inbound_at >= endpoint->inbound_count)
			endpoint->inbound_at = 0;
	}
}

static inline int deliver(struct pm_endpoint *endpoint, struct pm_message *message, struct pm_peer *peer,
			  const struct ring_message *found)
{
	message->peer = peer;
	message->data = found->data;
	message->length = found->length;
	message->kind = found->kind;
	endpoint->current_length = found->length;
	count(&endpoint->statistics->messages_received, 1);
	count(&endpoint->statistics->message_bytes_received, found->length);
	return 1;
}

/* The next message that came over the udp rail. A look at its socket is a system call: where there are rings, too, it
 * is made only now and then as long as nothing comes. */
static int receive_udp(struct pm_endpoint *endpoint, struct pm_message *message)
{
	struct udp *udp = endpoint->udp;
	struct ring_message found;
	struct udp_link *link;
	unsigned rings = endpoint->inbound_count, quiet = udp->quiet;
	unsigned seldom = !udp->count || (rings && quiet > 256) ? 256 : rings && quiet > 16 ? 16 : 1;
	bool look = (endpoint->turns & (seldom - 1)) == 0;
	if (!look && !udp->more)
		return 0;
	for (; (udp->more = udp_receive(endpoint, look, &found, &link)); look = false) {
		if (likely(found.type == MESSAGE)) {
			endpoint->current_udp = link;
			endpoint->current = INBOUND_UDP;
			return deliver(endpoint, message, link->peer, &found);
		}
		copied_handle(link->peer, &found, RAIL_UDP);
		udp_take(link, found.length);
	}
	return 0;
}

static inline int receive(struct pm_endpoint *endpoint, struct pm_message *message)
{
	struct ring_message found;
	struct inbound *inbound;
	if (unlikely((++endpoint->turns & (TURNS - 1)) == 0)) {
		look_around(endpoint);
		if (endpoint->udp && receive_udp(endpoint, message))
			return 1;
		if (endpoint->verbs)
			verbs_look(endpoint);
	}
	do {
		while ((inbound = find_message(endpoint, &found))) {
			if (likely(found.type == MESSAGE)) {
				endpoint->current = inbound;
				if (likely(inbound->peer->out != NULL))
					ring_fetch(&inbound->peer->out->ring);
				return deliver(endpoint, message, inbound->peer, &found);
			}
			if (found.type != HELP)
				copied_handle(inbound->peer, &found, inbound->rail);
			else if (!inbound->closed)
				help_handle(inbound, &found);
			take(endpoint, inbound, found.length);
		}
	} while (unlikely(endpoint->verbs) && verbs_look(endpoint));
	look_around(endpoint);
	return endpoint->udp ? receive_udp(endpoint, message) : 0;
}

EXPORT int pm_receive(struct pm_endpoint *endpoint, struct pm_message *message)
{
	if (unlikely(!endpoint_enter(endpoint)))
		return 0;
	if (receive(endpoint, message))
		return 1; /* it is left by pm_release */
	endpoint_leave(endpoint);
	return 0;
}

EXPORT void pm_release(struct pm_endpoint *endpoint, const struct pm_message *message)
{
	(void)message;
	if (likely(endpoint->current > INBOUND_UDP))
		take(endpoint, endpoint->current, endpoint->current_length);
	else if (endpoint->current)
		udp_take(endpoint->current_udp, endpoint->current_length);
	endpoint->current = NULL;
	endpoint_leave(endpoint);
}

EXPORT int pm_next_event(struct pm_endpoint *endpoint, struct pm_event *event)
{
	if (unlikely(!endpoint_enter(endpoint)))
		return 0;
	struct event_node *node = STAILQ_FIRST(&endpoint->events);
	if (unlikely(node)) {
		STAILQ_REMOVE_HEAD(&endpoint->events, entry);
		*event = node->event;
		if (event->type != PM_PEER_GONE)
			operation_free(endpoint, (struct operation *)node);
	}
	endpoint_leave(endpoint);
	return node != NULL;
}

EXPORT void pm_statistics(const struct pm_endpoint *endpoint, struct pm_statistics *statistics)
{
	statistics_copy(statistics, endpoint->statistics);
}
