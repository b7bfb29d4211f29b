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

uint32_t udp_header_size(uint8_t type)
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
void udp_send(struct udp *udp, const struct udp_path *path, const void *packet, size_t length)
{
	int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
	if (path->fd < 0)
		syscall(SYS_sendto, udp->fd, packet, length, flags, &path->to, path->to_length);
	else if (syscall(SYS_sendto, path->fd, packet, length, flags, NULL, 0) < 0 && errno == ECONNREFUSED)
		syscall(SYS_sendto, path->fd, packet, length, flags, NULL, 0);
}

static void say(struct udp *udp, struct udp_link *link, unsigned path, uint64_t now_ns, uint8_t type)
{
	struct flow_news news;
	struct {
		struct udp_packet packet;
		uint64_t bitmap[FLOW_BITS / 64];
	} all;
	all.packet = (struct udp_packet){.type = type, .path = path};
	flow_tell(&link->flow, path, &news);
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
	udp_send(udp, &link->paths[path], &all, size);
}

/* Sends a packet that is no segment, by the path by which something came last: it may be the only one that works. */
void udp_say(struct udp *udp, struct udp_link *link, uint64_t now_ns, uint8_t type)
{
	say(udp, link, link->came_by, now_ns, type);
}

/* And by each of these paths, a bit each. */
void udp_say_by(struct udp *udp, struct udp_link *link, unsigned paths, uint64_t now_ns, uint8_t type)
{
	for (unsigned i = 0; i < link->flow.path_count; i++)
		if (paths >> i & 1)
			say(udp, link, i, now_ns, type);
}

unsigned udp_all_paths(const struct udp_link *link)
{
	return (1u << link->flow.path_count) - 1;
}

/* Gives a train of packets to the kernel, all of them of one size but the last, which may be smaller. */
static int send_train(struct udp *udp, struct udp_path *path, const uint8_t *train, uint32_t length, uint16_t size)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(uint16_t))];
	} control = {.header = {.cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))}};
	struct iovec part = {(void *)train, length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	if (path->fd < 0) {
		message.msg_name = &path->to;
		message.msg_namelen = path->to_length;
	}
	memcpy(CMSG_DATA(&control.header), &size, sizeof(size));
	return syscall(SYS_sendmsg, path->fd < 0 ? udp->fd : path->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* Gives them to the kernel one by one, in one call. */
static void send_each(struct udp *udp, struct udp_path *path, const uint8_t *train, uint32_t length, uint16_t size)
{
	struct mmsghdr messages[TRAIN] = {0};
	struct iovec parts[TRAIN];
	unsigned count = 0;
	for (uint32_t at = 0; at < length; at += size, count++) {
		struct msghdr *message = &messages[count].msg_hdr;
		parts[count] = (struct iovec){(void *)(train + at), length - at < size ? length - at : size};
		message->msg_iov = &parts[count];
		message->msg_iovlen = 1;
		if (path->fd < 0) {
			message->msg_name = &path->to;
			message->msg_namelen = path->to_length;
		}
	}
	int fd = path->fd < 0 ? udp->fd : path->fd;
	unsigned refused = 0;
	for (unsigned sent = 0; sent < count && refused < count;) {
		long now = syscall(SYS_sendmmsg, fd, messages + sent, count - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (now < 0 && errno != ECONNREFUSED)
			return; /* as with trains */
		refused += now < 0;
		sent += now < 0 ? 0 : now;
	}
}

static void send_packets(struct udp *udp, struct udp_link *link, unsigned by, const uint8_t *train, uint32_t length, uint16_t size)
{
	struct udp_path *path = &link->paths[by];
	if (length > size && !udp->no_trains) {
		int error = send_train(udp, path, train, length, size);
		if (error == -ECONNREFUSED)
			error = send_train(udp, path, train, length, size);
		if (!error || error == -EAGAIN || error == -ENOBUFS)
			return; /* what the kernel does not take is lost, and sent again as such */
		/* The way has become narrower, or knows no trains: one by one the kernel cuts what is too long. */
		udp->no_trains = error == -EIO || error == -EINVAL;
		link->flow.segment_size = udp_segment_size(link->paths, link->flow.path_count, link->flow.segment_size);
	}
	if (length > size)
		send_each(udp, path, train, length, size);
	else
		udp_send(udp, path, train, length);
}

/*
 * Copies bulk from the memory that its owner may write meanwhile. A segment whose acknowledgement is late is sent again
 * after the reader has had all of it and the owner has gone on; the reader drops it by its sequence number. The thread
 * sanitizer is kept from seeing this copy alone.
 */
#ifdef __SANITIZE_THREAD__
__attribute__((noinline, no_sanitize("thread"))) static void copy_bulk(uint8_t *to, const void *from, size_t length)
{
	const volatile uint8_t *bytes = from;

	for (size_t i = 0; i < length; i++)
		to[i] = bytes[i];
}
#else
static void copy_bulk(uint8_t *to, const void *from, size_t length)
{
	memcpy(to, from, length);
}
#endif

/* Makes a segment's packet; its size. The bytes are copied to behind their header, for the kernel is slow with many short
 * pieces, and then hashed where they are near. */
static uint32_t make(struct udp_link *link, uint8_t *to, const struct flow_segment *segment, const struct flow_news *news,
		     uint64_t now_ns)
{
	struct udp_bulk head = {
		.packet = {.type = UDP_DATA, .path = segment->path, .length = segment->length, .sequence = segment->sequence},
	};
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
	if (segment->kind == FLOW_STREAM)
		memcpy(to + size, segment->data, segment->length);
	else if (segment->length)
		copy_bulk(to + size, segment->data, segment->length);
	size += segment->length;
	uint64_t check = check_of(to, size, link->secret_out);
	memcpy(to, &check, sizeof(check));
	return size;
}

/* Packets that are made, and not yet given to the kernel: all of one path, and of one size but the last. */
struct train {
	uint32_t packets, length, first;
	unsigned path;
};

static void send_off(struct udp *udp, struct udp_link *link, struct train *train)
{
	if (train->packets)
		send_packets(udp, link, train->path, udp->train_out, train->length, train->first);
	train->packets = train->length = 0;
}

/* Sends all segments that may be sent now; without whole also what does not fill a packet. */
void udp_flush(struct udp *udp, struct udp_link *link, uint64_t now_ns, bool whole)
{
	struct flow_segment segment;
	struct flow_news news;
	struct train train = {0};
	while (flow_send(&link->flow, now_ns, !whole, &segment)) {
		if (train.packets && segment.path != train.path)
			send_off(udp, link, &train);
		if (!train.packets) {
			train.path = segment.path;
			/* Only what is in order goes along; gaps are told by a packet of its own. */
			if (link->flow.in_most == link->flow.in_next)
				flow_tell(&link->flow, segment.path, &news);
			else
				flow_look(&link->flow, segment.path, &news);
		}
		uint32_t size = make(link, udp->train_out + train.length, &segment, &news, now_ns);
		if (train.packets && size > train.first) {
			uint8_t *made = udp->train_out + train.length;
			send_off(udp, link, &train);
			memmove(udp->train_out, made, size);
		}
		train.first = train.packets ? train.first : size;
		train.packets++;
		train.length += size;
		if (size < train.first || train.packets == TRAIN || train.length + train.first > TRAIN_BYTES)
			send_off(udp, link, &train);
	}
	send_off(udp, link, &train);
}

static void learn(struct udp_link *link, const struct udp_packet *packet, const uint8_t *payload, uint64_t now_ns)
{
	/* The packets of a train all say the same. */
	if (packet->type != UDP_NEWS && packet->next == link->told_next && packet->consumed == link->told_consumed)
		return;
	link->told_next = packet->next;
	link->told_consumed = packet->consumed;
	struct flow_news news;
	news.next = packet->next;
	news.consumed = packet->consumed;
	news.echo_us = packet->echo_us;
	news.bits = 0;
	if (packet->type == UDP_NEWS && packet->sequence <= FLOW_BITS &&
	    packet->length == (packet->sequence + 63) / 64 * sizeof(uint64_t)) {
		news.bits = packet->sequence;
		memcpy(news.bitmap, payload, packet->length);
	}
	flow_learn(&link->flow, now_ns, packet->path, &news);
}

/* Whether a packet is whole, and of who it should be. */
static bool right(struct pm_endpoint *endpoint, struct udp_link *link, struct udp_packet *packet, const uint8_t *data, uint32_t length)
{
	memcpy(packet, data, sizeof(*packet));
	if (packet->path < link->flow.path_count && udp_header_size(packet->type) + packet->length == length &&
	    check_of(data, length, link->secret_in) == packet->check)
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
	flow_heard(&link->flow, now_ns, packet.path, packet.time_us, packet.echo_us);
	link->came_by = packet.path;
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
