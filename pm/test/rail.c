/*
 * rail.c - rails are left and joined while messages flow, by orders as Watari gives them: nothing is lost, doubled or
 * out of order, also when the one who leaves computes, or the other one is stopped. Endpoints are put aside and taken up.
 */
#include <signal.h>

#include "rail_side.h"

static void send_some(struct side *side, struct stream *stream, int count)
{
	while (count)
		if (send_next(side, stream))
			count--;
		else
			take_next(side, stream);
}

/* One leaves and comes back by itself, between its calls; the other is in none and does not look. */
static void while_computing(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint);
	warm_up(side, &stream);
	send_some(side, &stream, 20);
	meet(side);
	if (side->number == 0) {
		struct pm_address other = other_address(side);
		CHECK_IS(pm_order_leave(&own, rail_name, SOON), 0);
		CHECK_IS(pm_order_leave(&other, rail_name, SOON), 0);
	}
	meet(side);
	send_some(side, &stream, 20);
	take_all(side, &stream, 140);
	CHECK(statistics_of(side).switches >= 1);
	meet(side);
	uint64_t before = statistics_of(side).switches;
	CHECK_IS(pm_order_join(&own, rail_name, SOON), 0);
	while (statistics_of(side).switches == before) {
		send_next(side, &stream);
		take_next(side, &stream);
	}
	struct access *none = calloc(1, sizeof(*none));
	end_all(side, &stream, none);
	free(none);
}

/* The other is stopped before its messages have been read, and after: leaving does not wait for it. */
static void while_stopped(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint);
	pid_t other;
	warm_up(side, &stream);
	send_some(side, &stream, 30);
	if (rail_number() == PM_RAIL_VERBS)
		usleep(200000); /* a device goes on when its process is stopped, but that of the test is a thread */
	tell(side, &(pid_t){getpid()}, sizeof(pid_t));
	hear(side, &other, sizeof(other));
	if (side->number == 0) {
		take_all(side, &stream, 101); /* the other has said that it has begun to use the ring */
		kill(other, SIGSTOP);
		for (int i = 0; i < 2; i++) {
			CHECK_IS(pm_order_leave(&own, rail_name, SOON), 0);
			take_all(side, &stream, 115);
			CHECK_IS(pm_order_join(&own, rail_name, SOON), 0);
		}
		CHECK_IS(pm_order_leave(&own, rail_name, SOON), 0);
		kill(other, SIGCONT);
	}
	take_all(side, &stream, 130);
	send_some(side, &stream, 10);
	take_all(side, &stream, 140);
}

/* Joins the rail, and does nothing until the other asks for a ring; offers it when the other is stopped, and leaves. */
static void offer_and_leave(struct side *side, struct stream *stream, const struct pm_address *own, pid_t other)
{
	struct pm_message message;
	CHECK_IS(pm_order_leave(own, rail_name, SOON), 0);
	CHECK_IS(pm_order_join(own, rail_name, SOON), 0);
	receive_surely(side, &message);
	usleep(3000);
	kill(other, SIGSTOP);
	pm_release(side->endpoint, &message);
	stream->received++;
	for (int i = 0; i < 100; i++)
		CHECK(!take_next(side, stream));
	CHECK_IS(pm_order_leave(own, rail_name, SOON), 0);
	kill(other, SIGCONT);
}

/* The other then uses the ring, and computes, after it has taken the messages that have come before what is said about the
 * ring, or before it has: what it has sent arrives all the same. */
static void left_when_offered(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint);
	pid_t other;
	warm_up(side, &stream);
	tell(side, &(pid_t){getpid()}, sizeof(pid_t));
	hear(side, &other, sizeof(other));
	for (int i = 1; i <= 30; i++) {
		if (side->number == 0) {
			offer_and_leave(side, &stream, &own, other);
			send_some(side, &stream, 4);
		} else {
			send_some(side, &stream, 1);
			take_all(side, &stream, 4 * i + 97);
			send_some(side, &stream, 3);
			usleep(10000); /* the keeper finds messages in front of what is said about rings */
		}
		if (i % 2) {
			if (side->number == 0)
				take_all(side, &stream, 4 * i + 100);
			meet(side);
		}
		take_all(side, &stream, 4 * i + 100);
		if (side->number == 0)
			CHECK_IS(pm_order_join(&own, rail_name, SOON), 0);
		meet(side);
	}
}

/* What was sent by udp behind a ring that has been left wakes its reader, who waits as soon as it has read the ring. */
static void wait_behind_ring(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint);
	struct pm_message message;
	warm_up(side, &stream);
	uint64_t before = statistics_of(side).switches;
	if (side->number) {
		meet(side);
		for (int i = 0; i < 100; i++)
			send_surely(side, 3, "by the ring", 12);
		meet(side);
		while (statistics_of(side).switches == before)
			CHECK(!take_next(side, &stream));
		send_surely(side, 3, "by udp", 7);
		meet(side);
		return;
	}
	while (pm_wait(side->endpoint, 20)) /* until nobody waits for room, for whose sake it would only nap */
		CHECK(!take_next(side, &stream));
	meet(side);
	meet(side);
	CHECK_IS(pm_order_leave(&own, rail_name, SOON), 0);
	meet(side);
	usleep(100000); /* nothing more comes of it */
	int descriptors[PM_WAIT_DESCRIPTORS];
	CHECK(pm_wait_descriptors(side->endpoint, descriptors) > 0);
	CHECK_IS(pm_wait_begin(side->endpoint, -1), 1); /* and it has not been rung since */
	for (int i = 0; i < 100; i++) { /* of so many calls, one looks around */
		CHECK_IS(pm_receive(side->endpoint, &message), 1);
		pm_release(side->endpoint, &message);
	}
	CHECK_IS(pm_wait(side->endpoint, SOON), 1);
	receive_surely(side, &message);
	CHECK_IS(message.length, 7);
	pm_release(side->endpoint, &message);
}

/* Lets what is under way by a network arrive: it would be lost with its sender. */
static void look_around(struct side *side)
{
	struct pm_event event;
	for (int i = 0; strcmp(rail_name, "shm") && i < 300; i++) {
		CHECK(!pm_next_event(side->endpoint, &event));
		usleep(1000);
	}
}

/* Watari says that a peer is gone: what it had sent is received first. */
static void told_gone(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint), other = other_address(side);
	struct pm_message message;
	struct pm_event event = {0};
	warm_up(side, &stream);
	meet(side); /* who leaves before the other has come keeps it from coming */
	send_some(side, &stream, 10);
	if (side->number) {
		CHECK_IS(pm_order_leave(&own, rail_name, SOON), 0);
		take_all(side, &stream, 110);
		look_around(side);
		meet(side);
		_exit(0);
	}
	take_all(side, &stream, 105);
	look_around(side);
	meet(side);
	char end;
	CHECK_IS(read(side->in, &end, 1), 0);
	CHECK_IS(pm_order_gone(&own, &other, SOON), 0);
	take_all(side, &stream, 110);
	while (!pm_next_event(side->endpoint, &event))
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, -EHOSTDOWN);
	CHECK_IS(pm_send(side->peer, 0, NULL, 0), -EHOSTDOWN);
	CHECK_IS(pm_context_close(side->context), 0);
	side->context = NULL;
}

/* What is put aside neither sends nor receives, and goes on as it was. */
static void put_aside(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint), other = other_address(side);
	struct pm_message message;
	warm_up(side, &stream);
	send_some(side, &stream, 20);
	meet(side);
	if (side->number == 0) {
		CHECK_IS(pm_order_save(&own, SOON), 0);
		CHECK_IS(pm_order_save(&other, SOON), 0);
	}
	meet(side);
	for (int i = 0; i < 1000; i++) {
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
		CHECK(!send_next(side, &stream));
	}
	CHECK(pm_wait(side->endpoint, 20) >= 0); /* may wake for nothing */
	meet(side);
	if (side->number == 0) {
		CHECK_IS(pm_order_restore(&other, SOON), 0);
		CHECK_IS(pm_order_restore(&own, SOON), 0);
	}
	meet(side);
	take_all(side, &stream, 120);
	send_some(side, &stream, 1000);
	take_all(side, &stream, 1120);
	/* One that is aside may be closed. */
	CHECK_IS(pm_order_save(&own, SOON), 0);
}

/* A ring that has been asked for is left by its reader before its writer, who computes, has put it to use. */
static void before_use(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint);
	if (side->number) {
		send_next(side, &stream); /* asks for the ring; on a busy machine there may be one already */
		meet(side);
		meet(side);
		usleep(100000); /* for what the other's keeper says about it to come */
		send_some(side, &stream, 2000 - stream.sent);
		return;
	}
	meet(side);
	while (!statistics_of(side).links_in)
		take_next(side, &stream);
	CHECK_IS(pm_order_leave(&own, "shm", SOON), 0);
	meet(side);
	take_all(side, &stream, 2000);
}

/* Who ends while rails are being joined, and its messages go by one rail and the other's by another, is heard out. */
static void last_words(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint);
	struct pm_event event;
	warm_up(side, &stream);
	if (side->number) {
		CHECK_IS(pm_order_leave(&own, "shm", SOON), 0);
		send_some(side, &stream, 5);
		CHECK_IS(pm_order_join(&own, "shm", SOON), 0);
		send_some(side, &stream, 5);
	} else {
		while (!pm_next_event(side->endpoint, &event))
			take_next(side, &stream);
		CHECK_IS(event.type, PM_PEER_GONE);
		CHECK_IS(stream.received, 110);
	}
	CHECK_IS(pm_context_close(side->context), 0);
	side->context = NULL;
}

/* Orders that could not be carried out at once are, in their order: what is put aside and taken up again is not aside. */
static void put_off(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint);
	struct pm_message message;
	warm_up(side, &stream);
	send_some(side, &stream, 1);
	receive_surely(side, &message);
	CHECK_IS(pm_order_save(&own, 50), -ETIMEDOUT);
	CHECK_IS(pm_order_restore(&own, 50), -ETIMEDOUT);
	pm_release(side->endpoint, &message);
	stream.received++;
	send_some(side, &stream, 100);
	take_all(side, &stream, 201);
}

static void refused(struct side *side)
{
	struct pm_address own = address_of(side->endpoint);
	struct stream stream = {0};
	CHECK_IS(pm_order_leave(&own, rail_name, SOON), -EOPNOTSUPP); /* there is no other */
	CHECK_IS(pm_order_leave(&own, "tram", SOON), -EINVAL);
	CHECK_IS(pm_order_leave(&own, "udp", SOON), -EINVAL);
	own.bytes[9] ^= 1;
	CHECK_IS(pm_order_leave(&own, rail_name, SOON), -EHOSTUNREACH);
	memset(&own, 0, sizeof(own));
	CHECK_IS(pm_order_save(&own, SOON), -EINVAL);
	warm_up(side, &stream);
}

static bool send_short(struct side *side, struct stream *stream)
{
	struct iovec part = {&stream->sent, sizeof(stream->sent)};
	int error = pm_send(side->peer, 3, &part, 1);
	CHECK(!error || error == -EAGAIN);
	stream->sent += !error;
	return !error;
}

static void take_short(struct side *side, struct stream *stream)
{
	struct pm_message message;
	if (!pm_receive(side->endpoint, &message))
		return;
	CHECK_IS(message.length, sizeof(stream->received));
	CHECK(!memcmp(message.data, &stream->received, sizeof(stream->received)));
	stream->received++;
	pm_release(side->endpoint, &message);
}

/* Both ask for rings behind some messages, and there is no room behind that: who did not go on before it can answer would
 * wait for ever. */
static void asked_when_full(struct side *side)
{
	struct stream stream = {0};
	struct pm_address own = address_of(side->endpoint);
	uint64_t theirs;
	warm_up(side, &stream);
	CHECK_IS(pm_order_leave(&own, rail_name, SOON), 0);
	meet(side);
	while (statistics_of(side).rails[PM_RAIL_UDP].messages == 0)
		send_some(side, &stream, 1);
	tell(side, &stream.sent, sizeof(stream.sent));
	hear(side, &theirs, sizeof(theirs));
	take_all(side, &stream, theirs);
	meet(side);
	stream = (struct stream){0};
	uint64_t switches = statistics_of(side).switches;
	while (stream.sent < 3)
		send_short(side, &stream);
	meet(side);
	CHECK_IS(pm_order_join(&own, rail_name, SOON), 0);
	while (send_short(side, &stream))
		;
	meet(side);
	uint64_t full = stream.sent;
	while (stream.received < 3)
		take_short(side, &stream);
	while (stream.sent < full + 3)
		send_short(side, &stream);
	tell(side, &stream.sent, sizeof(stream.sent));
	hear(side, &theirs, sizeof(theirs));
	while (stream.received < theirs || statistics_of(side).switches == switches)
		take_short(side, &stream);
}

/* A rail that is come to from udp. */
static void over(const char *name)
{
	set_rails(name);
	pair_run(NULL, while_computing);
	pair_run(NULL, while_stopped);
	pair_run(NULL, left_when_offered);
	pair_run(NULL, wait_behind_ring);
	pair_run(NULL, told_gone);
	pair_run(NULL, put_aside);
	pair_run(NULL, asked_when_full);
}

int main(void)
{
	own_job();
	share_file(64 << 20);
	set_rails("shm");
	pair_run(NULL, while_computing);
	pair_run(NULL, while_stopped);
	pair_run(NULL, wait_behind_ring);
	pair_run(NULL, told_gone);
	pair_run(NULL, before_use);
	pair_run(NULL, put_off);
	for (int i = 0; i < 20; i++)
		pair_run(NULL, last_words);
	pair_run(NULL, put_aside);
	over("ivshmem");
	need_verbs();
	over("verbs");
	rail_name = "shm";
	setenv("PM_RAILS", "udp", 1);
	pair_run(NULL, put_aside);
	setenv("PM_RAILS", "shm", 1);
	pair_run(NULL, refused);
	return 0;
}
