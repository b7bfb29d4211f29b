/* udp_stopped.c - processes that were all stopped for longer than they are patient do not give each other up. */
#include "wire.h"

#define STOPPED_S 2

/* The one is stopped first, and goes on last: what the other finds when it goes on is silence. */
static void stop_both(pid_t one, pid_t other)
{
	fflush(NULL);
	pid_t stopper = fork();
	CHECK(stopper >= 0);
	if (stopper)
		return;
	CHECK(!kill(one, SIGSTOP));
	usleep(100000); /* the other takes what has come */
	CHECK(!kill(other, SIGSTOP));
	sleep(STOPPED_S);
	CHECK(!kill(other, SIGCONT));
	usleep(300000);
	CHECK(!kill(one, SIGCONT));
	_exit(0);
}

static void stopped(struct side *side)
{
	int sent = 0;
	pid_t child = getpid();
	if (side->number == 0) {
		hear(side, &child, sizeof(child));
		send_surely(side, 0, "first", 6);
		sent = send_until_full(side); /* so that something is awaited of the other */
		double began = seconds();
		stop_both(child, getpid());
		nothing_for(side, STOPPED_S + 1);
		CHECK(seconds() - began > STOPPED_S);
		CHECK(wait(NULL) != child);
		tell(side, &sent, sizeof(sent));
		send_surely(side, 0, "more", 5);
	} else {
		tell(side, &child, sizeof(child));
		take_all(side, 1);
		hear(side, &sent, sizeof(sent));
		take_all(side, sent + 1);
	}
}

int main(void)
{
	wire_begin("1");
	pair_run(NULL, stopped);
	return 0;
}
