/*
 * udp_narrow.c - traffic goes on when the way becomes narrower, and where the kernel cuts no trains. The narrower way is
 * the loopback of a network namespace of the test's own, which needs root.
 */
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "wire.h"

#define MESSAGES 400
#define WIDE 9000
#define NARROW 1400

static void set_mtu(int mtu)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_mtu = mtu};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK_IS(ioctl(fd, SIOCSIFMTU, &request), 0);
	CHECK_IS(ioctl(fd, SIOCGIFFLAGS, &request), 0);
	request.ifr_flags |= IFF_UP;
	CHECK_IS(ioctl(fd, SIOCSIFFLAGS, &request), 0);
	close(fd);
}

static void fill(uint8_t *data, int number)
{
	for (int i = 0; i < PM_MAX_MESSAGE; i++)
		data[i] = (uint8_t)(number * 7 + i * 3);
}

/* Sends on and on, and has change made in the midst of it; the other side checks what comes. */
static void traffic(struct side *side, void (*change)(void))
{
	wire_longest = 0;
	static uint8_t data[PM_MAX_MESSAGE];
	struct pm_message message;
	for (int i = 0; i < MESSAGES; i++) {
		fill(data, i);
		if (side->number == 0) {
			if (i == MESSAGES / 2)
				change();
			send_surely(side, 0, data, sizeof(data));
			continue;
		}
		receive_surely(side, &message);
		CHECK_IS(message.length, sizeof(data));
		CHECK(!memcmp(message.data, data, sizeof(data)));
		pm_release(side->endpoint, &message);
	}
}

static void narrow(void)
{
	CHECK(wire_longest > NARROW && wire_longest < WIDE);
	set_mtu(NARROW);
}

static void narrower(struct side *side)
{
	wire_no_trains = 0;
	traffic(side, narrow);
	meet(side); /* what was cut for the wide way has arrived by now */
	traffic(side, (void (*)(void))getpid);
	CHECK(wire_longest <= NARROW);
	meet(side);
}

static void refuse_eio(void) { wire_no_trains = EIO; }
static void refuse_einval(void) { wire_no_trains = EINVAL; }
static void without_eio(struct side *side) { traffic(side, refuse_eio); }
static void without_einval(struct side *side) { traffic(side, refuse_einval); }

int main(void)
{
	wire_begin("60");
	pair_run(NULL, without_eio);
	pair_run(NULL, without_einval);
	if (unshare(CLONE_NEWNET)) {
		printf("root is missing, for a network namespace\n");
		return SKIPPED;
	}
	set_mtu(WIDE);
	pair_run(NULL, narrower);
	return 0;
}
