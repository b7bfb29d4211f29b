/*
 * wire.h - what a test's processes send by UDP goes through the test's hands: the library calls sendto, sendmsg and
 * syscall, and these are found before the C library's. Where packets are to be looked at, trains (UDP_SEGMENT) are taken
 * apart.
 */
#ifndef WIRE_H
#define WIRE_H

#include <dlfcn.h>
#include <netinet/udp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "pair.h"
#include "udp.h"

/* Called for each packet by whichever thread sends it; false: it is lost. It may send others the same way. */
static bool (*_Atomic wire)(const struct udp_packet *packet, size_t length);
static _Thread_local struct {
	int fd;
	const struct sockaddr *to;
	socklen_t to_length;
} wire_way;
/* What the kernel says of trains, if it has none. */
static _Atomic int wire_no_trains;
/* The longest packet that was sent lately. */
static _Atomic size_t wire_longest;

/* The C library's syscall; arguments that are not given are not looked at. */
static long wire_call(long number, ...)
{
	static long (*_Atomic call)(long, ...);
	long a[6];
	va_list arguments;
	va_start(arguments, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(arguments, long);
	va_end(arguments);
	if (!call)
		call = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return (*call)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void wire_measure(size_t length)
{
	if (length > atomic_load(&wire_longest))
		atomic_store(&wire_longest, length);
}

static ssize_t wire_put(int fd, const void *packet, size_t length, int flags, const struct sockaddr *to, socklen_t to_length)
{
	wire_measure(length);
	wire_way = (typeof(wire_way)){fd, to, to_length};
	if (wire && length >= sizeof(struct udp_packet) && !wire(packet, length))
		return (ssize_t)length;
	return wire_call(SYS_sendto, fd, packet, length, flags, to, to_length);
}

static inline void wire_send(const void *packet, size_t length)
{
	wire_call(SYS_sendto, wire_way.fd, packet, length, 0, wire_way.to, wire_way.to_length);
}

ssize_t sendto(int fd, const void *packet, size_t length, int flags, const struct sockaddr *to, socklen_t to_length)
{
	return wire_put(fd, packet, length, flags, to, to_length);
}

/* The size of a train's packets, 0: it is none. */
static uint16_t wire_train(const struct msghdr *message)
{
	uint16_t size = 0;
	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR((struct msghdr *)message, header))
		if (header->cmsg_level == IPPROTO_UDP && header->cmsg_type == UDP_SEGMENT)
			memcpy(&size, CMSG_DATA(header), sizeof(size));
	return size;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	static _Thread_local uint8_t train[65536];
	static _Thread_local _Alignas(struct udp_packet) uint8_t packet[65536];
	size_t length = 0, size = wire_train(message);
	int domain = AF_UNIX;
	socklen_t room = sizeof(domain);
	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &room);
	if (domain == AF_UNIX) /* not the udp rail's */
		return wire_call(SYS_sendmsg, fd, message, flags);
	if (size && atomic_load(&wire_no_trains)) {
		errno = atomic_load(&wire_no_trains);
		return -1;
	}
	if (!wire) {
		ssize_t sent = wire_call(SYS_sendmsg, fd, message, flags);
		wire_measure(sent > 0 && size ? size : sent > 0 ? (size_t)sent : 0);
		return sent;
	}
	for (size_t i = 0; i < message->msg_iovlen; i++) {
		CHECK(length + message->msg_iov[i].iov_len <= sizeof(train));
		memcpy(train + length, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
		length += message->msg_iov[i].iov_len;
	}
	for (size_t at = 0, piece; at < length; at += piece) {
		piece = size && length - at > size ? size : length - at;
		memcpy(packet, train + at, piece);
		if (wire_put(fd, packet, piece, flags, message->msg_name, message->msg_namelen) < 0)
			return -1;
	}
	return (ssize_t)length;
}

static inline long wire_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	for (unsigned i = 0; i < count; i++) {
		ssize_t sent = sendmsg(fd, &messages[i].msg_hdr, flags);
		if (sent < 0)
			return i ? (long)i : -1;
		messages[i].msg_len = sent;
	}
	return count;
}

long syscall(long number, ...)
{
	long a[6];
	va_list arguments;
	va_start(arguments, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(arguments, long);
	va_end(arguments);
	if (number == SYS_sendto)
		return sendto((int)a[0], (void *)a[1], (size_t)a[2], (int)a[3], (struct sockaddr *)a[4], (socklen_t)a[5]);
	if (number == SYS_sendmmsg)
		return wire_sendmmsg((int)a[0], (struct mmsghdr *)a[1], (unsigned)a[2], (int)a[3]);
	if (number == SYS_sendmsg)
		return sendmsg((int)a[0], (struct msghdr *)a[1], (int)a[2]);
	return wire_call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* A job of its own over the loopback, so that no process of the machine's takes part. */
static inline void wire_begin(const char *patience)
{
	setenv("PM_RAILS", "udp", 1);
	setenv("PM_ADDRESS", "127.0.0.1", 1);
	setenv("PM_PATIENCE", patience, 1);
}

/* Sends messages of a page until there is no room; how many. The other side does not take any meanwhile. */
static inline int send_until_full(struct side *side)
{
	static uint8_t data[4096];
	struct iovec part = {data, sizeof(data)};
	struct pm_message message;
	int sent = 0;
	for (double until = seconds() + 0.3; seconds() < until;) {
		int error = pm_send(side->peer, 0, &part, 1);
		CHECK(error == 0 || error == -EAGAIN);
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
		if (!error) {
			sent++;
			until = seconds() + 0.3;
		}
	}
	CHECK(sent > 0);
	return sent;
}

/* Receives so many, which have been sent so, or will be. */
static inline void take_all(struct side *side, int messages)
{
	struct pm_message message;
	while (messages--) {
		receive_surely(side, &message);
		pm_release(side->endpoint, &message);
	}
}

/* Nothing comes for so long, and nobody goes. */
static inline void nothing_for(struct side *side, double time)
{
	struct pm_message message;
	struct pm_event event;
	for (double until = seconds() + time; seconds() < until;) {
		CHECK_IS(pm_receive(side->endpoint, &message), 0);
		CHECK_IS(pm_next_event(side->endpoint, &event), 0);
	}
}

/* Runs body so many times side by side, for it to see in side_by_side which one it is: for what waits for time to pass. */
static int side_by_side;
static inline void run_side_by_side(void (*body)(struct side *), int n)
{
	pid_t children[16];
	CHECK(n <= 16);
	for (side_by_side = 0; side_by_side < n; side_by_side++) {
		fflush(NULL);
		pid_t child = children[side_by_side] = fork();
		CHECK(child >= 0);
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			pair_run(NULL, body);
			exit(0);
		}
	}
	for (int i = 0; i < n; i++)
		CHECK_IS(child_status(children[i]), 0);
}

/* Receives nothing until what is waited for has come; so that the process does what it does when it has a turn. */
#define UNTIL(side, condition) \
	do { \
		struct pm_message message_; \
		double until_ = seconds() + 20; \
		while (!(condition)) { \
			CHECK(seconds() < until_); \
			CHECK_IS(pm_receive((side)->endpoint, &message_), 0); \
		} \
	} while (0)

#endif
