/*
 * main.c - pm-perf: latency and bandwidth of PM between two processes, by message size; pm-perf(1).
 */
#include "perf.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "options.h"

#define CALIBRATIONS 3
#define LONG 4 /* measurements, of one try: others would change nothing */

bool give_way;

const char *const curve_names[CURVES] = {
	[CURVE_FLAG] = "flag",
	[CURVE_MEMCPY] = "memcpy",
	[CURVE_MESSAGE] = "message",
	[CURVE_MESSAGE_COPIES] = "message-copies",
	[CURVE_WRITE] = "write",
	[CURVE_READ] = "read",
	[CURVE_WRITE_NO_DIRECT] = "write-no-direct",
	[CURVE_READ_NO_DIRECT] = "read-no-direct",
	[CURVE_WRITE_HITS_100] = "write-hits-100",
	[CURVE_WRITE_HITS_50] = "write-hits-50",
	[CURVE_WRITE_HITS_0] = "write-hits-0",
	[CURVE_READ_HITS_100] = "read-hits-100",
	[CURVE_READ_HITS_50] = "read-hits-50",
	[CURVE_READ_HITS_0] = "read-hits-0",
};
const char *const metric_names[METRICS] = { [METRIC_LATENCY] = "latency", [METRIC_BANDWIDTH] = "bandwidth" };
const char *const metric_units[METRICS] = { [METRIC_LATENCY] = "us", [METRIC_BANDWIDTH] = "MB/s" };

bool curve_has(enum curve curve, enum metric metric)
{
	return curve != CURVE_FLAG || metric == METRIC_LATENCY;
}

bool curve_writes(enum curve curve)
{
	return curve == CURVE_WRITE || curve == CURVE_WRITE_NO_DIRECT || (curve >= CURVE_WRITE_HITS_100 && curve <= CURVE_WRITE_HITS_0);
}

int curve_hits(enum curve curve)
{
	static const int percent[] = { 100, 50, 0 };
	return curve < CURVE_WRITE_HITS_100 ? -1 : percent[(curve - CURVE_WRITE_HITS_100) % 3];
}

bool curve_has_size(enum curve curve, size_t size)
{
	return curve != CURVE_FLAG || size == sizeof(uint64_t);
}

_Noreturn void fail(int of_errno, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "pm-perf: ");
	vfprintf(stderr, format, arguments);
	if (of_errno)
		fprintf(stderr, ": %s", strerror(of_errno < 0 ? -of_errno : of_errno));
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void pin(int cpu)
{
	cpu_set_t set;
	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		fail(-errno, "run on CPU %d", cpu);
}

static double one_sample(const struct order *order, double seconds)
{
	/* A batch moves as many times the size as it has parts; a round trip is two. */
	if (order->metric == METRIC_BANDWIDTH)
		return (double)order->size * (double)order->count / seconds / 1e6;
	int halves = order->curve == CURVE_FLAG || order->curve == CURVE_MESSAGE || order->curve == CURVE_MESSAGE_COPIES ? 2 : 1;
	return seconds / (double)order->count / halves * 1e6;
}

/* How many fit into a batch's time. What is run to find out also warms caches and page tables up. The shortest of
 * some tries counts: one during which another program had the processor would make all batches too short. An even number,
 * so that where every other access is a hit half of a batch are. */
static int64_t calibrate(struct link *link, struct order order, double batch_seconds)
{
	double least = 0;
	int tries = 0;
	unsigned rails = 0; /* of no interest yet */
	for (order.count = 4; tries < CALIBRATIONS && least < LONG * batch_seconds;) {
		double seconds = measure_batch(link, &order, &rails);
		if (seconds < batch_seconds / 8) {
			order.count *= 4;
			tries = 0;
		} else if (tries++ == 0 || seconds < least) {
			least = seconds;
		}
	}
	return (int64_t)((double)order.count * batch_seconds / least / 2) * 2 + 2;
}

/* All curves and sizes once, then again and again: so a slow moment of the machine falls on all of them. */
static void measure(struct link *link, const struct settings *settings, sample_table samples)
{
	static int64_t counts[CURVES][MAX_SIZES][METRICS];
	for (int turn = 0; turn < settings->repetitions; turn++)
		for (int size = 0; size < settings->size_count; size++)
			for (int curve = 0; curve < CURVES; curve++)
				for (int metric = 0; metric < METRICS; metric++) {
					struct order order = { (uint32_t)curve, (uint32_t)metric, settings->sizes[size], 0 };
					struct samples *taken = &samples[curve][size][metric];
					int64_t *count = &counts[curve][size][metric];
					if (!settings->curves[curve] || !settings->metrics[metric] || !curve_has(curve, metric) ||
					    !curve_has_size(curve, order.size) || !pinned_has(link, curve, order.size))
						continue;
					if (!*count)
						*count = calibrate(link, order, settings->batch_seconds);
					if (!taken->values)
						taken->values = calloc((size_t)settings->repetitions, sizeof *taken->values);
					if (!taken->values)
						fail(-ENOMEM, "room for %d figures", settings->repetitions);
					order.count = *count;
					taken->values[taken->count++] = one_sample(&order, measure_batch(link, &order, &taken->rails));
				}
}

/* How many hits there were, which also finds out whether curves of hits are what they are called. */
static void count_hits(const struct link *link, const struct settings *settings, sample_table samples, hit_table hits)
{
	for (int curve = 0; curve < CURVES; curve++)
		for (int size = 0; size < settings->size_count; size++)
			if (curve_hits(curve) >= 0 && any_metric(samples, curve, size))
				hits[curve][size] = pinned_hits(link, curve, settings->sizes[size]);
}

static void run_client(struct link *link, struct settings *settings, const struct pm_address *server)
{
	static sample_table samples;
	static hit_table hits;
	pin(settings->cpus[0]);
	link_open(link, settings->sizes[settings->size_count - 1]);
	link_greet(link, server);
	client_verify(link);
	pinned_open(link, settings, server);
	measure(link, settings, samples);
	count_hits(link, settings, samples, hits);
	bool accesses = settings->curves[CURVE_WRITE] || settings->curves[CURVE_READ];
	if (accesses && !client_was_direct(link))
		fprintf(stderr, "pm-perf: the other process's memory cannot be accessed directly here: \"write\" and \"read\" went through the rings\n");
	pinned_close(link);
	client_end(link);
	link_close(link);
	if (!settings->csv || strcmp(settings->csv, "-") != 0)
		print_table(settings, samples);
	if (settings->csv)
		write_csv(settings, samples, hits);
	if (settings->plot)
		write_plot(settings, samples);
}

static void run_server(struct link *link, const struct settings *settings, int address_to)
{
	struct pm_address address;
	char text[PM_ADDRESS_TEXT];
	pin(settings->cpus[1]);
	link_open(link, 0);
	int result = pm_endpoint_address(link->sides[SIDE_DIRECT].endpoint, &address);
	if (result)
		fail(result, "the endpoint's address");
	if (address_to >= 0) {
		if (write(address_to, &address, sizeof address) != sizeof address)
			fail(-errno, "tell the client this process's address");
		close(address_to);
	} else {
		pm_address_format(&address, text);
		puts(text);
		fflush(stdout);
	}
	link_welcome(link);
	serve(link);
	link_close(link);
}

/* Both processes of one program. The library is first used after the fork. */
static int run_pair(struct settings *settings)
{
	struct link link = { .line = flag_line_map() };
	struct pm_address address;
	int pipe_ends[2], status;
	if (pipe(pipe_ends))
		fail(-errno, "make a pipe");
	pid_t server = fork();
	if (server < 0)
		fail(-errno, "start the server");
	if (server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a client that fails may have no way to tell */
		close(pipe_ends[0]);
		run_server(&link, settings, pipe_ends[1]);
		return 0;
	}
	close(pipe_ends[1]);
	if (read(pipe_ends[0], &address, sizeof address) != sizeof address)
		fail(0, "the server has not started");
	run_client(&link, settings, &address);
	if (waitpid(server, &status, 0) != server)
		fail(-errno, "wait for the server");
	return status == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
	struct invocation invocation;
	parse_options(argc, argv, &invocation);
	struct settings *settings = &invocation.settings;
	bool together = settings->cpus[0] >= 0 && settings->cpus[0] == settings->cpus[1];
	give_way = together || sysconf(_SC_NPROCESSORS_ONLN) == 1;
	struct link link = { .line = NULL };
	switch (invocation.role) {
	case ROLE_PAIR:
		return run_pair(settings);
	case ROLE_SERVER:
		run_server(&link, settings, -1);
		return 0;
	case ROLE_CLIENT:
		run_client(&link, settings, &invocation.server);
		return 0;
	}
	return 1;
}
