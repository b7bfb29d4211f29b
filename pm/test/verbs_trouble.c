/*
 * verbs_trouble.c - the verbs rail when something is wrong: a queue pair that fails unseen, peers that die, many senders to
 * one that does not look, keys that are no longer good while others for the same memory are. On a device of software.
 */
#include "over_verbs.h"

#define BIG (16u << 20)
#define SENDERS 4

/* Half of the failures lose what was sent: who receives and waits in turn finds that out, and sends it again. */
static void fails_unseen(struct side *side)
{
	struct pm_message message;
	double began;
	warm_up(side);
	if (side->number == 1) {
		for (uint64_t i = 1; i <= 60; i++)
			await_number(side, i);
		meet_looking(side);
		return;
	}
	for (int i = 1; i <= 60; i++)
		send_number(side, i);
	usleep(1000000); /* the failure is there by now */
	began = seconds();
	while (statistics_of(side).switches < 2 && seconds() - began < 20) {
		pm_wait(side->endpoint, 100);
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
	}
	CHECK(seconds() - began < 10);
	meet_looking(side);
}

/* The sender does not look again after its last message. What the failure has lost arrives all the same. */
static void fails_unlooked(struct side *side)
{
	warm_up(side);
	if (side->number == 1)
		for (uint64_t i = 1; i <= 60; i++)
			await_number(side, i);
	else
		for (int i = 1; i <= 60; i++)
			send_number(side, i);
	meet(side);
}

/* More than the device moves at once. */
static void large(struct side *side)
{
	uint64_t address, key;
	uint8_t *memory = map(BIG);
	warm_up(side);
	if (side->number == 1) {
		struct pm_region *region = offer(side, memory, BIG, PM_REMOTE_READ | PM_REMOTE_WRITE);
		await_number(side, 0);
		CHECK(memory[0] == 1 && memory[BIG - 1] == 1);
		CHECK_IS(pm_deregister(region), 0);
		return;
	}
	learn(side, &address, &key);
	memset(memory, 1, BIG);
	CHECK_IS(write_to(side, memory, BIG, address, key), 0);
	memset(memory, 0, BIG);
	CHECK_IS(read_from(side, memory, BIG, address, key), 0);
	CHECK(memory[0] == 1 && memory[BIG - 1] == 1);
	CHECK_IS(statistics_of(side).direct_bytes, 2ll * BIG);
	CHECK_IS(statistics_of(side).switches, 1);
	send_number(side, 0);
}

/* Two regions of the same memory: the key of the one that is gone opens nothing. */
static void of_the_same_memory(struct side *side)
{
	uint64_t address, key, other;
	uint8_t *memory = map(65536);
	warm_up(side);
	if (side->number == 1) {
		struct pm_region *one = offer(side, memory, 65536, PM_REMOTE_WRITE), *two = offer(side, memory, 65536, PM_REMOTE_WRITE);
		await_number(side, 0);
		CHECK_IS(pm_deregister(one), 0);
		memset(memory, 1, 65536);
		send_number(side, 0);
		await_number(side, 1);
		CHECK_IS(memory[0], 1);
		CHECK_IS(pm_deregister(two), 0);
		return;
	}
	learn(side, &address, &key);
	learn(side, &address, &other);
	memset(memory, 7, 65536);
	CHECK_IS(write_to(side, memory, 65536, address, key), 0);
	CHECK_IS(write_to(side, memory, 65536, address, other), 0);
	send_number(side, 0);
	await_number(side, 0);
	CHECK_IS(write_to(side, memory, 65536, address, key), -EACCES);
	send_number(side, 1);
}

static void await_gone(struct side *side, enum pm_event_type first)
{
	struct pm_message message;
	struct pm_event event;
	while (!pm_next_event(side->endpoint, &event)) {
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
		pm_wait(side->endpoint, 10);
	}
	CHECK_IS(event.type, first);
	CHECK(event.status == -EHOSTDOWN || event.status == -ETIMEDOUT);
}

/* A peer that dies is not waited for: nobody tells of that, and it was asked for something by the ring. */
static void dead(struct side *side)
{
	uint64_t address, key;
	uint8_t *memory = map(BIG);
	warm_up(side);
	if (side->number == 1) {
		offer(side, memory, BIG, PM_REMOTE_READ);
		usleep(500000);
		_exit(0);
	}
	learn(side, &address, &key);
	CHECK_IS(pm_read(side->peer, memory, 100000, address, key, NULL), 0);
	await_gone(side, PM_READ_DONE);
	_exit(0);
}

/* After the end of a peer nothing is left that is waited for. */
static void gone(struct side *side)
{
	struct pm_address own, other;
	double began;
	CHECK_IS(pm_endpoint_address(side->endpoint, &own), 0);
	pm_peer_address(side->peer, &other);
	warm_up(side);
	if (side->number == 1) {
		usleep(200000);
		_exit(0);
	}
	usleep(400000);
	send_number(side, 2);
	CHECK_IS(pm_order_gone(&own, &other, 10000), 0);
	await_gone(side, PM_PEER_GONE);
	CHECK_IS(pm_order_save(&own, 20000), 0);
	CHECK_IS(pm_order_restore(&own, 20000), 0);
	began = seconds();
	CHECK_IS(pm_endpoint_close(side->endpoint), 0);
	CHECK(seconds() - began < 1.5);
	_exit(0);
}

struct sender {
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_peer *peer;
	int sent, got;
};

static void take_all(struct pm_endpoint *endpoint, struct sender senders[SENDERS])
{
	struct pm_message message;
	while (pm_receive(endpoint, &message)) {
		senders[*(int *)message.data].got++;
		pm_release(endpoint, &message);
	}
}

static bool send_one(struct sender *sender, int number)
{
	struct iovec part = {&number, sizeof(number)};
	int error = pm_send(sender->peer, 0, &part, 1);
	CHECK(!error || error == -EAGAIN);
	sender->sent += !error;
	return !error;
}

/* All fill their rings to one that does not look: they can be put aside, and end, and nothing is lost. */
static void many(void)
{
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_address address;
	struct pm_message message;
	struct pm_statistics statistics = {0};
	struct sender senders[SENDERS] = {0};
	CHECK_IS(pm_context_open(NULL, &context), 0);
	CHECK_IS(pm_endpoint_open(context, &endpoint), 0);
	CHECK_IS(pm_endpoint_address(endpoint, &address), 0);
	for (int i = 0; i < SENDERS; i++) {
		struct sender *sender = &senders[i];
		CHECK_IS(pm_context_open(NULL, &sender->context), 0);
		CHECK_IS(pm_endpoint_open(sender->context, &sender->endpoint), 0);
		CHECK_IS(pm_peer_get(sender->endpoint, &address, &sender->peer), 0);
		for (statistics.switches = 0; !statistics.switches; pm_statistics(sender->endpoint, &statistics)) {
			send_one(sender, i);
			CHECK_IS(pm_receive(sender->endpoint, &message), 0);
			take_all(endpoint, senders);
		}
	}
	for (int i = 0; i < SENDERS; i++)
		while (send_one(&senders[i], i))
			;
	for (int i = 0; i < SENDERS; i++) {
		CHECK_IS(pm_endpoint_address(senders[i].endpoint, &address), 0);
		CHECK_IS(pm_order_save(&address, 20000), 0);
		CHECK_IS(pm_order_restore(&address, 20000), 0);
	}
	for (int i = 0; i < SENDERS; i++)
		CHECK_IS(pm_context_close(senders[i].context), 0);
	for (double began = seconds(); seconds() - began < 10;) {
		bool all = true;
		take_all(endpoint, senders);
		for (int i = 0; i < SENDERS; i++)
			all &= senders[i].got == senders[i].sent;
		if (all)
			break;
	}
	for (int i = 0; i < SENDERS; i++)
		CHECK_IS(senders[i].got, senders[i].sent);
	CHECK_IS(pm_context_close(context), 0);
}

/* Each in a process of its own, which may end in the midst of it. */
static void run(void (*body)(struct side *))
{
	fflush(NULL);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		pair_run(NULL, body);
		exit(0);
	}
	CHECK_IS(child_status(child), 0);
}

int main(void)
{
	verbs_environment();
	setenv("PM_PATIENCE", "3", 1);
	setenv("STUB_VERBS_BREAK", "4", 1);
	run(fails_unseen);
	run(fails_unlooked);
	unsetenv("STUB_VERBS_BREAK");
	run(large);
	run(of_the_same_memory);
	run(dead);
	run(gone);
	many();
	return 0;
}
