/* udp_packet.c - packets of the udp rail: made of segments and news, and taken apart. */
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "hash.h"
#include "udp.h"

/* Packets that are given to the kernel at once, as one that it cuts (UDP_SEGMENT), and their bytes. */
#define TRAIN 64
#define TRAIN_BYTES 65000

uint32_t udp_header_size(uint16_t type)
{
	return type == UDP_READ || type == UDP_WRITE ? sizeof(struct udp_bulk) : sizeof(struct udp_packet);
}

static uint64_t check_of(const uint8_t *data, uint32_t length, const uint8_t *secret)
{
	return hash_secret(data + sizeof(uint64_t), length - sizeof(uint64_t), secret);
}

static void fill(struct udp_link *link, struct udp_packet *packet, const struct flow_news *news, uint64_t now_ns)
{
	packet->link = link->far_number;
	packet->next = news->next;
	packet->consumed = news->consumed;
	packet->echo_us = news->echo_us;
	packet->time_us = now_ns / 1000;
}

/* The system calls are made without what the C library puts around them: they never block, and must not be where a
 * thread is cancelled. A connected socket tells of a peer's closed port in place of sending. */
void udp_send(struct udp *udp, const struct udp_link *link, const void *packet, size_t length)
{
	int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
	if (link->fd < 0)
		syscall(SYS_sendto, udp->fd, packet, length, flags, &link->to, link->to_length);
	else if (syscall(SYS_sendto, link->fd, packet, length, flags, NULL, 0) < 0 && errno == ECONNREFUSED)
		syscall(SYS_sendto, link->fd, packet, length, flags, NULL, 0);
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
		all.packet.sequence = link->flow.next + (link->flow.cut != link->flow.head || link->flow.bulk);
	}
	uint32_t size = sizeof(all.packet) + all.packet.length;
	all.packet.check = check_of((const uint8_t *)&all, size, link->secret_out);
	udp_send(udp, link, &all, size);
}

/* Gives a train of packets to the kernel, all of them of one size but the last, which may be smaller. */
static int send_train(struct udp *udp, struct udp_link *link, const uint8_t *train, uint32_t length, uint16_t size)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(uint16_t))];
	} control = {.header = {.cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))}};
	struct iovec part = {(void *)train, length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	if (link->fd < 0) {
		message.msg_name = &link->to;
		message.msg_namelen = link->to_length;
	}
	memcpy(CMSG_DATA(&control.header), &size, sizeof(size));
	return syscall(SYS_sendmsg, link->fd < 0 ? udp->fd : link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

static void send_packets(struct udp *udp, struct udp_link *link, const uint8_t *train, uint32_t length, uint16_t size)
{
	if (length > size) {
		int error = send_train(udp, link, train, length, size);
		if (error == -ECONNREFUSED)
			error = send_train(udp, link, train, length, size);
		if (!error || error == -EAGAIN || error == -ENOBUFS)
			return; /* what the kernel does not take is lost, and sent again as such */
		/* The way has become narrower, or knows no trains: one by one the kernel cuts what is too long. */
		udp->no_trains = error == -EIO || error == -EINVAL;
		link->flow.segment_size = udp_segment_size(&link->to, link->to_length);
	}
	for (uint32_t at = 0; at < length; at += size)
		udp_send(udp, link, train + at, length - at < size ? length - at : size);
}

/* Makes a segment's packet; its size. The bytes are copied to behind their header, for the kernel is slow with many short
 * pieces, and then hashed where they are near. */
static uint32_t make(struct udp_link *link, uint8_t *to, const struct flow_segment *segment, const struct flow_news *news,
		     uint64_t now_ns)
{
	struct udp_bulk head = {.packet = {.type = UDP_DATA, .length = segment->length, .sequence = segment->sequence}};
	if (segment->kind == FLOW_EMPTY) {
		head.packet.type = UDP_EMPTY;
	} else if (segment->kind == FLOW_STREAM) {
		head.packet.offset = segment->offset;
	} else {
		head.packet.type = segment->bulk->type;
		head.name = segment->bulk->name;
		head.at = segment->bulk->at + segment->offset;
	}
	uint32_t size = udp_header_size(head.packet.type);
	fill(link, &head.packet, news, now_ns);
	memcpy(to, &head, size);
	if (segment->length)
		memcpy(to + size, segment->data, segment->length);
	size += segment->length;
	uint64_t check = check_of(to, size, link->secret_out);
	memcpy(to, &check, sizeof(check));
	return size;
}

/* Sends all segments that may be sent now; without whole also what does not fill a packet. */
void udp_flush(struct udp *udp, struct udp_link *link, uint64_t now_ns, bool whole)
{
	struct flow_segment segment;
	struct flow_news news;
	uint8_t *train = udp->train_out;
	uint32_t packets = 0, length = 0, first = 0;
	while (flow_send(&link->flow, now_ns, !whole, &segment)) {
		if (!packets) {
			/* Only what is in order goes along; gaps are told by a packet of its own. */
			if (link->flow.in_most == link->flow.in_next)
				flow_tell(&link->flow, &news);
			else
				flow_look(&link->flow, &news);
		}
		uint32_t size = make(link, train + length, &segment, &news, now_ns);
		if (packets && size > first) {
			send_packets(udp, link, train, length, first);
			memmove(train, train + length, size);
			packets = length = 0;
		}
		first = packets ? first : size;
		packets++;
		length += size;
		if (size < first || packets == TRAIN || length + first > TRAIN_BYTES || udp->no_trains) {
			send_packets(udp, link, train, length, first);
			packets = length = 0;
		}
	}
	if (packets)
		send_packets(udp, link, train, length, first);
}

static void learn(struct udp_link *link, const struct udp_packet *packet, const uint8_t *payload, uint64_t now_ns)
{
	/* The packets of a train all say the same. */
	if (packet->type != UDP_NEWS && packet->next == link->told_next && packet->consumed == link->told_consumed)
		return;
	link->told_next = packet->next;
	link->told_consumed = packet->consumed;
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
	if (udp_header_size(packet->type) + packet->length == length && check_of(data, length, link->secret_in) == packet->check)
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
	struct udp_bulk bulk;
	struct udp_packet packet;
	if (!right(endpoint, link, &packet, data, length))
		return;
	const uint8_t *payload = data + udp_header_size(packet.type);
	link->flow.echo_us = packet.time_us;
	link->heard_ns = now_ns;
	link->asks = 0;
	endpoint->udp->came = link;
	udp_sure(link); /* the secret is made of both nonces */
	learn(link, &packet, payload, now_ns);
	switch (packet.type) {
	case UDP_DATA:
		flow_arrive(&link->flow, now_ns, packet.sequence, packet.offset, payload, packet.length);
		break;
	case UDP_READ:
	case UDP_WRITE:
		memcpy(&bulk, data, sizeof(bulk));
		udp_take_bulk(endpoint, link, &bulk, payload, now_ns);
		break;
	case UDP_EMPTY:
		flow_arrive_bulk(&link->flow, now_ns, packet.sequence);
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
