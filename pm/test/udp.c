/* udp.c - the udp rail refuses noise, what is forged and what is of another job, says goodbye, and knows silence from it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "pair.h"

static void receive_one(struct side *side, const char *wanted)
{
	struct pm_message message;
	receive_surely(side, &message);
	CHECK(!strcmp(message.data, wanted));
	pm_release(side->endpoint, &message);
}

/* An endpoint that is closed says so, and all it had sent comes first. */
static void goodbye(struct side *side)
{
	struct pm_message message;
	struct pm_event event;
	int messages = 0;
	if (side->number) {
		receive_one(side, "go");
		for (int i = 0; i < 1000; i++)
			send_surely(side, 0, &i, sizeof(i));
		CHECK_IS(pm_endpoint_close(side->endpoint), 0);
		CHECK_IS(pm_endpoint_open(side->context, &side->endpoint), 0);
		return;
	}
	send_surely(side, 0, "go", 3);
	while (!pm_next_event(side->endpoint, &event)) {
		CHECK_IS(pm_wait(side->endpoint, 10000), 1);
		while (pm_receive(side->endpoint, &message)) {
			CHECK_IS(*(int *)message.data, messages++);
			pm_release(side->endpoint, &message);
		}
	}
	CHECK_IS(messages, 1000);
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, -EHOSTDOWN);
	struct iovec part = {"x", 1};
	CHECK_IS(pm_send(side->peer, 0, &part, 1), -EHOSTDOWN);
}

/* A stranger without the key gets no answer, and is not heard. */
static void other_job(struct side *side)
{
	struct pm_options options = {.size = sizeof(options), .job_key = (uint8_t[PM_JOB_KEY_SIZE]){1}};
	struct pm_message message;
	if (side->number) {
		struct pm_statistics statistics;
		do {
			CHECK_IS(pm_receive(side->endpoint, &message), 0);
			pm_statistics(side->endpoint, &statistics);
		} while (!statistics.dropped);
		return;
	}
	struct side stranger = {0};
	struct pm_address address;
	CHECK_IS(pm_context_open(&options, &stranger.context), 0);
	CHECK_IS(pm_endpoint_open(stranger.context, &stranger.endpoint), 0);
	pm_peer_address(side->peer, &address);
	CHECK_IS(pm_peer_get(stranger.endpoint, &address, &stranger.peer), 0);
	struct iovec part = {"x", 1};
	double began = seconds();
	while (seconds() - began < 0.3) {
		CHECK_IS(pm_send(stranger.peer, 0, &part, 1), -EAGAIN);
		CHECK_IS(pm_receive(stranger.endpoint, &message), 0);
	}
	CHECK_IS(pm_context_close(stranger.context), 0);
}

/* What anybody can throw at the port: noise, short and long, greetings without a seal, packets with a guessed number. */
static void noise(struct side *side)
{
	struct pm_address address;
	struct sockaddr_in to = {.sin_family = AF_INET};
	static uint8_t data[60000];
	uint64_t random = 42;
	pm_peer_address(side->peer, &address);
	memcpy(&to.sin_addr, address.bytes + 36, 4);
	memcpy(&to.sin_port, address.bytes + 40, 2);
	CHECK(to.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	if (side->number) {
		for (int i = 0; i < 50; i++)
			receive_one(side, "in between");
		return;
	}
	int thrower = socket(AF_INET, SOCK_DGRAM, 0);
	for (int i = 0; i < 5000; i++) {
		size_t length = random_next(&random) % (i % 100 ? 300 : sizeof(data));
		for (size_t j = 0; j < length; j++)
			data[j] = random_next(&random);
		if (i % 3)
			memset(data + 8, i % 2 ? 0 : 0xff, 4); /* the number of the connection, or of greetings */
		sendto(thrower, data, length, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof(to));
		if (i % 100 == 0)
			send_surely(side, 0, "in between", 11);
	}
	close(thrower);
}

struct offer {
	uint64_t address, key;
};

/* A process ends in the middle of accesses to its memory, and nobody tells: they end all the same, and then what they
 * were from and to is not touched any more. */
static void vanished(struct side *side)
{
	enum { LENGTH = 64 << 20 };
	struct pm_region *region;
	struct pm_message message;
	struct pm_event event;
	struct offer offer;
	uint8_t *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	if (side->number) {
		CHECK_IS(pm_register(side->context, memory, LENGTH, PM_REMOTE_READ | PM_REMOTE_WRITE, &region), 0);
		offer = (struct offer){(uintptr_t)memory, pm_region_key(region)};
		tell(side, &offer, sizeof(offer));
		char begun;
		hear(side, &begun, 1);
		for (int i = 0; i < 20; i++)
			CHECK_IS(pm_receive(side->endpoint, &message), 0);
		_exit(0);
	}
	memset(memory, 1, LENGTH);
	hear(side, &offer, sizeof(offer));
	CHECK_IS(pm_read(side->peer, memory + LENGTH / 2, LENGTH / 2, offer.address + LENGTH / 2, offer.key, NULL), 0);
	CHECK_IS(pm_write(side->peer, memory, LENGTH / 2, offer.address, offer.key, NULL), 0);
	tell(side, "x", 1);
	int ended = 0;
	while (ended < 3) { /* both, and the peer */
		if (!pm_next_event(side->endpoint, &event)) {
			CHECK_IS(pm_receive(side->endpoint, &message), 0);
			continue;
		}
		CHECK(event.status == -ETIMEDOUT || event.type == PM_READ_DONE);
		ended++;
	}
	CHECK(!munmap(memory, LENGTH));
	for (int i = 0; i < 1000; i++)
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
	CHECK_IS(pm_context_close(side->context), 0);
	side->context = NULL;
}

int main(void)
{
	setenv("PM_RAILS", "udp", 1);
	setenv("PM_ADDRESS", "127.0.0.1", 1);
	pair_run(NULL, goodbye);
	pair_run(NULL, other_job);
	pair_run(NULL, noise);
	setenv("PM_PATIENCE", "1", 1);
	pair_run(NULL, vanished);
	return 0;
}
