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

#define SOCKET_BYTES (4 << 20)
/* What has come of a peer that is gone is taken by so many looks, unless others send very much. */
#define LAST_LOOKS 64
/* So many packets are acknowledged at once while more are there: some of what the socket holds. */
#define LEAST_MANY 16
#define MOST_MANY 256
/* A goodbye is not acknowledged. */
#define GOODBYES 3

/* What the kernel does not have, or does not allow, makes this slower, not wrong. */
static void set_sending(int fd, int family)
{
	static const int bytes = SOCKET_BYTES, want = IP_PMTUDISC_WANT;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	/* Packets are made to fit; those that were made before the way became narrower are cut by the kernel. */
	if (family == AF_INET)
		setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &want, sizeof(want));
	else
		setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &want, sizeof(want));
}

static int open_socket(struct udp *udp, const struct sockaddr_storage *own, socklen_t length)
{
	static const int on = 1, bytes = SOCKET_BYTES;
	struct sockaddr_storage any = {.ss_family = own->ss_family};
	socklen_t size = sizeof(udp->socket_bytes);
	udp->fd = socket(own->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (udp->fd < 0 || bind(udp->fd, (struct sockaddr *)&any, length))
		return -errno;
	setsockopt(udp->fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
	setsockopt(udp->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	if (getsockopt(udp->fd, SOL_SOCKET, SO_RCVBUF, &udp->socket_bytes, &size))
		return -errno;
	udp->many = udp->socket_bytes / 16384;
	udp->many = udp->many < LEAST_MANY ? LEAST_MANY : udp->many < MOST_MANY ? udp->many : MOST_MANY;
	set_sending(udp->fd, own->ss_family);
	return 0;
}

/* A socket to send to one peer by, by a link: the kernel looks for the way once, and not for each packet. Without one, for
 * which there may be too many peers, the endpoint's own serves. */
int udp_open_sending(const struct pm_context *context, unsigned link, const struct udp_path *path)
{
	static const int none = 0;
	int fd = socket(path->to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &none, sizeof(none));
	set_sending(fd, path->to.ss_family);
	udp_links_bind(context, link, fd);
	if (!connect(fd, (const struct sockaddr *)&path->to, path->to_length))
		return fd;
	close(fd);
	return -1;
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
	int error = sodium_init() < 0 ? -EIO : udp_address_own(endpoint->context, &own, &length);
	if (error)
		return error;
	struct udp *udp = calloc(1, sizeof(*udp));
	if (!udp)
		return -ENOMEM;
	pthread_mutex_init(&udp->lock, NULL);
	udp->train = malloc(3 * UDP_TRAIN_BYTES);
	udp->train_out = udp->train + UDP_TRAIN_BYTES;
	TAILQ_INIT(&udp->placed);
	udp->look_at_ns = NEVER;
	udp->patience = endpoint->context->patience_s;
	error = udp->train ? open_socket(udp, &own, length) : -ENOMEM;
	if (!error && !(udp->packets = keeper_watch(endpoint->context, udp->fd, SOCKET_PACKETS)))
		error = -ENOMEM;
	if (!error)
		error = set_address(udp, &own, &endpoint->address);
	if (error) {
		if (udp->packets)
			keeper_forget(endpoint->context, udp->packets); /* closes fd */
		else if (udp->fd > 0)
			close(udp->fd);
		free(udp->train);
		free(udp);
		return error;
	}
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
	if (!link || !udp_address_get(&peer->address, &link->first.to, &link->first.to_length)) {
		free(link);
		return NULL;
	}
	link->peer = peer;
	link->first.fd = udp_open_sending(peer->endpoint->context, 0, &link->first);
	link->paths = &link->first;
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
	struct flow *flow = &peer->udp->flow;
	flow_commit(flow, kind, type);
	udp_flush(udp, peer->udp, clock_ns(), true);
	uint64_t at = flow->cut == flow->head ? flow_alarm_at(flow) : 0;
	udp->look_at_ns = at < udp->look_at_ns ? at : udp->look_at_ns;
	pthread_mutex_unlock(&udp->lock);
	keeper_tick(peer->endpoint->context);
}

/* Gives the room of a message back. What comes after it about rings is heard by the keeper, too: this may have been the
 * owner's last look for long. */
void udp_take(struct udp_link *link, uint32_t length)
{
	struct udp *udp = link->peer->endpoint->udp;
	struct ring_message next;
	pthread_mutex_lock(&udp->lock);
	flow_take(&link->flow, length);
	if (flow_peek(&link->flow, &next, PM_MAX_MESSAGE) && next.type >= RING_OPEN)
		rail_notice(link->peer->endpoint);
	if (flow_news_due(&link->flow, NEVER - 1))
		udp->look_at_ns = 0;
	pthread_mutex_unlock(&udp->lock);
}

/* The next message of any connection that may be handed out; else perhaps one whose peer is gone. */
static struct udp_link *find(struct pm_endpoint *endpoint, struct ring_message *found, struct udp_link **gone)
{
	struct udp *udp = endpoint->udp;
	for (uint32_t i = 0; i < udp->count; i++) {
		struct udp_link *link = udp->links[udp->at];
		udp->at = udp->at + 1 < udp->count ? udp->at + 1 : 0;
		if (link->peer->status)
			continue;
		if (link->open && flow_peek(&link->flow, found, PM_MAX_MESSAGE)) {
			if (udp_in_turn(link, found))
				return link;
			if (found->type >= RING_OPEN)
				rail_notice(endpoint);
		} else if (link->stray || link->silent || link->flow.broken) {
			if (link->peer->rings)
				link_ended(link->peer);
			else
				*gone = link;
		}
	}
	return NULL;
}

/* Takes what has come, if that is to be looked at; the next message of any connection. */
bool udp_receive(struct pm_endpoint *endpoint, bool look, struct ring_message *found, struct udp_link **of)
{
	struct udp *udp = endpoint->udp;
	struct udp_link *gone = NULL;
	pthread_mutex_lock(&udp->lock);
	bool came = look && udp_look(endpoint);
	*of = find(endpoint, found, &gone);
	bool placed = !TAILQ_EMPTY(&udp->placed);
	int status = !gone ? 0 : gone->flow.broken ? -EPROTO : gone->stray ? -EHOSTDOWN : -ETIMEDOUT;
	if (gone && gone->open && !gone->goodbye)
		udp_say(udp, gone, clock_ns(), UDP_BYE); /* if it is lost, the next packet of the peer is answered by another */
	pthread_mutex_unlock(&udp->lock);
	if (came)
		keeper_tick(endpoint->context);
	if (placed)
		udp_end_placed(endpoint);
	if (gone && link_read_out(gone->peer))
		peer_gone(gone->peer, status);
	return *of;
}

/* That a ring has ended need not wait until the owner has taken the messages before it. */
static void hear_of_ends(struct udp *udp, struct udp_link *link)
{
	struct ring_message found;
	uint64_t at = 0;
	bool more;
	do {
		pthread_mutex_lock(&udp->lock);
		do
			more = link->open && !link->peer->status && flow_peek_beyond(&link->flow, &at, &found, PM_MAX_MESSAGE);
		while (more && found.type != RING_END && found.type != RING_CLOSED);
		pthread_mutex_unlock(&udp->lock);
		if (more)
			rail_handle(link->peer, &found);
	} while (more);
}

/* Takes what peers say about rings; whether some of it cannot be taken yet. */
bool udp_hear_of_rings(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	struct ring_message found;
	bool later = false;
	for (uint32_t i = 0; udp && i < udp->count; i++) {
		struct udp_link *link = udp->links[i];
		hear_of_ends(udp, link);
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
	for (int i = 0; i < LAST_LOOKS && !peer->udp->stray && udp_take_packets(peer->endpoint, clock_ns(), true); i++)
		;
	peer->udp->stray = peer->udp->goodbye = true;
	pthread_mutex_unlock(&udp->lock);
}

/* Something is due that the last look did not know of: of a peer that comes by another rail is something awaited, and
 * whether it still lives is looked after here; or the endpoint is not aside any more. */
void udp_look_soon(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	if (!udp)
		return;
	pthread_mutex_lock(&udp->lock);
	udp->look_at_ns = 0;
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

void udp_close(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	if (!udp)
		return;
	udp_linger(endpoint);
	pthread_mutex_lock(&endpoint->context->lock); /* the keeper looks no more */
	endpoint->udp = NULL;
	pthread_mutex_unlock(&endpoint->context->lock);
	for (uint32_t i = 0; i < udp->count; i++) {
		struct udp_link *link = udp->links[i];
		for (int j = 0; j < GOODBYES && link->open && !link->goodbye; j++)
			udp_say_by(udp, link, udp_all_paths(link), clock_ns(), UDP_BYE);
		udp_paths_close(link, link->open ? link->flow.path_count : 1);
		if (link->open)
			flow_close(&link->flow);
		link->peer->udp = NULL;
		if (link->first.fd >= 0)
			close(link->first.fd);
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
