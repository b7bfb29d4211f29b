/* root.c - root may look at everybody's endpoints and give orders, but sends nobody else's process messages; other users
 * may do nothing of all that. */
#include <pm.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "shared.h"
#include "test.h"

#define SOMEBODY 65534
#define SOMEBODY_ELSE 65533
#define SOON 10000 /* ms */

struct found {
	struct pm_address address;
	int pid, times;
};

static int look(const struct pm_survey_entry *entry, void *argument)
{
	struct found *found = argument;
	if (!memcmp(&entry->address, &found->address, sizeof(found->address))) {
		found->pid = entry->pid;
		found->times++;
	}
	return 0;
}

/* Has an endpoint, says its address, and goes on until its input ends. */
static void be_somebody(int in, int out)
{
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_address address;
	struct pm_message message;
	char end;
	CHECK(!setgid(SOMEBODY) && !setuid(SOMEBODY));
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK_IS(pm_context_open(NULL, &context), 0);
	CHECK_IS(pm_endpoint_open(context, &endpoint), 0);
	CHECK_IS(pm_endpoint_address(endpoint, &address), 0);
	CHECK_IS(write(out, &address, sizeof(address)), sizeof(address));
	CHECK_IS(read(in, &end, 1), 0);
	CHECK_IS(pm_receive(endpoint, &message), 0);
	CHECK_IS(pm_context_close(context), 0);
	exit(0);
}

static void be_somebody_else(const struct pm_address *address)
{
	struct found found = {.address = *address};
	CHECK(!setgid(SOMEBODY_ELSE) && !setuid(SOMEBODY_ELSE));
	CHECK_IS(pm_survey(look, &found), 0);
	CHECK_IS(found.times, 0);
	CHECK_IS(pm_order_save(address, SOON), -EPERM);
	exit(0);
}

/* What the process says to a hello, its bytes. */
static ssize_t say(const struct pm_address *address, const struct hello *hello)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	struct welcome welcome;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), length = sprintf(name.sun_path + 1, "pm/");
	CHECK(fd >= 0);
	for (int i = 0; i < CONTEXT_ID_SIZE; i++)
		length += sprintf(name.sun_path + 1 + length, "%02x", address->bytes[8 + i]);
	CHECK(!connect(fd, (struct sockaddr *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + length));
	CHECK_IS(send(fd, hello, sizeof(*hello), 0), sizeof(*hello));
	ssize_t got = recv(fd, &welcome, sizeof(welcome), 0);
	close(fd);
	return got;
}

/* Neither the own library sends, nor would the other receive. */
static void no_messages(const struct pm_address *address)
{
	struct hello hello = {.magic = HELLO_MAGIC, .kind = HELLO_CONNECT, .from = *address, .to = *address};
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_peer *peer;
	int error;
	CHECK_IS(say(address, &hello), 0);
	hello.kind = HELLO_SURVEY;
	CHECK_IS(say(address, &hello), sizeof(struct welcome));
	CHECK_IS(pm_context_open(NULL, &context), 0);
	CHECK_IS(pm_endpoint_open(context, &endpoint), 0);
	CHECK_IS(pm_peer_get(endpoint, address, &peer), 0);
	while ((error = pm_send(peer, 0, NULL, 0)) == -EAGAIN)
		pm_wait(endpoint, 10);
	CHECK_IS(error, -EPERM);
	CHECK_IS(pm_context_close(context), 0);
}

int main(void)
{
	int there[2], back[2];
	struct found found = {0};
	if (getuid()) {
		fputs("needs root, to be several users\n", stderr);
		return SKIPPED;
	}
	CHECK(!pipe(there) && !pipe(back));
	alarm(60);
	pid_t somebody = fork();
	if (!somebody) {
		close(there[1]);
		be_somebody(there[0], back[1]);
	}
	CHECK_IS(read(back[0], &found.address, sizeof(found.address)), sizeof(found.address));
	CHECK_IS(pm_survey(look, &found), 0);
	CHECK_IS(found.times, 1);
	CHECK_IS(found.pid, somebody);
	CHECK_IS(pm_order_save(&found.address, SOON), 0);
	CHECK_IS(pm_order_restore(&found.address, SOON), 0);
	pid_t other = fork();
	if (!other)
		be_somebody_else(&found.address);
	CHECK_IS(child_status(other), 0);
	no_messages(&found.address);
	close(there[1]);
	CHECK_IS(child_status(somebody), 0);
	return 0;
}
