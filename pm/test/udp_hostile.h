/* udp_hostile.h - a peer on the udp rail that says what it likes: what it says is put into its stream as if it had come. */
#ifndef UDP_HOSTILE_H
#define UDP_HOSTILE_H

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "udp.h"

#define HOSTILE_MOST 384 /* octets of a message */

static inline void hostile_greet(struct pm_endpoint *endpoint, const struct pm_address *far)
{
	struct udp_greeting greeting = {
		.check = GREETING_MAGIC, .link = GREETING_LINK, .type = UDP_GREETING, .version = GREETING_VERSION,
		.from = *far, .to = endpoint->address, .ring_bytes = 65536,
	};
	pthread_mutex_lock(&endpoint->udp->lock);
	if (endpoint->udp->count)
		memcpy(greeting.echo, endpoint->udp->links[0]->nonce, UDP_NONCE);
	crypto_auth(greeting.seal, (uint8_t *)&greeting, offsetof(struct udp_greeting, seal), endpoint->context->job_key);
	udp_greeted(endpoint, (uint8_t *)&greeting, sizeof(greeting), clock_ns(), true);
	pthread_mutex_unlock(&endpoint->udp->lock);
}

/* The first peer of an endpoint, which is at port 9 of the loopback: nobody. The keeper does nothing in this thread's stead
 * from now on, as that looks at what would change then. */
static inline struct udp_link *hostile_meet(struct pm_endpoint *endpoint)
{
	struct pm_address far = endpoint->address;
	far.bytes[9] ^= 1;
	far.bytes[40] = 0;
	far.bytes[41] = 9;
	pthread_mutex_lock(&endpoint->seat);
	hostile_greet(endpoint, &far);
	hostile_greet(endpoint, &far);
	if (!endpoint->udp->count || !endpoint->udp->links[0]->sure)
		abort();
	return endpoint->udp->links[0];
}

/* Before the endpoint is closed. Nobody will acknowledge anything: it is not waited for. */
static inline void hostile_part(struct udp_link *link)
{
	struct pm_endpoint *endpoint = link->peer->endpoint;
	pthread_mutex_lock(&endpoint->udp->lock);
	link->goodbye = true;
	pthread_mutex_unlock(&endpoint->udp->lock);
	pthread_mutex_unlock(&endpoint->seat);
}

/* A message comes in the peer's stream, and all that was sent to it has arrived. */
static inline void hostile_arrive(struct udp_link *link, uint8_t type, const void *data, uint32_t length)
{
	struct udp *udp = link->peer->endpoint->udp;
	struct flow *flow = &link->flow;
	struct {
		uint32_t length;
		uint8_t kind, type;
		uint16_t mark;
		uint8_t data[HOSTILE_MOST];
	} frame = {.length = length, .type = type, .mark = 0x4d50};
	if (length > HOSTILE_MOST)
		abort();
	memcpy(frame.data, data, length);
	pthread_mutex_lock(&udp->lock);
	struct flow_news news = {.next = flow->next, .consumed = flow->head};
	flow_arrive(flow, clock_ns(), flow->in_next, flow->contiguous, (uint8_t *)&frame, (FLOW_FRAME + length + 7) & ~7u);
	flow_learn(flow, clock_ns(), 0, &news);
	pthread_mutex_unlock(&udp->lock);
}

/* The endpoint receives what there is, and every octet of it is looked at. */
static inline void hostile_receive_all(struct pm_endpoint *endpoint)
{
	struct pm_message message;
	struct pm_event event;
	volatile uint8_t sum __attribute__((unused)) = 0;
	for (int i = 0; i < 64 && pm_receive(endpoint, &message); i++) {
		for (uint32_t j = 0; j < message.length; j++)
			sum += ((const uint8_t *)message.data)[j];
		pm_release(endpoint, &message);
	}
	while (pm_next_event(endpoint, &event))
		;
}

#endif
