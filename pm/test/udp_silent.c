/*
 * udp_silent.c - a peer that is stopped is given up when it has left as many questions unanswered as the job is
 * patient, and not before; when it goes on it is told so. It is only asked while something is awaited of it, also by who
 * sleeps.
 */
#include <poll.h>

#include "wire.h"

#define PATIENCE 1

static _Atomic int asked;

static bool count_questions(const struct udp_packet *packet, size_t length)
{
	(void)length;
	asked += packet->type == UDP_PING;
	return true;
}

/* Stops a child. A signal alone may reach it after it has answered what is sent next. */
static void stop(pid_t child)
{
	int status;
	CHECK(!kill(child, SIGSTOP));
	CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
}

static void gone(struct side *side, int status)
{
	struct pm_event event;
	event_surely(side, &event);
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, status);
}

static void silent(struct side *side)
{
	struct pm_message message;
	pid_t child = getpid();
	if (side->number == 0) {
		hear(side, &child, sizeof(child));
		send_surely(side, 0, "a", 2);
		receive_surely(side, &message); /* both are sure of the connection */
		pm_release(side->endpoint, &message);
		stop(child);
		wire = count_questions;
		double began = seconds();
		send_surely(side, 0, "b", 2);
		gone(side, -ETIMEDOUT);
		CHECK(seconds() - began >= PATIENCE);
		CHECK_IS(asked, PATIENCE + 1); /* the last one as it is given up */
		CHECK(!kill(child, SIGCONT));
		return;
	}
	tell(side, &child, sizeof(child));
	take_all(side, 1);
	send_surely(side, 0, "a", 2);
	take_all(side, 1);
	gone(side, -EHOSTDOWN);
}

/* Looks for messages, of which there are none. */
static void look(struct side *side, double for_s)
{
	struct pm_message message;
	for (double began = seconds(); seconds() - began < for_s; usleep(1000))
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
}

/* It has acknowledged all: that it is gone is only known when the caller says that something is awaited of it. */
static void awaited(struct side *side)
{
	pid_t child = getpid();
	if (side->number) {
		tell(side, &child, sizeof(child));
		take_all(side, 1);
		gone(side, -EHOSTDOWN);
		return;
	}
	asked = 0;
	hear(side, &child, sizeof(child));
	send_surely(side, 0, "a", 2);
	look(side, 0.5); /* it is acknowledged */
	stop(child);
	wire = count_questions;
	look(side, PATIENCE + 1.5);
	CHECK_IS(asked, 0);
	pm_peer_await(side->peer, true);
	pm_peer_await(side->peer, false);
	look(side, PATIENCE + 1.5);
	CHECK_IS(asked, 0);
	pm_peer_await(side->peer, true);
	gone(side, -ETIMEDOUT);
	CHECK_IS(asked, PATIENCE + 1);
	CHECK(!kill(child, SIGCONT));
}

static void sleep_on_descriptors(struct pm_endpoint *endpoint)
{
	int descriptors[PM_WAIT_DESCRIPTORS], count = pm_wait_descriptors(endpoint, descriptors);
	struct pollfd polled[PM_WAIT_DESCRIPTORS];
	CHECK(count > 0);
	for (int i = 0; i < count; i++)
		polled[i] = (struct pollfd){.fd = descriptors[i], .events = POLLIN};
	if (!pm_wait_begin(endpoint, -1))
		CHECK(poll(polled, count, -1) > 0);
	pm_wait_end(endpoint);
}

static bool by_descriptors;

/* The same by who sleeps until there is something. */
static void slept_for(struct side *side)
{
	pid_t child = getpid();
	struct pm_message message;
	struct pm_event event;
	if (side->number) {
		tell(side, &child, sizeof(child));
		take_all(side, 1);
		gone(side, -EHOSTDOWN);
		return;
	}
	hear(side, &child, sizeof(child));
	send_surely(side, 0, "a", 2);
	look(side, 0.5);
	stop(child);
	pm_peer_await(side->peer, true);
	while (!pm_next_event(side->endpoint, &event)) {
		if (by_descriptors)
			sleep_on_descriptors(side->endpoint);
		else
			CHECK_IS(pm_wait(side->endpoint, -1), 1);
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
	}
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, -ETIMEDOUT);
	CHECK(!kill(child, SIGCONT));
}

static void each(struct side *side)
{
	static void (*const bodies[])(struct side *) = {silent, awaited, slept_for, slept_for};
	by_descriptors = side_by_side == 3;
	bodies[side_by_side](side);
}

int main(void)
{
	wire_begin("1");
	run_side_by_side(each, 4);
	return 0;
}
