/*
 * udp_wake.c - a sleeper is woken by what the keeper has taken out of its socket just before it went to sleep. poll is
 * the test's: between the last look and the sleep it has the other side send, and waits until the keeper has taken that.
 */
#include <poll.h>
#include <sys/ioctl.h>

#include "wire.h"

static struct side *sleeper;

static void have_it_taken(int fd)
{
	int waiting = 1;
	char c = 'x';
	tell(sleeper, &c, 1);
	hear(sleeper, &c, 1); /* it has been sent */
	for (double until = seconds() + 20; waiting; usleep(100)) {
		CHECK(seconds() < until);
		CHECK_IS(ioctl(fd, FIONREAD, &waiting), 0);
	}
	sleeper = NULL;
}

int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000l};
	struct pollfd *volatile all = fds; /* it is declared as if it did not read them */
	if (sleeper && n > 1)
		have_it_taken(all[1].fd);
	return (int)wire_call(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &timeout, NULL, 0);
}

static void wake(struct side *side)
{
	struct pm_message message;
	char c;
	if (side->number == 0) {
		send_surely(side, 0, "first", 6);
		hear(side, &c, 1);
		send_surely(side, 0, "second", 7);
		tell(side, &c, 1);
		return;
	}
	take_all(side, 1);
	/* There is nothing for which it would have to wake by itself. */
	UNTIL(side, side->peer->udp->sure && udp_wait_ms(side->endpoint) < 0);
	sleeper = side;
	double began = seconds();
	while (!pm_receive(side->endpoint, &message))
		CHECK_IS(pm_wait(side->endpoint, 20000), 1);
	CHECK(!sleeper && seconds() - began < 10);
	CHECK(!strcmp(message.data, "second"));
	pm_release(side->endpoint, &message);
}

int main(void)
{
	wire_begin("60");
	pair_run(NULL, wake);
	return 0;
}
