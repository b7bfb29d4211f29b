/* udp_receive.c - what comes into the socket of the udp rail: trains of packets. */
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "udp.h"

/* Taken in one look, at most. */
#define TRAINS 64
#define BYTES (8 * UDP_TRAIN_BYTES)
/* After less there is seldom more just then: that is found by the next look. */
#define SHORT 1024

static void take_packet(struct pm_endpoint *endpoint, const uint8_t *data, uint32_t length, uint64_t now_ns, bool owner)
{
	struct udp *udp = endpoint->udp;
	struct udp_packet packet;
	struct udp_link *link = NULL;
	if (length >= sizeof(packet)) {
		memcpy(&packet, data, sizeof(packet));
		if (packet.link == GREETING_LINK) {
			udp_greeted(endpoint, data, length, now_ns, owner);
			return;
		}
		link = packet.link < udp->count ? udp->links[packet.link] : NULL;
	}
	if (!link || !link->open)
		count_both(&endpoint->statistics->dropped, 1);
	else if (link->peer->status)
		udp_refuse(endpoint, link, data, length, now_ns);
	else
		udp_take_packet(endpoint, link, data, length, now_ns);
}

/* All packets of a train have the first one's size, but the last, which may be smaller. */
static uint32_t size_of_first(const uint8_t *data, uint32_t length)
{
	struct udp_packet packet;
	if (length < sizeof(packet))
		return sizeof(packet);
	memcpy(&packet, data, sizeof(packet));
	return packet.link == GREETING_LINK ? sizeof(struct udp_greeting) : udp_header_size(packet.type) + packet.length;
}

static void take_train(struct pm_endpoint *endpoint, uint32_t length, uint64_t now_ns, bool owner)
{
	const uint8_t *train = endpoint->udp->train;
	uint32_t size = size_of_first(train, length);
	for (uint32_t at = 0; at < length; at += size)
		take_packet(endpoint, train + at, length - at < size ? length - at : size, now_ns, owner);
}

/* A train is taken as a whole and its bytes are put where they belong by a copy, while they are in the processor's
 * nearest memory. To have the kernel scatter them there was slower: it copies many short pieces, and badly. */
bool udp_take_packets(struct pm_endpoint *endpoint, uint64_t now_ns, bool owner)
{
	struct udp *udp = endpoint->udp;
	uint32_t bytes = 0;
	if (owner)
		udp_answer_strangers(endpoint, now_ns);
	for (int i = 0; i < TRAINS && bytes < BYTES; i++) {
		long length = syscall(SYS_recvfrom, udp->fd, udp->train, UDP_TRAIN_BYTES, MSG_DONTWAIT, NULL, NULL);
		if (length < 0)
			return i > 0;
		take_train(endpoint, length, now_ns, owner);
		if (length < SHORT)
			return true;
		bytes += length;
		if (udp->came && udp->came->flow.unacknowledged >= udp->many && !udp->came->peer->status)
			udp_say(udp, udp->came, now_ns, UDP_NEWS);
	}
	return true;
}
