/*
 * udp_goodbye.c - goodbyes get lost, and what was sent before them does: all that can arrive does, and the peer is found
 * gone in the end.
 */
#include "wire.h"

#define MESSAGES 200

/* Goodbyes to be lost, and how often each packet of data after the first ones. */
static int goodbyes_lost, data_lost;
/* What is lost of that is not, but comes after the goodbye. */
static bool data_late;

#define FIRST_ONES 3
#define PACKETS 64

static struct {
	int times;
	size_t length;
	void *copy;
} lost[PACKETS];

static bool lose_goodbye(const struct udp_packet *packet, size_t length)
{
	if (goodbyes_lost-- > 0)
		return false;
	wire_send(packet, length);
	for (int i = 0; i < PACKETS; i++)
		if (data_late && lost[i].copy)
			wire_send(lost[i].copy, lost[i].length);
	return false;
}

static bool lose(const struct udp_packet *packet, size_t length)
{
	uint32_t i = packet->sequence;
	if (packet->type == UDP_BYE)
		return lose_goodbye(packet, length);
	if (packet->type != UDP_DATA || i < FIRST_ONES)
		return true;
	CHECK(i < PACKETS);
	if (lost[i].times == data_lost)
		return true;
	if (!lost[i].times++) {
		lost[i].copy = memcpy(malloc(length), packet, length);
		lost[i].length = length;
	}
	return false;
}

static bool delay_news(const struct udp_packet *packet, size_t length)
{
	static const struct timespec delay = {.tv_nsec = 300000000};
	(void)length;
	if (packet->type == UDP_NEWS)
		nanosleep(&delay, NULL);
	return true;
}

/* Sends all and closes, at once. */
static void send_and_go(struct side *side, int messages)
{
	wire = lose;
	for (int i = 0; i < messages; i++) {
		int message[1000] = {i};
		send_surely(side, 0, message, sizeof(message));
	}
	CHECK_IS(pm_endpoint_close(side->endpoint), 0);
	char c = 'x';
	tell(side, &c, 1);
	CHECK_IS(pm_endpoint_open(side->context, &side->endpoint), 0);
}

/* What has come before the peer was gone. */
static int receive_until_gone(struct side *side, int status)
{
	struct pm_message message;
	struct pm_event event;
	int messages = 0;
	while (!pm_next_event(side->endpoint, &event)) {
		while (pm_receive(side->endpoint, &message)) {
			CHECK_IS(*(int *)message.data, messages++);
			pm_release(side->endpoint, &message);
		}
	}
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, status);
	char c;
	hear(side, &c, 1);
	return messages;
}

/* One goodbye of several arrives. */
static void two_lost(struct side *side)
{
	goodbyes_lost = 2;
	if (side->number)
		send_and_go(side, MESSAGES);
	else
		CHECK_IS(receive_until_gone(side, -EHOSTDOWN), MESSAGES);
}

/* None does: it is as if the process had been killed. What waits for it finds out by its silence. */
static void all_lost(struct side *side)
{
	goodbyes_lost = 1000;
	if (side->number) {
		send_and_go(side, MESSAGES);
		return;
	}
	take_all(side, MESSAGES);
	char c;
	hear(side, &c, 1);
	struct iovec part = {&c, 1};
	CHECK_IS(pm_send(side->peer, 0, &part, 1), 0);
	struct pm_event event;
	event_surely(side, &event);
	CHECK_IS(event.type, PM_PEER_GONE);
	CHECK_IS(event.status, -ETIMEDOUT);
}

/* The last packets of data have to be sent several times, and the first goodbye is lost. */
static void data_often_lost(struct side *side)
{
	data_lost = 3;
	goodbyes_lost = 1;
	if (side->number)
		send_and_go(side, MESSAGES);
	else
		CHECK_IS(receive_until_gone(side, -EHOSTDOWN), MESSAGES);
}

/* The same on a slow way: what is sent again is seconds apart. */
static void data_often_lost_slowly(struct side *side)
{
	static const int messages = 40;
	data_lost = 6;
	if (side->number) {
		send_and_go(side, messages);
	} else {
		wire = delay_news;
		CHECK_IS(receive_until_gone(side, -EHOSTDOWN), messages);
	}
}

/* They never arrive: what came before them does. */
static void data_never(struct side *side)
{
	data_lost = -1;
	if (side->number) {
		send_and_go(side, MESSAGES);
	} else {
		int came = receive_until_gone(side, -EHOSTDOWN);
		CHECK(came > 0 && came < MESSAGES);
	}
}

/* They arrive after the goodbye, which has been said because they did not. */
static void data_overtaken(struct side *side)
{
	data_lost = -1;
	data_late = true;
	if (side->number)
		send_and_go(side, MESSAGES);
	else
		CHECK_IS(receive_until_gone(side, -EHOSTDOWN), MESSAGES);
}

static void (*const cases[])(struct side *) = {two_lost, all_lost, data_often_lost, data_often_lost_slowly,
					    data_never, data_overtaken};

static void each(struct side *side)
{
	cases[side_by_side](side);
}

int main(void)
{
	wire_begin("1");
	run_side_by_side(each, sizeof(cases) / sizeof(cases[0]));
	return 0;
}
