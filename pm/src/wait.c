/*
 * wait.c - sleeping until something comes. A sender looks at the sleeper's flag after each message without a barrier
 * of its own; the sleeper makes every processor on which a sender runs pass one (membarrier(2)) between setting the
 * flag and looking for messages once more: either it sees the message, or the sender sees the flag.
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "udp.h"
#include "verbs.h"

/* How long to sleep at most, ms, when not everything that is awaited wakes the sleeper: room in a ring, a peer that
 * the barrier does not reach. */
#define NAP_MS 1
/* And where a wake-up is only nearly sure: an emulator of a single processor (QEMU's TCG) leaves the barriers out that
 * a writer in another guest needs. */
#define LONG_NAP_MS 100

static bool something_there(struct pm_endpoint *endpoint)
{
	if (atomic_load(&endpoint->attention) || !STAILQ_EMPTY(&endpoint->events) || endpoint->helping)
		return true;
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		if (ring_ready(&endpoint->inbound[i]->ring))
			return true;
	return endpoint->udp && udp_ready(endpoint);
}

/* 1: woken, or the endpoint has been put aside and nothing of it may be touched (inside), 0: the time is over, or -errno. */
static int sleep_until(struct pm_endpoint *endpoint, int verbs_fd, int timeout_ms, bool *inside)
{
	uint64_t rung, began = clock_ns();
	struct pollfd bells[] = {
		{.fd = endpoint->doorbell, .events = POLLIN},
		{.fd = endpoint->udp ? endpoint->udp->fd : -1, .events = POLLIN},
		{.fd = verbs_fd, .events = POLLIN},
	};
	/* Meanwhile the endpoint may be seized. */
	endpoint_leave(endpoint);
	int woken = poll(bells, 3, timeout_ms), error = woken < 0 ? -errno : 0;
	if (bells[0].revents)
		(void)!read(endpoint->doorbell, &rung, sizeof(rung));
	*inside = endpoint_enter(endpoint);
	if (!*inside)
		return error ? error : 1;
	if (endpoint->verbs && bells[2].revents)
		verbs_woken(endpoint);
	count(&endpoint->statistics->waits, 1);
	count(&endpoint->statistics->wait_ns, clock_ns() - began);
	return error ? error : woken > 0;
}

/* Tells all writers, wherever they look; whether some of them are in other guests. */
static bool set_asleep(struct pm_endpoint *endpoint, uint32_t asleep)
{
	bool elsewhere = false;
	atomic_store(&endpoint->shared->asleep, asleep);
	for (unsigned i = 0; i < endpoint->inbound_count; i++) {
		if (!endpoint->inbound[i]->asleep)
			continue;
		atomic_store(endpoint->inbound[i]->asleep, asleep);
		elsewhere = true;
	}
	return elsewhere;
}

/* How long to sleep at most, ms; -1: until woken. */
static int longest_sleep(struct pm_endpoint *endpoint, bool nap, bool elsewhere)
{
	int rail_ms = endpoint->udp ? udp_wait_ms(endpoint) : -1;
	if (nap)
		return NAP_MS;
	return elsewhere && (rail_ms < 0 || rail_ms > LONG_NAP_MS) ? LONG_NAP_MS : rail_ms;
}

static int wait_inside(struct pm_endpoint *endpoint, int timeout_ms)
{
	bool nap = endpoint->busy || endpoint->starved || endpoint->unfenced;
	if (endpoint->verbs)
		verbs_look(endpoint);
	if (something_there(endpoint) || timeout_ms == 0)
		return something_there(endpoint);
	endpoint->starved = false;
	/* What has been taken is told, for a sender that waits for room must not wait for this sleeper. */
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		ring_tell(&endpoint->inbound[i]->ring);
	bool elsewhere = set_asleep(endpoint, 1);
	if (syscall(__NR_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0))
		nap = true;
	bool inside = true;
	int woken = 1, verbs_fd = endpoint->verbs ? verbs_arm(endpoint) : -1;
	if (endpoint->verbs)
		verbs_look(endpoint);
	if (!something_there(endpoint)) {
		int nap_ms = longest_sleep(endpoint, nap, elsewhere);
		bool napping = nap_ms >= 0 && (timeout_ms < 0 || timeout_ms > nap_ms);
		woken = sleep_until(endpoint, verbs_fd, napping ? nap_ms : timeout_ms, &inside);
		if (woken == 0 && napping)
			woken = 1;
	}
	if (inside)
		set_asleep(endpoint, 0);
	return woken;
}

/* An endpoint that has been put aside sleeps until it is taken up again. */
static int wait_aside(struct pm_endpoint *endpoint, int timeout_ms)
{
	struct pollfd bell = {.fd = endpoint->doorbell, .events = POLLIN};
	uint64_t rung;
	int woken = poll(&bell, 1, timeout_ms), error = woken < 0 ? -errno : 0;
	if (bell.revents)
		(void)!read(endpoint->doorbell, &rung, sizeof(rung));
	return error ? error : woken;
}

EXPORT int pm_wait(struct pm_endpoint *endpoint, int timeout_ms)
{
	if (!endpoint_enter(endpoint))
		return wait_aside(endpoint, timeout_ms);
	int woken = wait_inside(endpoint, timeout_ms);
	endpoint_leave(endpoint);
	return woken;
}
