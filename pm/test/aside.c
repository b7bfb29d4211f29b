/*
 * aside.c - gang scheduling and checkpoints (pm(7), "Putting endpoints aside"): of two pairs of endpoints one is put aside
 * in the midst of its traffic, while the other uses the network; then all are, and nothing is sent at all. What had been
 * begun arrives when they are taken up again, once and in order.
 */
#include <poll.h>
#include <pthread.h>

#include "stream.h"
#include "wire.h"

#define SOON 10000 /* ms */
/* What the network still has in it when an endpoint has been put aside is answered within that; the keeper may get no
 * processor for long. */
#define SETTLE 0.3 /* s */
/* The library asks a silent peer each second. */
#define LONG 1.2   /* s */

enum { CHANNELS = 2, TYPES = UDP_EMPTY + 1 };

struct channel {
	struct side side;
	struct stream stream;
};

/* By this process, to the other's endpoint of each channel. */
static uint16_t ports[CHANNELS];
static _Atomic unsigned packets[CHANNELS][TYPES];

static bool count_packet(const struct udp_packet *packet, size_t length)
{
	struct sockaddr_in to = {0};
	socklen_t room = sizeof(to);
	(void)length;
	if (wire_way.to)
		memcpy(&to, wire_way.to, sizeof(to));
	else
		CHECK(!getpeername(wire_way.fd, (struct sockaddr *)&to, &room));
	unsigned type = packet->link == GREETING_LINK ? UDP_GREETING : packet->type;
	CHECK(type < TYPES);
	for (int i = 0; i < CHANNELS; i++)
		packets[i][type] += ports[i] == to.sin_port;
	return true;
}

/* Orders are given by a thread, while the process goes on. */
struct orders {
	int (*give)(const struct pm_address *endpoint, int timeout_ms);
	struct pm_address endpoints[2 * CHANNELS];
	int count;
	_Atomic bool done;
};

static void *give_orders(void *argument)
{
	struct orders *orders = argument;
	for (int i = 0; i < orders->count; i++)
		CHECK_IS(orders->give(&orders->endpoints[i], SOON), 0);
	atomic_store(&orders->done, true);
	return NULL;
}

static void use(struct channel *channels, int first)
{
	for (int i = first; i < CHANNELS; i++)
		for (int j = 0; j < 10; j++) {
			send_next(&channels[i].side, &channels[i].stream);
			take_next(&channels[i].side, &channels[i].stream);
		}
}

/* Until the other has said something. */
static bool other_spoke(const struct channel *channels)
{
	struct pollfd other = {.fd = channels->side.in, .events = POLLIN};
	return poll(&other, 1, 0) == 1;
}

/* One side has the first endpoints of both sides put aside or taken up; both use those from the channel first on meanwhile. */
static void order_all(struct channel *channels, int count, int first, int (*give)(const struct pm_address *, int))
{
	struct orders orders = {.give = give};
	pthread_t thread;
	if (channels->side.number) {
		while (!other_spoke(channels))
			use(channels, first);
		meet(&channels->side);
		return;
	}
	for (int i = 0; i < count; i++) {
		orders.endpoints[orders.count++] = address_of(channels[i].side.endpoint);
		orders.endpoints[orders.count++] = other_address(&channels[i].side);
	}
	CHECK(!pthread_create(&thread, NULL, give_orders, &orders));
	while (!atomic_load(&orders.done))
		use(channels, first);
	pthread_join(thread, NULL);
	meet(&channels->side);
}

/* Until all has come that both have sent. */
static void end_stream(struct channel *channel)
{
	uint64_t theirs = 0;
	bool heard = false;
	tell(&channel->side, &channel->stream.sent, sizeof(channel->stream.sent));
	while (!heard || channel->stream.received < theirs) {
		take_next(&channel->side, &channel->stream);
		if (!heard && other_spoke(channel)) {
			hear(&channel->side, &theirs, sizeof(theirs));
			heard = true;
		}
	}
	CHECK_IS((long long)channel->stream.received, (long long)theirs);
	meet(&channel->side);
}

static void nothing_happens(struct channel *channel)
{
	struct pm_message message;
	struct pm_event event;
	CHECK_IS(pm_receive(channel->side.endpoint, &message), 0);
	CHECK_IS(pm_next_event(channel->side.endpoint, &event), 0);
	CHECK(!send_next(&channel->side, &channel->stream));
}

/* Uses the channels from first on for so long, and finds the others as they have been. */
static void be_aside(struct channel *channels, int first, double time)
{
	uint64_t sent = channels[CHANNELS - 1].stream.sent;
	for (double until = seconds() + time; seconds() < until || (first < CHANNELS && channels[CHANNELS - 1].stream.sent < sent + 1000);) {
		for (int i = 0; i < first; i++)
			nothing_happens(&channels[i]);
		use(channels, first);
	}
	for (int i = first; i < CHANNELS; i++)
		end_stream(&channels[i]);
	meet(&channels->side);
}

static unsigned packets_of(int channel)
{
	unsigned all = 0;
	for (int i = 0; i < TYPES; i++)
		all += packets[channel][i];
	return all;
}

/* The channels before first are aside: at most answers to what was in the network are sent by them, then nothing. */
static void is_silent(struct channel *channels, int first)
{
	unsigned before[CHANNELS], questions[CHANNELS];
	for (int i = 0; i < first; i++)
		questions[i] = packets_of(i) - packets[i][UDP_NEWS];
	be_aside(channels, first, SETTLE);
	for (int i = 0; i < first; i++)
		before[i] = packets_of(i);
	be_aside(channels, first, LONG);
	for (int i = 0; i < first; i++) {
		CHECK_IS(packets_of(i), before[i]);
		CHECK_IS(packets_of(i) - packets[i][UDP_NEWS], questions[i]);
	}
	meet(&channels->side);
}

/* Sends until there is no room for long, so that the library waits for some. */
static void fill(struct channel *channel)
{
	for (double until = seconds() + 0.1; seconds() < until;)
		if (send_next(&channel->side, &channel->stream))
			until = seconds() + 0.1;
	meet(&channel->side);
}

static struct pm_statistics progress_of(const struct channel *channel)
{
	struct pm_statistics all = statistics_of(&channel->side);
	return (struct pm_statistics){.messages_sent = all.messages_sent, .messages_received = all.messages_received};
}

/* One channel rests, the other works. */
static void take_turns(struct channel *channels)
{
	fill(channels);
	order_all(channels, 1, 1, pm_order_save);
	struct pm_statistics before = progress_of(channels), after;
	is_silent(channels, 1);
	after = progress_of(channels);
	CHECK(!memcmp(&before, &after, sizeof(before)));
	order_all(channels, 1, 1, pm_order_restore);
	end_stream(channels);
}

static int leave(const struct pm_address *process, int timeout_ms)
{
	return pm_order_leave(process, getenv("PM_TEST_RAIL"), timeout_ms);
}

static int join(const struct pm_address *process, int timeout_ms)
{
	return pm_order_join(process, getenv("PM_TEST_RAIL"), timeout_ms);
}

/* All rest, as for a checkpoint: also when rails are left or joined meanwhile, nothing is sent before they are taken up. */
static void stop_all(struct channel *channels)
{
	order_all(channels, CHANNELS, 0, pm_order_save);
	is_silent(channels, CHANNELS);
	unsigned before = packets_of(0) + packets_of(1);
	for (int i = 0; i < 3 && getenv("PM_TEST_RAIL"); i++)
		order_all(channels, 1, CHANNELS, i % 2 ? join : leave);
	be_aside(channels, CHANNELS, SETTLE);
	CHECK_IS(packets_of(0) + packets_of(1), before);
	meet(&channels->side);
	order_all(channels, CHANNELS, 0, pm_order_restore);
	for (int i = 0; i < 1000; i++)
		use(channels, 0);
	for (int i = 0; i < CHANNELS; i++)
		end_stream(&channels[i]);
}

static void open_channel(struct side *side, struct channel *channel, int number)
{
	struct pm_address own, other;
	channel->side = *side;
	if (number) {
		CHECK_IS(pm_endpoint_open(side->context, &channel->side.endpoint), 0);
		own = address_of(channel->side.endpoint);
		tell(side, &own, sizeof(own));
		hear(side, &other, sizeof(other));
		CHECK_IS(pm_peer_get(channel->side.endpoint, &other, &channel->side.peer), 0);
	}
	other = other_address(&channel->side);
	memcpy(&ports[number], other.bytes + 40, sizeof(ports[number]));
}

static void both(struct side *side)
{
	struct channel channels[CHANNELS] = {0};
	for (int i = 0; i < CHANNELS; i++)
		open_channel(side, &channels[i], i);
	wire = count_packet;
	for (int i = 0; i < 300; i++)
		use(channels, 0);
	take_turns(channels);
	stop_all(channels);
	for (int i = 0; i < CHANNELS; i++)
		CHECK_IS(statistics_of(&channels[i].side).dropped, 0);
	/* What is aside may be closed. */
	order_all(channels, 1, 1, pm_order_save);
	end_stream(&channels[1]);
}

int main(void)
{
	static const char *const rails[] = {NULL, "shm", "ivshmem", "verbs"};
	char both_rails[32];
	pid_t children[4];
	need_verbs();
	own_job();
	wire_begin("60");
	share_file(64 << 20);
	/* Side by side, as they wait for time to pass. */
	for (int i = 0; i < 4; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (children[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (rails[i]) {
			snprintf(both_rails, sizeof(both_rails), "%s,udp", rails[i]);
			setenv("PM_RAILS", both_rails, 1);
			setenv("PM_TEST_RAIL", rails[i], 1);
		}
		pair_run(NULL, both);
		exit(0);
	}
	for (int i = 0; i < 4; i++)
		CHECK_IS(child_status(children[i]), 0);
	return 0;
}
