/* udp_turn.c - what the connections of the udp rail do when they get a turn: the owner's, or the keeper's in its stead. */
#include <poll.h>
#include <time.h>

#include "link.h"
#include "udp.h"

/* A peer of which something is awaited is asked whether it is there after so long a silence. */
#define ASK_NS 1000000000ull
/* So many greetings are said before they are a second apart. */
#define FIRST_GREETINGS 8
/* An endpoint that is closed sends so often in vain what has not arrived, for at most so many seconds more. */
#define LINGER_TIMEOUTS 6
#define LINGER_MOST_NS (LINGER_TIMEOUTS * 1000000000ull)

/* Sends again what is late, and asks by the paths by which the flow would like to know more. */
static void look_at_alarms(struct udp *udp, struct udp_link *link, uint64_t now_ns)
{
	uint64_t aside = link->flow.set_aside;
	unsigned paths = flow_alarm(&link->flow, now_ns);
	if (paths)
		udp_say_by(udp, link, paths, now_ns, UDP_PING);
	if (link->flow.set_aside != aside)
		count_both(&link->peer->endpoint->statistics->paths_set_aside, 1);
}

/* Whether something is awaited of a peer whose end nobody tells of: rings of shm have sockets, others have not. */
static bool awaits(const struct udp_link *link, uint64_t now_ns)
{
	const struct pm_peer *peer = link->peer;
	return !flow_idle(&link->flow) || link->flow.starved || peer->leaving || ((peer->copies || peer->awaited) && !peer->watched) ||
	       now_ns - peer->no_room_ns < 2 * ASK_NS;
}

/* Sends what is due of a connection; when it wants to be looked at next. Who has been put aside sends again what has not
 * arrived, and answers; it asks nobody, and gives nobody up. */
static uint64_t look_at_link(struct udp *udp, struct udp_link *link, uint64_t now_ns)
{
	bool aside = atomic_load(&link->peer->endpoint->held);
	if (link->peer->status)
		return NEVER;
	if (now_ns >= link->greet_at_ns && !aside)
		udp_greet(udp, link, now_ns);
	link->silent = !link->sure && link->greetings > udp->patience + FIRST_GREETINGS;
	if (!link->open)
		return link->greet_at_ns;
	if (!aside || !flow_idle(&link->flow))
		look_at_alarms(udp, link, now_ns);
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
	if (aside || !awaits(link, now_ns)) {
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
		udp_say_by(udp, link, udp_all_paths(link), now_ns, UDP_PING);
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

/* Whether something that was sent may still arrive. */
static bool is_awaited(const struct udp_link *link)
{
	return link->sure && !link->goodbye && !link->peer->status && !flow_idle(&link->flow);
}

/* Whether all that was sent has arrived, as far as it can. */
static bool all_idle(const struct udp *udp)
{
	for (uint32_t i = 0; i < udp->count; i++)
		if (is_awaited(udp->links[i]))
			return false;
	return true;
}

/* Whether all that has not arrived has been sent often enough. */
static bool all_in_vain(const struct udp *udp)
{
	for (uint32_t i = 0; i < udp->count; i++) {
		const struct udp_link *link = udp->links[i];
		if (is_awaited(link) && flow_path_timeouts(link->flow.paths, link->flow.path_count) <= LINGER_TIMEOUTS)
			return false;
	}
	return true;
}

/* Whether a message may be handed out: what its sender has put into a ring before is read first. */
bool udp_in_turn(const struct udp_link *link, const struct ring_message *found)
{
	return !link->peer->rings && found->type < RING_OPEN;
}

/* Whether a peer has said something about rings that has not been taken, or not been looked at since it came. */
static bool speaks_of_rings(struct udp *udp)
{
	struct ring_message found;
	bool speaks = false;
	for (uint32_t i = 0; i < udp->count; i++) {
		struct udp_link *link = udp->links[i];
		if (!link->open || link->peer->status)
			continue;
		speaks |= flow_peek(&link->flow, &found, PM_MAX_MESSAGE) && found.type >= RING_OPEN;
		while (flow_peek_beyond(&link->flow, &link->looked_at, &found, PM_MAX_MESSAGE))
			speaks |= found.type >= RING_OPEN;
	}
	return speaks;
}

/* Takes what has come, and sends what may be sent; under the lock. Whether something came. */
bool udp_look(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	uint64_t now_ns = clock_ns();
	bool came = udp_take_packets(endpoint, now_ns, true);
	udp->quiet = came ? 0 : udp->quiet + 1;
	atomic_store_explicit(&udp->turns, atomic_load_explicit(&udp->turns, memory_order_relaxed) + 1, memory_order_relaxed);
	if (came || now_ns >= udp->look_at_ns)
		look_at_links(udp, now_ns);
	return came;
}

void udp_progress(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	pthread_mutex_lock(&udp->lock);
	bool came = udp_look(endpoint);
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
		took = udp_take_packets(endpoint, now_ns, seized);
		look_at_links(udp, now_ns);
	}
	udp->turns_seen = turns;
	bool busy = !all_idle(udp) || owes_news(udp), rings = speaks_of_rings(udp);
	pthread_mutex_unlock(&udp->lock);
	if (seized)
		endpoint_give_back(endpoint);
	if (rings)
		rail_notice(endpoint);
	/* The owner may sleep for what has just been taken out of its socket, or be woken by it for what is elsewhere. */
	if (took && (atomic_load(&udp->woken_by_packets) || udp_ready(endpoint)))
		endpoint_notice(endpoint);
	return busy;
}

/* Whether there is a message that has come already. */
bool udp_ready(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	struct ring_message found;
	pthread_mutex_lock(&udp->lock);
	bool ready = !TAILQ_EMPTY(&udp->placed);
	for (uint32_t i = 0; i < udp->count && !ready; i++) {
		struct udp_link *link = udp->links[i];
		ready = !link->peer->status && (link->stray || link->silent || link->flow.broken ||
						(link->open && flow_peek(&link->flow, &found, PM_MAX_MESSAGE) && udp_in_turn(link, &found)));
	}
	pthread_mutex_unlock(&udp->lock);
	return ready;
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

/* Waits until all that was sent has arrived, or nothing more has for some time, in which it was sent again and again: on a
 * slow way there are seconds between. */
void udp_linger(struct pm_endpoint *endpoint)
{
	struct udp *udp = endpoint->udp;
	struct pollfd socket = {.fd = udp->fd, .events = POLLIN};
	uint64_t until = 0, arrived = 0;
	for (;;) {
		udp_progress(endpoint);
		pthread_mutex_lock(&udp->lock);
		bool idle = all_idle(udp), vain = all_in_vain(udp);
		uint64_t now = arrived_of_all(udp), now_ns = clock_ns();
		pthread_mutex_unlock(&udp->lock);
		if (!until || now != arrived)
			until = now_ns + LINGER_NS;
		if (idle || (now_ns >= until && (vain || now_ns >= until + LINGER_MOST_NS)))
			return;
		arrived = now;
		poll(&socket, 1, 1);
	}
}
