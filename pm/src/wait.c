/*
 * wait.c - sleeping until something comes. A sender looks at the sleeper's flag after each message without a barrier
 * of its own; the sleeper makes every processor on which a sender runs pass one (membarrier(2)) between setting the
 * flag and looking for messages once more: either it sees the message, or the sender sees the flag.
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
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
		if (ring_ready(&endpoint->inbound[i]->ring) || endpoint->inbound[i]->closed) /* its end makes way for what came by udp */
			return true;
	return endpoint->udp && udp_ready(endpoint);
}

/* Takes what has come to the socket of the udp rail, so that it is found without a look there. */
static void look_at_socket(struct pm_endpoint *endpoint)
{
	udp_progress(endpoint);
	endpoint->udp->more = true;
}

static void count_sleep(struct pm_endpoint *endpoint, uint64_t began_ns)
{
	count(&endpoint->statistics->waits, 1);
	count(&endpoint->statistics->wait_ns, clock_ns() - began_ns);
}

static void empty_bell(int fd)
{
	uint64_t rung;
	(void)!read(fd, &rung, sizeof(rung));
}

static int udp_descriptor(const struct pm_endpoint *endpoint)
{
	return endpoint->udp ? endpoint->udp->fd : -1;
}

/* 1: woken, or the endpoint has been put aside and nothing of it may be touched (inside), 0: the time is over, or -errno. */
static int sleep_until(struct pm_endpoint *endpoint, int timeout_ms, bool *inside)
{
	uint64_t began = clock_ns();
	struct pollfd bells[] = {
		{.fd = endpoint->doorbell, .events = POLLIN},
		{.fd = udp_descriptor(endpoint), .events = POLLIN},
		{.fd = verbs_descriptor(endpoint), .events = POLLIN},
	};
	/* Meanwhile the endpoint may be seized. */
	endpoint_leave(endpoint);
	int woken = poll(bells, 3, timeout_ms), error = woken < 0 ? -errno : 0;
	if (bells[0].revents)
		empty_bell(endpoint->doorbell);
	*inside = endpoint_enter(endpoint);
	if (!*inside)
		return error ? error : 1;
	if (bells[1].revents)
		look_at_socket(endpoint);
	if (bells[2].revents && endpoint->verbs)
		verbs_woken(endpoint);
	count_sleep(endpoint, began);
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
	if (endpoint->udp)
		atomic_store(&endpoint->udp->woken_by_packets, asleep && elsewhere);
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

/* Lets others know that the owner sleeps, so that from now on they wake it; how long it may at most, ms; -1: until then. */
static int fall_asleep(struct pm_endpoint *endpoint)
{
	bool nap = endpoint->busy || endpoint->starved || endpoint->unfenced;
	endpoint->starved = false;
	/* What has been taken is told, for a sender that waits for room must not wait for this sleeper. */
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		ring_tell(&endpoint->inbound[i]->ring);
	bool elsewhere = set_asleep(endpoint, 1);
	if (syscall(__NR_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0))
		nap = true;
	if (endpoint->verbs) {
		verbs_arm(endpoint);
		verbs_look(endpoint);
	}
	return longest_sleep(endpoint, nap, elsewhere);
}

/* The rails' turns that are due: a sleeper would wake for them at once. */
static void give_turns(struct pm_endpoint *endpoint)
{
	if (endpoint->verbs)
		verbs_look(endpoint);
	if (endpoint->udp && udp_wait_ms(endpoint) == 0)
		look_at_socket(endpoint);
}

static int wait_inside(struct pm_endpoint *endpoint, int timeout_ms)
{
	give_turns(endpoint);
	if (something_there(endpoint) || timeout_ms == 0)
		return something_there(endpoint);
	bool inside = true;
	int woken = 1, nap_ms = fall_asleep(endpoint);
	if (!something_there(endpoint)) {
		bool napping = nap_ms >= 0 && (timeout_ms < 0 || timeout_ms > nap_ms);
		woken = sleep_until(endpoint, napping ? nap_ms : timeout_ms, &inside);
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
	int woken = poll(&bell, 1, timeout_ms), error = woken < 0 ? -errno : 0;
	if (bell.revents)
		empty_bell(endpoint->doorbell);
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

void sleeper_free(struct pm_endpoint *endpoint)
{
	if (endpoint->sleeper)
		close(endpoint->sleeper->alarm);
	free(endpoint->sleeper);
	endpoint->sleeper = NULL;
}

static int make_sleeper(struct pm_endpoint *endpoint)
{
	struct sleeper *sleeper = calloc(1, sizeof(*sleeper));
	if (!sleeper)
		return -ENOMEM;
	sleeper->alarm = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (sleeper->alarm < 0) {
		int error = -errno;
		free(sleeper);
		return error;
	}
	endpoint->sleeper = sleeper;
	return 0;
}

static int list_descriptors(struct pm_endpoint *endpoint, int descriptors[PM_WAIT_DESCRIPTORS])
{
	int count = 0, udp = udp_descriptor(endpoint), verbs = -1;
	descriptors[count++] = endpoint->doorbell;
	descriptors[count++] = endpoint->sleeper->alarm;
	if (udp >= 0)
		descriptors[count++] = udp;
	if (!endpoint_enter(endpoint))
		return count;
	endpoint->sleeper->channels = endpoint->channels;
	verbs = verbs_descriptor(endpoint);
	if (verbs >= 0)
		descriptors[count++] = verbs;
	endpoint_leave(endpoint);
	return count;
}

/* Not an epoll of them: callers would put that into one of their own, and those lose events now and then (Linux 6.18). */
EXPORT int pm_wait_descriptors(struct pm_endpoint *endpoint, int descriptors[PM_WAIT_DESCRIPTORS])
{
	int error = endpoint->sleeper ? 0 : make_sleeper(endpoint);
	return error ? error : list_descriptors(endpoint, descriptors);
}

static void set_alarm(struct sleeper *sleeper, int ms)
{
	struct itimerspec at = {.it_value = {ms / 1000, ms % 1000 * 1000000L + !ms}};
	if (ms < 0)
		at = (struct itimerspec){0};
	if (ms >= 0 || sleeper->alarm_set)
		timerfd_settime(sleeper->alarm, 0, &at, NULL);
	sleeper->alarm_set = ms >= 0;
}

/* What has woken a sleeper before does not wake it again; whether packets have come. */
static bool empty_bells(struct pm_endpoint *endpoint)
{
	struct pollfd bells[3] = {
		{.fd = endpoint->doorbell, .events = POLLIN}, {.fd = endpoint->sleeper->alarm, .events = POLLIN},
		{.fd = udp_descriptor(endpoint), .events = POLLIN},
	};
	if (poll(bells, 3, 0) <= 0)
		return false;
	for (int i = 0; i < 2; i++)
		if (bells[i].revents)
			empty_bell(bells[i].fd);
	return bells[2].revents;
}

static int begin_inside(struct pm_endpoint *endpoint, int timeout_ms, bool packets)
{
	struct sleeper *sleeper = endpoint->sleeper;
	if (sleeper->channels != endpoint->channels)
		return 2;
	if (endpoint->verbs)
		verbs_woken(endpoint);
	if (packets)
		look_at_socket(endpoint);
	give_turns(endpoint);
	sleeper->starved = endpoint->starved;
	int most_ms = something_there(endpoint) ? 0 : fall_asleep(endpoint);
	if (most_ms == 0 || something_there(endpoint)) {
		set_asleep(endpoint, 0);
		return 1;
	}
	set_alarm(sleeper, timeout_ms < 0 || (most_ms > 0 && most_ms < timeout_ms) ? most_ms : timeout_ms);
	sleeper->began_ns = clock_ns();
	sleeper->begun = true;
	return 0;
}

EXPORT int pm_wait_begin(struct pm_endpoint *endpoint, int timeout_ms)
{
	int error = endpoint->sleeper ? 0 : make_sleeper(endpoint);
	if (error)
		return error;
	bool again = endpoint->sleeper->begun;
	pm_wait_end(endpoint);
	bool packets = empty_bells(endpoint);
	if (!endpoint_enter(endpoint)) {
		set_alarm(endpoint->sleeper, timeout_ms); /* put aside: its bell rings when it is taken up again */
		return 0;
	}
	if (again && endpoint->sleeper->starved)
		endpoint->starved = true; /* who was refused still waits for room */
	int look = begin_inside(endpoint, timeout_ms, packets);
	endpoint_leave(endpoint);
	return look;
}

EXPORT void pm_wait_end(struct pm_endpoint *endpoint)
{
	struct sleeper *sleeper = endpoint->sleeper;
	/* What has been put aside goes on to be rung at. */
	if (!sleeper || !sleeper->begun || !endpoint_enter(endpoint))
		return;
	set_asleep(endpoint, 0);
	count_sleep(endpoint, sleeper->began_ns);
	sleeper->begun = false;
	endpoint_leave(endpoint);
}
