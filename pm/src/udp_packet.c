/* udp_packet.c - packets of the udp rail: made of segments and news, and taken apart. */
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "udp.h"

/* Packets that are given to the kernel at once, as one that it cuts (UDP_SEGMENT), and their bytes. */
#define BATCH 64
#define BATCH_BYTES 65000

static uint64_t check_of(const struct udp_packet *packet, const void *payload, uint64_t seed)
{
	const uint8_t *header = (const uint8_t *)packet + sizeof(packet->check);
	uint64_t first = XXH3_64bits_withSeed(header, sizeof(*packet) - sizeof(packet->check), seed);
	return packet->length ? XXH3_64bits_withSeed(payload, packet->length, first) : first;
}

static void fill(struct udp_link *link, struct udp_packet *packet, const struct flow_news *news, uint64_t now_ns)
{
	packet->link = link->far_number;
	packet->next = news->next;
	packet->consumed = news->consumed;
	packet->echo_us = news->echo_us;
	packet->time_us = now_ns / 1000;
}

/* Sends a packet that is no segment. */
void udp_say(struct udp *udp, struct udp_link *link, uint64_t now_ns, uint16_t type)
{
	struct flow_news news;
	struct {
		struct udp_packet packet;
		uint64_t bitmap[FLOW_BITS / 64];
	} all = {.packet = {.type = type}};
	flow_tell(&link->flow, &news);
	fill(link, &all.packet, &news, now_ns);
	if (type == UDP_NEWS) {
		all.packet.sequence = news.bits;
		all.packet.length = (news.bits + 63) / 64 * sizeof(uint64_t);
		memcpy(all.bitmap, news.bitmap, all.packet.length);
	} else if (type == UDP_BYE) {
		/* What was never cut into segments is missing, too. */
		all.packet.sequence = link->flow.next + (link->flow.cut != link->flow.head);
	}
	all.packet.check = check_of(&all.packet, all.bitmap, link->seed_out);
	sendto(udp->fd, &all, sizeof(all.packet) + all.packet.length, MSG_DONTWAIT | MSG_NOSIGNAL,
	       (struct sockaddr *)&link->to, link->to_length);
}

/* Gives n packets to the kernel, all of them of one size but the last, which may be smaller. */
static void send_batch(struct udp *udp, struct udp_link *link, struct iovec *parts, int n, uint16_t size)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(uint16_t))];
	} control = {0};
	struct msghdr message = {
		.msg_name = &link->to, .msg_namelen = link->to_length, .msg_iov = parts, .msg_iovlen = 2 * n,
	};
	if (n > 1) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = IPPROTO_UDP;
		control.header.cmsg_type = UDP_SEGMENT;
		control.header.cmsg_len = CMSG_LEN(sizeof(uint16_t));
		memcpy(CMSG_DATA(&control.header), &size, sizeof(size));
	}
	if (sendmsg(udp->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN || errno == ENOBUFS || n == 1)
		return; /* what the kernel does not take is lost, and sent again as such */
	/* The way has become narrower, or knows no trains: one by one the kernel cuts what is too long. */
	udp->no_batches = errno == EIO || errno == EINVAL;
	link->flow.segment_size = udp_segment_size(&link->to, link->to_length);
	for (int i = 0; i < n; i++)
		send_batch(udp, link, parts + 2 * i, 1, 0);
}

/* Sends all segments that may be sent now; without whole also what does not fill a packet. */
void udp_flush(struct udp *udp, struct udp_link *link, uint64_t now_ns, bool whole)
{
	struct udp_packet packets[BATCH];
	struct iovec parts[2 * BATCH];
	struct flow_segment segment;
	struct flow_news news;
	int n = 0;
	uint32_t first = 0, bytes = 0;
	while (flow_send(&link->flow, now_ns, !whole, &segment)) {
		uint32_t size = sizeof(packets[0]) + segment.length;
		if (n && (size > first || n == BATCH || bytes + size > BATCH_BYTES)) {
			send_batch(udp, link, parts, n, first);
			n = bytes = 0;
		}
		if (!n) {
			/* Only what is in order goes along; gaps are told by a packet of its own. */
			if (link->flow.in_most == link->flow.in_next)
				flow_tell(&link->flow, &news);
			else
				flow_look(&link->flow, &news);
			first = size;
		}
		packets[n] = (struct udp_packet){
			.type = UDP_DATA, .length = segment.length, .sequence = segment.sequence, .offset = segment.offset,
		};
		fill(link, &packets[n], &news, now_ns);
		packets[n].check = check_of(&packets[n], segment.data, link->seed_out);
		parts[2 * n] = (struct iovec){&packets[n], sizeof(packets[n])};
		parts[2 * n + 1] = (struct iovec){(void *)segment.data, segment.length};
		n++;
		bytes += size;
		if (size < first || udp->no_batches) {
			send_batch(udp, link, parts, n, first);
			n = bytes = 0;
		}
	}
	if (n)
		send_batch(udp, link, parts, n, first);
}

static void learn(struct udp_link *link, const struct udp_packet *packet, const uint8_t *payload, uint64_t now_ns)
{
	struct flow_news news = {.next = packet->next, .consumed = packet->consumed, .echo_us = packet->echo_us};
	if (packet->type == UDP_NEWS && packet->sequence <= FLOW_BITS &&
	    packet->length == (packet->sequence + 63) / 64 * sizeof(uint64_t)) {
		news.bits = packet->sequence;
		memcpy(news.bitmap, payload, packet->length);
	}
	flow_learn(&link->flow, now_ns, &news);
}

/* Whether a packet is whole, and of who it should be. */
static bool right(struct pm_endpoint *endpoint, struct udp_link *link, struct udp_packet *packet, const uint8_t *data, uint32_t length)
{
	memcpy(packet, data, sizeof(*packet));
	if (packet->length == length - sizeof(*packet) && check_of(packet, data + sizeof(*packet), link->seed_in) == packet->check)
		return true;
	count_both(&endpoint->statistics->dropped, 1);
	return false;
}

/* A packet has come of a peer that has been given up: it is to know. */
void udp_refuse(struct pm_endpoint *endpoint, struct udp_link *link, const uint8_t *data, uint32_t length, uint64_t now_ns)
{
	struct udp_packet packet;
	if (right(endpoint, link, &packet, data, length) && packet.type != UDP_BYE)
		udp_say(endpoint->udp, link, now_ns, UDP_BYE);
}

/* A packet of an open connection has come. */
void udp_take_packet(struct pm_endpoint *endpoint, struct udp_link *link, const uint8_t *data, uint32_t length, uint64_t now_ns)
{
	struct udp_packet packet;
	const uint8_t *payload = data + sizeof(packet);
	if (!right(endpoint, link, &packet, data, length))
		return;
	link->flow.echo_us = packet.time_us;
	link->heard_ns = now_ns;
	link->asks = 0;
	udp_sure(link); /* the secret is made of both nonces */
	learn(link, &packet, payload, now_ns);
	switch (packet.type) {
	case UDP_DATA:
		flow_arrive(&link->flow, now_ns, packet.sequence, packet.offset, payload, packet.length);
		break;
	case UDP_PING:
		udp_say(endpoint->udp, link, now_ns, UDP_NEWS);
		break;
	case UDP_BYE:
		link->goodbye = true;
		link->goodbye_at = link->flow.in_next + (int32_t)(packet.sequence - (uint32_t)link->flow.in_next);
		break;
	}
}
