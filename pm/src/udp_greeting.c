/* udp_greeting.c - how a connection of the udp rail is made (udp.h). */
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>

#include "udp.h"

/* Greetings are repeated after 5 ms, 10 ms and so on, at most every second, for ever: the peer may be stopped. */
#define FIRST_AGAIN_NS 5000000ull
#define MOST_DOUBLED 8

_Static_assert(UDP_SEAL == crypto_auth_BYTES && PM_JOB_KEY_SIZE == crypto_auth_KEYBYTES, "libsodium's sizes");

static void seal(const struct pm_context *context, const struct udp_greeting *greeting, uint8_t made[UDP_SEAL])
{
	crypto_auth(made, (const uint8_t *)greeting, offsetof(struct udp_greeting, seal), context->job_key);
}

/* Bytes of a ring that this side would have; the smaller of both sides' is taken. */
static uint32_t own_ring(const struct pm_context *context)
{
	return context->ring_bytes < 1u << 28 ? UDP_RING_TIMES * context->ring_bytes : 1u << 30;
}

void udp_greet(struct udp *udp, struct udp_link *link, uint64_t now_ns)
{
	struct pm_endpoint *endpoint = link->peer->endpoint;
	struct udp_greeting greeting = {
		.check = GREETING_MAGIC, .link = GREETING_LINK, .type = UDP_GREETING, .version = GREETING_VERSION,
		.from = endpoint->address, .to = link->peer->address,
		.number = link->number, .ring_bytes = own_ring(endpoint->context), .socket_bytes = udp->socket_bytes,
	};
	udp_links_tell(endpoint->context, &greeting);
	memcpy(greeting.nonce, link->nonce, UDP_NONCE);
	memcpy(greeting.echo, link->far_nonce, UDP_NONCE);
	seal(endpoint->context, &greeting, greeting.seal);
	udp_send(udp, &link->first, &greeting, sizeof(greeting));
	unsigned doubled = link->greetings < MOST_DOUBLED ? link->greetings : MOST_DOUBLED;
	link->greetings++;
	link->greet_at_ns = link->sure ? NEVER : now_ns + (FIRST_AGAIN_NS << doubled);
}

/* The seed of one direction: from the job key and both nonces, the sender's first. */
static uint64_t seed(const struct pm_context *context, const uint8_t *sender, const uint8_t *receiver)
{
	uint8_t nonces[2 * UDP_NONCE], made[UDP_SEAL];
	uint64_t value;
	memcpy(nonces, sender, UDP_NONCE);
	memcpy(nonces + UDP_NONCE, receiver, UDP_NONCE);
	crypto_auth(made, nonces, sizeof(nonces), context->job_key);
	memcpy(&value, made, sizeof(value));
	return value;
}

static void open_link(struct udp_link *link, const struct udp_greeting *greeting)
{
	const struct pm_context *context = link->peer->endpoint->context;
	uint32_t bytes = own_ring(context);
	bytes = greeting->ring_bytes < bytes ? greeting->ring_bytes : bytes;
	int paths = udp_paths_open(link, greeting);
	if (paths < 0)
		return; /* without memory: the next greeting is another try */
	uint32_t segment = udp_segment_size(link->paths, paths, UDP_LEAST_SEGMENT);
	/* Half of what the kernel says it is, for what it needs itself. */
	if (flow_open(&link->flow, bytes, segment, greeting->socket_bytes / 2 / segment, paths)) {
		udp_paths_close(link, paths);
		return;
	}
	memcpy(link->far_nonce, greeting->nonce, UDP_NONCE);
	link->far_number = greeting->number;
	hash_grow(link->secret_out, seed(context, link->nonce, link->far_nonce));
	hash_grow(link->secret_in, seed(context, link->far_nonce, link->nonce));
	link->heard_ns = clock_ns();
	link->open = true;
}

/* The connection that a greeting is about. Only the owner makes new ones. */
static struct udp_link *link_of(struct pm_endpoint *endpoint, const struct udp_greeting *greeting, bool owner)
{
	struct pm_peer *peer;
	for (uint32_t i = 0; i < endpoint->udp->count; i++)
		if (!memcmp(&endpoint->udp->links[i]->peer->address, &greeting->from, sizeof(greeting->from)))
			return endpoint->udp->links[i];
	return owner && !peer_find(endpoint, &greeting->from, &peer) ? udp_link_to_locked(peer) : NULL;
}

/* The peer has shown that it knows the own nonce. */
void udp_sure(struct udp_link *link)
{
	struct pm_statistics *statistics = link->peer->endpoint->statistics;
	if (link->sure)
		return;
	link->sure = true;
	link->greet_at_ns = NEVER;
	count_both(&statistics->links_out, 1);
	count_both(&statistics->links_in, 1);
}

/* A greeting has come. */
void udp_greeted(struct pm_endpoint *endpoint, const uint8_t *data, uint32_t length, uint64_t now_ns, bool owner)
{
	struct udp_greeting greeting;
	uint8_t wanted[UDP_SEAL];
	if (length != sizeof(greeting))
		goto drop;
	memcpy(&greeting, data, sizeof(greeting));
	seal(endpoint->context, &greeting, wanted);
	if (sodium_memcmp(wanted, greeting.seal, UDP_SEAL) || greeting.version != GREETING_VERSION ||
	    memcmp(&greeting.to, &endpoint->address, sizeof(greeting.to)) ||
	    greeting.more >= FLOW_PATHS || greeting.ring_bytes < 4 * PM_MAX_MESSAGE || greeting.ring_bytes & (greeting.ring_bytes - 1))
		goto drop;
	struct udp_link *link = link_of(endpoint, &greeting, owner);
	if (!link) {
		/* The keeper puts it by; a greeting for which there is no room will be said again. */
		if (!owner && endpoint->udp->stranger_count < UDP_STRANGERS)
			endpoint->udp->strangers[endpoint->udp->stranger_count++] = greeting;
		return;
	}
	if (!link->open)
		open_link(link, &greeting);
	if (!link->open || memcmp(link->far_nonce, greeting.nonce, UDP_NONCE))
		return; /* an old one, that somebody says again */
	bool echoed = !memcmp(greeting.echo, link->nonce, UDP_NONCE);
	if (echoed && !link->sure) {
		udp_sure(link);
		udp_greet(endpoint->udp, link, now_ns); /* so that the other is sure, too; unanswered, it asks again */
	} else if (!echoed) {
		udp_greet(endpoint->udp, link, now_ns);
	} else {
		udp_say(endpoint->udp, link, now_ns, UDP_NEWS); /* the answer was lost; this is as good a one, and is not answered */
	}
	return;
drop:
	count_both(&endpoint->statistics->dropped, 1);
}

/* The owner answers those whom the keeper has heard. */
void udp_answer_strangers(struct pm_endpoint *endpoint, uint64_t now_ns)
{
	struct udp *udp = endpoint->udp;
	while (udp->stranger_count)
		udp_greeted(endpoint, (const uint8_t *)&udp->strangers[--udp->stranger_count], sizeof(*udp->strangers), now_ns, true);
}
