/* udp.c - the udp rail of an endpoint: its socket, its connections, and what they do when they get a turn. */
#include "udp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link.h"

/* Datagrams that are taken in one look, at most; each may be a train of packets of one connection (UDP_GRO). */
#define TRAINS 8
#define TRAIN_BYTES 65536
#define SHORT_TRAIN 4096
#define SOCKET_BYTES (4 << 20)
/* An endpoint that is closed stays for what it has sent to arrive until so long after the last of it has. */
#define LINGER_NS 2000000000ull
/* What has come of a peer that is gone is taken by so many looks, unless others send very much. */
#define LAST_LOOKS 64
/* A goodbye is not acknowledged. */
#define GOODBYES 3
/* A peer of which something is awaited is asked whether it is there after so long a silence. */
#define ASK_NS 1000000000ull
/* So many greetings are said before they are a second apart. */
#define FIRST_GREETINGS 8

static int open_socket(struct udp *udp, const struct sockaddr_storage *own, socklen_t length)
{
	static const int on = 1, bytes = SOCKET_BYTES, want = IP_PMTUDISC_WANT;
	struct sockaddr_storage any = {.ss_family = own->ss_family};
	udp->fd = socket(own->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (udp->fd < 0 || bind(udp->fd, (struct sockaddr *)&any, length))
		return -errno;
	/* What the kernel does not have, or does not allow, makes this slower, not wrong. */
	setsockopt(udp->fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
	setsockopt(udp->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	setsockopt(udp->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	/* Packets are made to fit; those that were made before the way became narrower are cut by the kernel. */
	if (own->ss_family == AF_INET)
		setsockopt(udp->fd, IPPROTO_IP, IP_MTU_DISCOVER, &want, sizeof(want));
	else
		setsockopt(udp->fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &want, sizeof(want));
	return 0;
}

static int set_address(struct udp *udp, struct sockaddr_storage *own, struct pm_address *address)
{
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	if (getsockname(udp->fd, (struct sockaddr *)&bound, &length))
		return -errno;
	if (own->ss_family == AF_INET)
		((struct sockaddr_in *)own)->sin_port = ((struct sockaddr_in *)&bound)->sin_port;
	else
		((struct sockaddr_in6 *)own)->sin6_port = ((struct sockaddr_in6 *)&bound)->sin6_port;
	udp_address_put(address, own);
	return 0;
}

/* Gives the endpoint a socket, and its address where that is; an endpoint without is one of this machine only. */
int udp_open(struct pm_endpoint *endpoint)
{
	struct sockaddr_storage own;
	socklen_t length;
	int error = sodium_init() < 0 ? -EIO : udp_address_own(&own, &length);
	if (error)
		return error;
	struct udp *udp = calloc(1, sizeof(*udp));
	if (!udp)
		return -ENOMEM;
	pthread_mutex_init(&udp->lock, NULL);
	udp->train = malloc(TRAIN_BYTES);
	udp->look_at_ns = NEVER;
	udp->patience = endpoint->context->patience_s;
	error = udp->train ? open_socket(udp, &own, length) : -ENOMEM;
	if (!error)
		error = set_address(udp, &own, &endpoint->address);
	if (error) {
		if (udp->fd > 0)
			close(udp->fd);
		free(udp->train);
		free(udp);
		return error;
	}
	udp->packets = keeper_watch(endpoint->context, udp->fd, SOCKET_PACKETS);
	endpoint->udp = udp;
	return 0;
}

/* Whether a peer may be on another machine: there is a way to it, and its IP address is not the own one. */
bool udp_elsewhere(const struct pm_peer *peer)
{
	struct sockaddr_storage to;
	socklen_t length;
	const struct pm_endpoint *endpoint = peer->endpoint;
	return endpoint->udp && udp_address_get(&peer->address, &to, &length) &&
	       !udp_address_same_host(&peer->address, &endpoint->address);
}

/* The connection to a peer, made if there is none; NULL: there is no way, or no memory. */
struct udp_link *udp_link_to_locked(struct pm_peer *peer)
{
	struct udp *udp = peer->endpoint->udp;
	if (peer->udp || !udp)
		return peer->udp;
	if (udp->count == udp->room) {
		uint32_t room = udp->room ? 2 * udp->room : 16;
		struct udp_link **links = realloc(udp->links, room * sizeof(*links));
		if (!links)
			return NULL;
		udp->links = links;
		udp->room = room;
	}
	struct udp_link *link = calloc(1, sizeof(*link));
	if (!link || !udp_address_get(&peer->address, &link->to, &link->to_length)) {
		free(link);
		return NULL;
	}
	link->peer = peer;
	link->number = udp->count;
	link->heard_ns = clock_ns();
	randombytes_buf(link->nonce, sizeof(link->nonce));
	udp->links[udp->count++] = link;
	peer->udp = link;
	link->greet_at_ns = 0;
	udp->look_at_ns = 0;
	return link;
}

struct udp_link *udp_link_to(struct pm_peer *peer)
{
	struct udp *udp = peer->endpoint->udp;
	if (peer->udp || !udp)
		return peer->udp;
	pthread_mutex_lock(&udp->lock);
	struct udp_link *link = udp_link_to_locked(peer);
	pthread_mutex_unlock(&udp->lock);
	return link;
}

int udp_reserve(struct pm_peer *peer, uint32_t length, void **buffer)
{
	struct udp_link *link = peer->udp;
	if (peer->status)
		return peer->status;
	if (length > PM_MAX_MESSAGE)
		return -EMSGSIZE;
	struct udp *udp = peer->endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	bool sure = link->sure;
	*buffer = sure ? flow_reserve(&link->flow, length) : NULL;
	if (!*buffer)
		udp->look_at_ns = 0;
	pthread_mutex_unlock(&udp->lock);
	if (*buffer)
		return 0;
	if (sure)
		count(&peer->endpoint->statistics->no_room, 1);
	udp_progress(peer->endpoint);
	peer->endpoint->starved = true;
	return -EAGAIN;
}

/* A message goes off at once when nothing is on its way, else with others, when a packet is full or at the next turn. */
void udp_commit(struct pm_peer *peer, uint8_t kind, uint8_t type)
{
	struct udp *udp = peer->endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	flow_commit(&peer->udp->flow, kind, type);
	udp_flush(udp, peer->udp, clock_ns(), true);
	udp->look_at_ns = 0;
	pthread_mutex_unlock(&udp->lock);
	keeper_tick(peer->endpoint->context);
}

/* Gives the room of a message back. */
void udp_take(struct udp_link *link, uint32_t length)
{
	struct udp *udp = link->peer->endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	flow_take(&link->flow, length);
	if (flow_news_due(&link->flow, NEVER - 1))
		udp->look_at_ns = 0;
	pthread_mutex_unlock(&udp->lock);
}

static void take_train(struct pm_endpoint *endpoint, const struct msghdr *message, const uint8_t *data, uint32_t length, uint64_t now_ns,
		       bool owner)
{
	struct udp *udp = endpoint->udp;
	uint32_t size = length;
	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR((struct msghdr *)message, header)) {
		int given;
		memcpy(&given, CMSG_DATA(header), sizeof(given));
		if (header->cmsg_level == IPPROTO_UDP && header->cmsg_type == UDP_GRO && given > 0)
			size = given;
	}
	for (uint32_t at = 0; at < length; at += size) {
		uint32_t piece = length - at < size ? length - at : size, number;
		if (piece < sizeof(struct udp_packet)) {
			count_both(&endpoint->statistics->dropped, 1);
			continue;
		}
		memcpy(&number, data + at + offsetof(struct udp_packet, link), sizeof(number));
		if (number == GREETING_LINK)
			udp_greeted(endpoint, data + at, piece, now_ns, owner);
		else if (number < udp->count && udp->links[number]->open && udp->links[number]->peer->status)
			udp_refuse(endpoint, udp->links[number], data + at, piece, now_ns);
		else if (number < udp->count && udp->links[number]->open)
			udp_take_packet(endpoint, udp->links[number], data + at, piece, now_ns);
		else
			count_both(&endpoint->statistics->dropped, 1);
	}
}

/* Whether a message may be handed out: what its sender has put into a ring before is read first. */
static bool in_turn(const struct udp_link *link, const struct ring_message *found)
{
	return !link->peer->rings && found->type < RING_OPEN;
}

static bool take_packets(struct pm_endpoint *endpoint, uint64_t now_ns, bool owner)
{
	struct udp *udp = endpoint->udp;
	char control[CMSG_SPACE(sizeof(int))];
	for (int i = 0; i < TRAINS; i++) {
		struct iovec part = {udp->train, TRAIN_BYTES};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
		ssize_t length = recvmsg(udp->fd, &message, MSG_DONTWAIT);
		if (length < 0)
			return i > 0;
		take_train(endpoint, &message, udp->train, length, now_ns, owner);
		/* After a short train there is seldom another one just then: it is found by the next look. */
		if (length < SHORT_TRAIN)
			return true;
	}
	return true;
}

/* Sends what is due of a connection; when it wants to be looked at next. */
static uint64_t look_at_link(struct udp *udp, struct udp_link *link, uint64_t now_ns)
{
	if (link->peer->status)
		return NEVER;
	if (now_ns >= link->greet_at_ns)
		udp_greet(udp, link, now_ns);
	link->silent = !link->sure && link->greetings > udp->patience + FIRST_GREETINGS;
	if (!link->open)
		return link->greet_at_ns;
	if (flow_alarm(&link->flow, now_ns))
		udp_say(udp, link, now_ns, UDP_PING);
	if (link->sure)
		udp_flush(udp, link, now_ns, false);
	if (flow_news_due(&link->flow, now_ns))
		udp_say(udp, link, now_ns, UDP_NEWS);
	uint64_t at = flow_alarm_at(&link->flow);
	at = at < link->greet_at_ns ? at : link->greet_at_ns;
	if (link->goodbye) {
		/* All is here, or what is lacking was lost with its sender. */
		link->stray = link->flow.in_next >= link->goodbye_at || now_ns >= link->heard_ns + LINGER_NS;
		return link->stray || at < link->heard_ns + LINGER_NS ? at : link->heard_ns + LINGER_NS;
	}
	if (flow_idle(&link->flow) && !link->flow.starved && (!link->peer->copies || !link->peer->over_udp)) {
		link->asks = 0;
		link->asked_ns = now_ns;
		return at;
	}
	/* Something is awaited of the peer. Its silence is counted in asks, so that only time counts in which it was asked. */
	uint64_t ask = (link->heard_ns > link->asked_ns ? link->heard_ns : link->asked_ns) + ASK_NS;
	if (now_ns >= ask) {
		link->asked_ns = now_ns;
		ask = now_ns + ASK_NS;
		link->asks++;
		udp_say(udp, link, now_ns, UDP_PING);
	}
	link->silent = link->silent || link->asks > udp->patience;
	return at < ask ? at : ask;
}

static void look_at_links(struct udp *udp, uint64_t now_ns)
{
	uint64_t at = NEVER;
	for (uint32_t i = 0; i < udp->count; i++) {
		uint64_t wants = look_at_link(udp, udp->links[i], now_ns);
		at = wants < at ? wants : at;
	}
	udp->look_at_ns = at;
}

/* Whether somebody waits for news of what has come. */
static bool owes_news(const struct udp *udp)
{
	for (uint32_t i = 0; i < udp->count; i++)
		if (udp->links[i]->open && !udp->links[i]->peer->status && udp->links[i]->flow.unacknowledged)
			return true;
	return false;
}

/* Whether all that was sent has arrived, as far as it can. */
static bool all_idle(const struct udp *udp)
{
	for (uint32_t i = 0; i < udp->count; i++) {
		const struct udp_link *link = udp->links[i];
		if (link->sure && !link->goodbye && !link->peer->status && !flow_idle(&link->flow))
			return false;
	}
	return true;
}

/* Whether a peer has said something about rings that has not been taken. */
static bool speaks_of_rings(struct udp *udp)
{
	struct ring_message found;
	for (uint32_t i = 0; i < udp->count; i++)
		if (udp->links[i]->open && !udp->links[i]->peer->status && flow_peek(&udp->links[i]->flow, &found, PM_MAX_MESSAGE) &&
		    found.type >= RING_OPEN)
			return true;
	return false;
}

/* Takes what has come, and sends what may be sent. */
void udp_progress(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	uint64_t now_ns = clock_ns();
	bool came = take_packets(endpoint, now_ns, true);
	udp->quiet = came ? 0 : udp->quiet + 1;
	atomic_fetch_add_explicit(&udp->turns, 1, memory_order_relaxed);
	if (came || now_ns >= udp->look_at_ns)
		look_at_links(udp, now_ns);
	pthread_mutex_unlock(&udp->lock);
	if (came)
		keeper_tick(endpoint->context);
}

/* The keeper's turn, in the owner's stead if that has not come by since the last one. False: nobody waits for anything. */
bool udp_tick(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	bool took = false;
	uint64_t turns = atomic_load_explicit(&udp->turns, memory_order_relaxed);
	bool away = turns == udp->turns_seen, seized = away && endpoint_seize(endpoint);
	pthread_mutex_lock(&udp->lock);
	if (away) {
		uint64_t now_ns = clock_ns();
		took = take_packets(endpoint, now_ns, seized);
		look_at_links(udp, now_ns);
	}
	udp->turns_seen = turns;
	bool busy = !all_idle(udp) || owes_news(udp), rings = speaks_of_rings(udp);
	pthread_mutex_unlock(&udp->lock);
	if (seized)
		endpoint_give_back(endpoint);
	if (rings)
		rail_notice(endpoint);
	/* The owner may sleep for what has just been taken out of its socket. */
	if (took && udp_ready(endpoint))
		endpoint_notice(endpoint);
	return busy;
}

/* The next message of any connection. */
bool udp_find(struct pm_endpoint *endpoint, struct ring_message *found, struct udp_link **of)
{
	struct udp *udp = endpoint->udp;
	struct udp_link *gone = NULL;
	*of = NULL;
	pthread_mutex_lock(&udp->lock);
	for (uint32_t i = 0; i < udp->count && !*of; i++) {
		struct udp_link *link = udp->links[udp->at];
		udp->at = udp->at + 1 < udp->count ? udp->at + 1 : 0;
		if (link->peer->status)
			continue;
		if (link->open && flow_peek(&link->flow, found, PM_MAX_MESSAGE)) {
			if (in_turn(link, found))
				*of = link;
			else if (found->type >= RING_OPEN)
				rail_notice(endpoint);
		} else if (link->stray || link->silent || link->flow.broken) {
			if (link->peer->rings)
				link_ended(link->peer);
			else
				gone = link;
		}
	}
	if (gone && gone->open && !gone->goodbye)
		udp_say(udp, gone, clock_ns(), UDP_BYE); /* if it is lost, the next packet of the peer is answered by another */
	pthread_mutex_unlock(&udp->lock);
	if (gone)
		peer_gone(gone->peer, gone->flow.broken ? -EPROTO : gone->stray ? -EHOSTDOWN : -ETIMEDOUT);
	return *of;
}

/* Whether there is a message that has come already. */
bool udp_ready(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	struct ring_message found;
	bool ready = false;
	pthread_mutex_lock(&udp->lock);
	for (uint32_t i = 0; i < udp->count && !ready; i++) {
		struct udp_link *link = udp->links[i];
		ready = !link->peer->status && (link->stray || link->silent || link->flow.broken ||
						(link->open && flow_peek(&link->flow, &found, PM_MAX_MESSAGE) && in_turn(link, &found)));
	}
	pthread_mutex_unlock(&udp->lock);
	return ready;
}

/* Takes what peers say about rings; whether some of it cannot be taken yet. */
bool udp_hear_of_rings(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	struct ring_message found;
	bool later = false;
	for (uint32_t i = 0; udp && i < udp->count; i++) {
		struct udp_link *link = udp->links[i];
		for (bool taken = true; taken;) {
			pthread_mutex_lock(&udp->lock);
			taken = link->open && !link->peer->status && flow_peek(&link->flow, &found, PM_MAX_MESSAGE) && found.type >= RING_OPEN;
			pthread_mutex_unlock(&udp->lock);
			/* What has been found stays where it is until it is taken. */
			if (taken && !rail_handle(link->peer, &found)) {
				later = true;
				taken = false;
			}
			if (taken)
				udp_take(link, found.length);
		}
	}
	return later;
}

/* A peer is known to be gone: that is told when what it has sent has been received. */
void udp_ended(struct pm_peer *peer)
{
	struct udp *udp = peer->endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	for (int i = 0; i < LAST_LOOKS && !peer->udp->stray && take_packets(peer->endpoint, clock_ns(), true); i++)
		;
	peer->udp->stray = peer->udp->goodbye = true;
	pthread_mutex_unlock(&udp->lock);
}

/* A packet for a sleeper that has a message elsewhere. */
void udp_wake(struct pm_peer *peer)
{
	struct udp *udp = peer->endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	udp_say(udp, peer->udp, clock_ns(), UDP_NEWS);
	pthread_mutex_unlock(&udp->lock);
}

/* Whether all that was sent has arrived, and nobody waits for news. */
bool udp_quiet(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	if (!udp)
		return true;
	pthread_mutex_lock(&udp->lock);
	bool quiet = all_idle(udp) && !owes_news(udp);
	pthread_mutex_unlock(&udp->lock);
	return quiet;
}

/* How long a sleeper may sleep before the rail needs a turn, ms; -1: for ever. */
int udp_wait_ms(struct pm_endpoint *endpoint)
{
	uint64_t at, now_ns;
	pthread_mutex_lock(&endpoint->udp->lock);
	at = endpoint->udp->look_at_ns;
	pthread_mutex_unlock(&endpoint->udp->lock);
	if (at == NEVER)
		return -1;
	now_ns = clock_ns();
	return at <= now_ns ? 0 : (at - now_ns) / 1000000 + 1;
}

/* How much has arrived of what was sent, over all connections. */
static uint64_t arrived_of_all(const struct udp *udp)
{
	uint64_t all = 0;
	for (uint32_t i = 0; i < udp->count; i++)
		all += udp->links[i]->open ? udp->links[i]->flow.first + udp->links[i]->flow.consumed : 0;
	return all;
}

/* Waits until all that was sent has arrived, or nothing more has for some time. */
static void linger(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	struct pollfd socket = {.fd = udp->fd, .events = POLLIN};
	uint64_t until = 0, arrived = 0;
	for (;;) {
		udp_progress(endpoint);
		pthread_mutex_lock(&udp->lock);
		bool idle = all_idle(udp);
		uint64_t now = arrived_of_all(udp), now_ns = clock_ns();
		pthread_mutex_unlock(&udp->lock);
		if (!until || now != arrived)
			until = now_ns + LINGER_NS;
		if (idle || now_ns >= until)
			return;
		arrived = now;
		poll(&socket, 1, 1);
	}
}

void udp_close(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	if (!udp)
		return;
	linger(endpoint);
	pthread_mutex_lock(&endpoint->context->lock); /* the keeper looks no more */
	endpoint->udp = NULL;
	pthread_mutex_unlock(&endpoint->context->lock);
	for (uint32_t i = 0; i < udp->count; i++) {
		struct udp_link *link = udp->links[i];
		if (link->open) {
			for (int j = 0; j < GOODBYES && !link->goodbye; j++)
				udp_say(udp, link, clock_ns(), UDP_BYE);
			flow_close(&link->flow);
		}
		link->peer->udp = NULL;
		free(link);
	}
	pthread_mutex_lock(&endpoint->context->lock);
	keeper_forget(endpoint->context, udp->packets); /* closes fd */
	pthread_mutex_unlock(&endpoint->context->lock);
	free(udp->links);
	free(udp->train);
	pthread_mutex_destroy(&udp->lock);
	free(udp);
}
