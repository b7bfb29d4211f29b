/*
 * watari-guest-rsh - run a command in another guest of the cluster, as rsh and ssh would.
 *
 * MPI launchers start one of these for each guest and keep it for the whole run, so it has to be small: it has no C
 * library, no heap, and touches about ten pages. The guest agent does the work (guest/rsh). This program passes it the
 * arguments, the signals and the standard streams, by packets over a Unix socket, and exits with the command's status.
 *
 * The first byte of a packet says what it is:
 *
 *	to the agent:	A  a part of the arguments, each of which ends with a zero byte
 *			R  run: the arguments are complete
 *			I  a part of the input; without bytes: its end
 *			S  a signal, as one byte
 *	from the agent:	O  a part of the output
 *			E  a part of the error output
 *			I  a part of the input is wanted
 *			X  the end, with the exit status as one byte
 *
 * Nothing is sent or read while output waits to be written, so the agent's socket holds back an agent that is too fast.
 */
#include <asm/unistd.h>
#include <linux/errno.h>
#include <linux/poll.h>
#include <linux/signal.h>
#include <linux/signalfd.h>
#include <linux/socket.h>
#include <linux/time.h>
#include <linux/un.h>

#ifndef __x86_64__
#error "guests are x86-64 machines; the system calls below are theirs"
#endif

#ifndef SOCKET
#define SOCKET "/run/watari/rsh.sock"
#endif

enum {
	PACKET = 4096,		/* bytes of the longest packet; guest/rsh has the same number */
	PATIENCE = 120,		/* seconds for which the agent may be away: it may be starting anew */
	PAUSE = 100,		/* milliseconds between two attempts to reach it */
	FAILED = 255,		/* exit status of ssh when it, and not the command, fails */
};

/* Values of <sys/socket.h> and <signal.h>, which the kernel's headers do not define for user space. */
enum { SOCK_SEQPACKET = 5, SOCK_CLOEXEC = 02000000, MSG_NOSIGNAL = 0x4000 };

static char buffer[PACKET];
static int agent = -1, signals = -1;

static long call(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static void leave(int status)
{
	for (;;)
		call(__NR_exit_group, status, 0, 0, 0, 0, 0);
}

static long length(const char *text)
{
	long n = 0;

	while (text[n])
		n++;
	return n;
}

static void fail(const char *why)
{
	static const char start[] = "watari-guest rsh: ", end[] = "\n";

	call(__NR_write, 2, (long)start, sizeof start - 1, 0, 0, 0);
	call(__NR_write, 2, (long)why, length(why), 0, 0, 0);
	call(__NR_write, 2, (long)end, sizeof end - 1, 0, 0, 0);
	leave(FAILED);
}

/* wait_for waits until one of the files is ready, or the time is over (-1: never). */
static void wait_for(struct pollfd *files, int n, int milliseconds)
{
	while (call(__NR_poll, (long)files, n, milliseconds, 0, 0, 0) == -EINTR)
		;
}

/* take_signal returns a signal that has come. */
static int take_signal(void)
{
	static struct signalfd_siginfo info;

	if (call(__NR_read, signals, (long)&info, sizeof info, 0, 0, 0) != sizeof info)
		return 0;
	return info.ssi_signo;
}

/* watch_signals blocks the signals that are passed on; they are read from a file. */
static void watch_signals(void)
{
	static const char passed[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 };
	unsigned long set = 0;

	for (unsigned long i = 0; i < sizeof passed; i++)
		set |= 1UL << (passed[i] - 1);
	call(__NR_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof set, 0, 0);
	signals = call(__NR_signalfd4, -1, (long)&set, sizeof set, SFD_CLOEXEC, 0, 0);
	if (signals < 0)
		fail("signals cannot be watched");
}

/* send_packet sends n bytes of the buffer. When the agent has gone, the next read says so. */
static void send_packet(long n)
{
	while (call(__NR_sendto, agent, (long)buffer, n, MSG_NOSIGNAL, 0, 0) == -EINTR)
		;
}

static void pass_signal(void)
{
	buffer[0] = 'S';
	buffer[1] = take_signal();
	send_packet(2);
}

/* reach_agent connects to the guest agent. A signal that comes before ends the program, as it would the command. */
static void reach_agent(void)
{
	struct sockaddr_un address = { .sun_family = 1 /* AF_UNIX */, .sun_path = SOCKET };
	struct pollfd file = { .fd = signals, .events = POLLIN };

	for (int waited = 0;; waited += PAUSE) {
		agent = call(__NR_socket, 1 /* AF_UNIX */, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, 0, 0, 0);
		if (agent < 0)
			fail("no socket can be made");
		if (call(__NR_connect, agent, (long)&address, sizeof address, 0, 0, 0) == 0)
			return;
		call(__NR_close, agent, 0, 0, 0, 0, 0);
		if (waited >= PATIENCE * 1000)
			fail("the guest agent cannot be reached at " SOCKET);
		file.revents = 0;
		wait_for(&file, 1, PAUSE);
		if (file.revents)
			leave(128 + take_signal());
	}
}

static void send_arguments(char **arguments)
{
	long n = 1;

	buffer[0] = 'A';
	for (; *arguments; arguments++) {
		for (const char *p = *arguments;; p++) {
			if (n == PACKET) {
				send_packet(n);
				n = 1;
			}
			buffer[n++] = *p;
			if (!*p)
				break;
		}
	}
	send_packet(n);
	buffer[0] = 'R';
	send_packet(1);
}

/* send_input reads a part of the input and sends it; it returns whether it has sent one. An error is the input's end. */
static int send_input(void)
{
	long n = call(__NR_read, 0, (long)buffer + 1, PACKET - 1, 0, 0, 0);

	if (n == -EINTR || n == -EAGAIN)
		return 0;
	buffer[0] = 'I';
	send_packet(1 + (n > 0 ? n : 0));
	return 1;
}

/* write_all writes what the agent sent. It passes signals on meanwhile; the buffer holds the output, so they have another. */
static void write_all(int to, const char *bytes, long n)
{
	char number[2] = { 'S' };

	while (n > 0) {
		struct pollfd files[] = { { .fd = to, .events = POLLOUT }, { .fd = signals, .events = POLLIN } };
		long written;

		wait_for(files, 2, -1);
		if (files[1].revents) {
			number[1] = take_signal();
			call(__NR_sendto, agent, (long)number, sizeof number, MSG_NOSIGNAL, 0, 0);
			continue;
		}
		written = call(__NR_write, to, (long)bytes, n, 0, 0, 0);
		if (written == -EINTR || written == -EAGAIN)
			continue;
		if (written == -EPIPE)
			fail("write output: broken pipe");
		if (written <= 0) /* a full disk, say: the command goes on */
			return;
		bytes += written;
		n -= written;
	}
}

/* receive takes a packet of the agent's; it returns whether that asks for input. */
static int receive(void)
{
	long n = call(__NR_recvfrom, agent, (long)buffer, sizeof buffer, 0, 0, 0);

	if (n == -EINTR)
		return 0;
	if (n <= 0)
		fail("the guest agent has ended");
	switch (buffer[0]) {
	case 'O':
		write_all(1, buffer + 1, n - 1);
		break;
	case 'E':
		write_all(2, buffer + 1, n - 1);
		break;
	case 'I':
		return 1;
	case 'X':
		leave(n > 1 ? (unsigned char)buffer[1] : FAILED);
	}
	return 0;
}

__attribute__((used)) static void run(long *stack)
{
	int wanted = 0;

	watch_signals();
	reach_agent();
	send_arguments(stack[0] > 0 ? (char **)stack + 2 : (char **)stack + 1);
	for (;;) {
		struct pollfd files[] = {
			{ .fd = agent, .events = POLLIN },
			{ .fd = signals, .events = POLLIN },
			{ .fd = wanted ? 0 : -1, .events = POLLIN },
		};

		wait_for(files, 3, -1);
		if (files[1].revents)
			pass_signal();
		if (files[0].revents)
			wanted |= receive();
		else if (files[2].revents)
			wanted = !send_input();
	}
}

/* The kernel starts a program with the number of arguments, and then the arguments, on the stack. */
__asm__(".globl _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call run\n");
