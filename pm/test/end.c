/* end.c - the end of a process is noticed, after all it has sent; its silence is not taken for its end; strangers,
 * other jobs and addresses that nobody has are refused. */
#include <signal.h>

#include "pair.h"

/* Waits for the end of the peer, and says how many messages came before it. */
static int wait_for_end(struct side *side, int status)
{
	struct pm_event event;
	struct pm_message message;
	for (int messages = 0;;) {
		CHECK(pm_wait(side->endpoint, 10000) == 1);
		while (pm_receive(side->endpoint, &message)) {
			messages++;
			pm_release(side->endpoint, &message);
		}
		if (pm_next_event(side->endpoint, &event)) {
			CHECK_IS(event.type, PM_PEER_GONE);
			CHECK(event.peer == side->peer);
			CHECK_IS(event.status, status);
			CHECK_IS(pm_peer_status(side->peer), status);
			CHECK_IS(pm_receive(side->endpoint, &message), 0);
			return messages;
		}
	}
}

static void killed(struct side *side)
{
	struct pm_message message;
	if (side->number) {
		receive_surely(side, &message);
		pm_release(side->endpoint, &message);
		for (int i = 0; i < 100; i++)
			send_surely(side, 0, &i, sizeof(i));
		_exit(0); /* nothing is closed but by the kernel */
	}
	send_surely(side, 0, "go", 2);
	CHECK_IS(wait_for_end(side, -EHOSTDOWN), 100);
	struct iovec part = {"x", 1};
	CHECK_IS(pm_send(side->peer, 0, &part, 1), -EHOSTDOWN);
	CHECK_IS(pm_context_close(side->context), 0);
	side->context = NULL;
}

/* The other connects, sends and ends while this side does something else, and what notices it first is a send. */
static void ends_unseen(struct side *side)
{
	struct pm_message message;
	struct iovec part = {"x", 1};
	int error;
	if (side->number) {
		receive_surely(side, &message);
		pm_release(side->endpoint, &message);
		send_surely(side, 0, "last", 4);
		tell(side, "x", 1);
		_exit(0);
	}
	send_surely(side, 0, "go", 2);
	hear(side, &(char){0}, 1);
	while ((error = pm_send(side->peer, 0, &part, 1)) == 0)
		usleep(1000);
	CHECK_IS(error, -EAGAIN); /* what has come is to be read first */
	CHECK_IS(wait_for_end(side, -EHOSTDOWN), 1);
	CHECK_IS(pm_context_close(side->context), 0);
	side->context = NULL;
}

static void closed(struct side *side)
{
	struct pm_message message;
	if (side->number) {
		receive_surely(side, &message);
		pm_release(side->endpoint, &message);
		send_surely(side, 0, "bye", 3);
		CHECK_IS(pm_endpoint_close(side->endpoint), 0);
		/* The number of that endpoint is used again, its address is not. */
		CHECK_IS(pm_endpoint_open(side->context, &side->endpoint), 0);
		return;
	}
	send_surely(side, 0, "go", 2);
	CHECK_IS(wait_for_end(side, -EHOSTDOWN), 1);
}

/* A read that waits for an answer ends with the peer. */
static void operation_ends(struct side *side)
{
	static char memory[8];
	struct pm_event event;
	struct pm_message message;
	struct { uint64_t address, key; } offer;
	if (side->number) {
		struct pm_region *region;
		CHECK_IS(pm_register(side->context, memory, sizeof(memory), PM_REMOTE_READ, &region), 0);
		offer.address = (uintptr_t)memory;
		offer.key = pm_region_key(region);
		tell(side, &offer, sizeof(offer));
		hear(side, memory, 1);
		_exit(0);
	}
	hear(side, &offer, sizeof(offer));
	CHECK_IS(pm_read(side->peer, memory, 8, offer.address, offer.key, memory), 0);
	struct pm_statistics statistics;
	do {
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
		pm_statistics(side->endpoint, &statistics);
	} while (!statistics.links_out); /* it is asked then */
	CHECK_IS(pm_receive(side->endpoint, &message), 0);
	tell(side, "x", 1);
	while (!pm_next_event(side->endpoint, &event))
		pm_receive(side->endpoint, &message);
	CHECK_IS(event.type, PM_READ_DONE);
	CHECK_IS(event.status, -EHOSTDOWN);
	CHECK(event.cookie == memory);
	CHECK_IS(pm_context_close(side->context), 0);
	side->context = NULL;
}

static void silent(struct side *side)
{
	struct pm_message message;
	struct pm_event event;
	if (side->number) {
		raise(SIGSTOP);
		receive_surely(side, &message);
		CHECK(!strcmp(message.data, "there"));
		pm_release(side->endpoint, &message);
		return;
	}
	pid_t child;
	CHECK((child = waitpid(-1, NULL, WUNTRACED)) > 0);
	struct iovec part = {"there", 6};
	double began = seconds();
	while (seconds() - began < 0.3) {
		CHECK_IS(pm_send(side->peer, 0, &part, 1), -EAGAIN); /* the connection waits for it */
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
		CHECK_IS(pm_next_event(side->endpoint, &event), 0);
	}
	CHECK_IS(pm_peer_status(side->peer), 0);
	kill(child, SIGCONT);
	send_surely(side, 0, "there", 6);
}

static void other_job(struct side *side)
{
	struct pm_options options = {.size = sizeof(options), .job_key = (uint8_t[PM_JOB_KEY_SIZE]){1}};
	struct pm_message message;
	if (side->number) {
		meet(side);
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
		return;
	}
	struct side stranger = {0};
	struct pm_address address;
	CHECK_IS(pm_context_open(&options, &stranger.context), 0);
	CHECK_IS(pm_endpoint_open(stranger.context, &stranger.endpoint), 0);
	pm_peer_address(side->peer, &address);
	CHECK_IS(pm_peer_get(stranger.endpoint, &address, &stranger.peer), 0);
	struct iovec part = {"x", 1};
	int error = pm_send(stranger.peer, 0, &part, 1);
	CHECK(error == -EAGAIN || error == -EACCES);
	CHECK_IS(wait_for_end(&stranger, -EACCES), 0);
	CHECK_IS(pm_context_close(stranger.context), 0);
	meet(side);
}

static void nobody(void)
{
	struct side side = {0};
	struct pm_address address;
	CHECK_IS(pm_context_open(NULL, &side.context), 0);
	CHECK_IS(pm_endpoint_open(side.context, &side.endpoint), 0);
	pm_endpoint_address(side.endpoint, &address);
	address.bytes[20] ^= 1;
	CHECK_IS(pm_peer_get(side.endpoint, &address, &side.peer), 0);
	struct iovec part = {"x", 1};
	int error = pm_send(side.peer, 0, &part, 1);
	CHECK(error == -EAGAIN || error == -EHOSTUNREACH);
	CHECK_IS(wait_for_end(&side, -EHOSTUNREACH), 0);
	CHECK_IS(pm_send(side.peer, 0, &part, 1), -EHOSTUNREACH);
	address.bytes[0] = 7;
	CHECK_IS(pm_peer_get(side.endpoint, &address, &side.peer), -EINVAL);
	CHECK_IS(pm_context_close(side.context), 0);
}

int main(void)
{
	struct pm_options copies = {.size = sizeof(copies), .no_direct = 1};
	nobody();
	pair_run(NULL, killed);
	for (int i = 0; i < 5; i++)
		pair_run(NULL, ends_unseen);
	pair_run(NULL, closed);
	pair_run(&copies, operation_ends);
	pair_run(NULL, silent);
	pair_run(NULL, other_job);
	return 0;
}
