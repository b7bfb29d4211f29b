/* socket.c - the Unix sockets over which connections are made: names, who is on the other end, descriptors. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

#define MOST_DESCRIPTORS 4

static socklen_t name_of(const uint8_t id[CONTEXT_ID_SIZE], struct sockaddr_un *name)
{
	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	char *at = name->sun_path + 1; /* a name that begins with a zero is in no file system */
	at += sprintf(at, SOCKET_PREFIX);
	for (int i = 0; i < CONTEXT_ID_SIZE; i++)
		at += sprintf(at, "%02x", id[i]);
	return at - (char *)name;
}

int socket_listen(const uint8_t id[CONTEXT_ID_SIZE])
{
	struct sockaddr_un name;
	socklen_t length = name_of(id, &name);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&name, length) || listen(fd, 4096)) {
		int error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

/* -ECONNREFUSED: there is no such context on this machine; -EAGAIN: it has too many to answer just now. */
int socket_connect(const uint8_t id[CONTEXT_ID_SIZE])
{
	struct sockaddr_un name;
	socklen_t length = name_of(id, &name);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&name, length)) {
		int error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

static int peer_is(int fd, uid_t user, pid_t *pid)
{
	struct ucred credentials;
	socklen_t length = sizeof(credentials);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length))
		return -errno;
	*pid = credentials.pid;
	return credentials.uid == user ? 0 : -EPERM;
}

/* The process on the other end; -EPERM if it is another user's. */
int socket_peer(int fd, pid_t *pid)
{
	return peer_is(fd, geteuid(), pid);
}

/* As seen by who surveys or gives orders: root may to everybody's. */
int socket_subject(int fd, pid_t *pid)
{
	int error = socket_peer(fd, pid);
	return error == -EPERM && geteuid() == 0 ? 0 : error;
}

/* As seen by who is surveyed or given orders: root may, whoever's process this is; that is told. */
int socket_stranger(int fd, pid_t *pid, bool *root)
{
	int error = socket_peer(fd, pid);
	*root = error == -EPERM && !peer_is(fd, 0, pid);
	return *root ? 0 : error;
}

/* Whether the other had read all before it ended or not, it has ended. */
static int failed(void)
{
	return errno == ECONNRESET ? -EPIPE : -errno;
}

int socket_send(int fd, const void *data, size_t length, const int *fds, int count)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = (void *)data, .iov_len = length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (count) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(header), fds, count * sizeof(int));
	}
	return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? failed() : 0;
}

/* Takes a message of exactly length bytes; the number of descriptors that came with it, at most count, or -EPROTO
 * for anything else, -EPIPE at the end. */
int socket_receive(int fd, void *data, size_t length, int *fds, int count)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
	} control;
	struct iovec part = {.iov_base = data, .iov_len = length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got <= 0)
		return got ? failed() : -EPIPE;
	int found = 0;
	bool wrong = got != (ssize_t)length || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
	for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		int *given = (int *)CMSG_DATA(header);
		int n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (int i = 0; i < n; i++) {
			if (found < count && !wrong)
				fds[found++] = given[i];
			else
				close(given[i]);
		}
	}
	if (wrong) {
		while (found)
			close(fds[--found]);
		return -EPROTO;
	}
	return found;
}
