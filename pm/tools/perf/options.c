/*
 * options.c - the command line of pm-perf.
 */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST 4 /* a message carries its number */
#define DEFAULT_SIZES "4-4M"

enum {
	OPTION_SERVER = 256,
	OPTION_CPUS,
	OPTION_CSV,
	OPTION_PLOT,
	OPTION_TIME,
};

static const struct argp_option options[] = {
	{ "server", OPTION_SERVER, NULL, 0, "print an address and serve the client that is started with it", 0 },
	{ "curves", 'c', "NAME,...", 0, "what to measure, of: flag, memcpy, message, message-copies, write, read, write-no-direct, read-no-direct, and where memory is pinned write-hits-100, write-hits-50, write-hits-0, read-hits-100, read-hits-50, read-hits-0 (default: all)", 1 },
	{ "metrics", 'm', "NAME,...", 0, "what of them, of: latency, bandwidth (default: both)", 1 },
	{ "sizes", 's', "FROM-TO|SIZE,...", 0, "bytes, with suffix K or M for 1024s; a range goes by doubling (default: " DEFAULT_SIZES ")", 1 },
	{ "repeat", 'r', "COUNT", 0, "measurements of each, of which the median is given (default: 31)", 1 },
	{ "time", OPTION_TIME, "MS", 0, "length of one measurement in milliseconds (default: 1)", 1 },
	{ "cpus", OPTION_CPUS, "CLIENT,SERVER", 0, "CPUs to run on, or none (default: the first two that are allowed)", 1 },
	{ "csv", OPTION_CSV, "FILE", 0, "write the figures there as CSV; - is standard output, in place of the table", 2 },
	{ "plot", OPTION_PLOT, "FILE", 0, "plot the curves to FILE, which ends in .svg or .png, by gnuplot", 2 },
	{ 0 },
};

static size_t parse_size(const char *text, char **end)
{
	errno = 0;
	unsigned long long value = strtoull(text, end, 10);
	if (*end == text || errno)
		fail(0, "\"%s\" is not a size", text);
	if (**end == 'K' || **end == 'M') {
		value <<= **end == 'K' ? 10 : 20;
		(*end)++;
	}
	if (value < SMALLEST || value > (1ull << 32))
		fail(0, "size %llu is not between %d and %llu", value, SMALLEST, 1ull << 32);
	return value;
}

static void add_size(struct settings *settings, size_t size)
{
	if (settings->size_count && size <= settings->sizes[settings->size_count - 1])
		fail(0, "sizes are to be in rising order: %zu", size);
	if (settings->size_count == MAX_SIZES)
		fail(0, "more than %d sizes", MAX_SIZES);
	settings->sizes[settings->size_count++] = size;
}

static void parse_sizes(struct settings *settings, const char *text)
{
	char *end;
	settings->size_count = 0;
	for (;; text = end + 1) {
		size_t size = parse_size(text, &end);
		add_size(settings, size);
		if (*end == '-') {
			size_t last = parse_size(end + 1, &end);
			while ((size *= 2) <= last)
				add_size(settings, size);
		}
		if (*end == '\0')
			return;
		if (*end != ',')
			fail(0, "\"%s\" does not follow a size", end);
	}
}

/* Of all names, those in the text are chosen. */
static void parse_names(char *text, const char *what, const char *const *names, int count, bool *chosen)
{
	memset(chosen, 0, (size_t)count * sizeof *chosen);
	for (char *name; (name = strsep(&text, ","));) {
		int i = 0;
		while (i < count && strcmp(name, names[i]) != 0)
			i++;
		if (i == count)
			fail(0, "there is no %s \"%s\"; --help names them", what, name);
		chosen[i] = true;
	}
}

static void default_cpus(struct settings *settings)
{
	cpu_set_t set;
	int found = 0;
	if (sched_getaffinity(0, sizeof set, &set))
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET((size_t)cpu, &set))
			settings->cpus[found++] = cpu;
	if (found == 1)
		settings->cpus[1] = settings->cpus[0];
}

static long parse_number(const char *text, const char *what, long least, long most)
{
	char *end;
	errno = 0;
	long value = strtol(text, &end, 10);
	if (end == text || *end || errno || value < least || value > most)
		fail(0, "%s: \"%s\" is not a number from %ld to %ld", what, text, least, most);
	return value;
}

static void parse_cpus(struct settings *settings, const char *text)
{
	if (strcmp(text, "none") == 0) {
		settings->cpus[0] = settings->cpus[1] = -1;
	} else if (sscanf(text, "%d,%d", &settings->cpus[0], &settings->cpus[1]) != 2 || settings->cpus[0] < 0 ||
		   settings->cpus[0] >= CPU_SETSIZE || settings->cpus[1] < 0 || settings->cpus[1] >= CPU_SETSIZE) {
		fail(0, "--cpus: \"%s\" is not two CPUs' numbers with a comma between", text);
	}
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct invocation *invocation = state->input;
	struct settings *settings = &invocation->settings;
	int result;
	switch (key) {
	case OPTION_SERVER:
		invocation->role = ROLE_SERVER;
		return 0;
	case 'c':
		parse_names(value, "curve", curve_names, CURVES, settings->curves);
		settings->chosen = true;
		return 0;
	case 'm':
		parse_names(value, "metric", metric_names, METRICS, settings->metrics);
		return 0;
	case 's':
		parse_sizes(settings, value);
		return 0;
	case 'r':
		settings->repetitions = (int)parse_number(value, "--repeat", 1, 100000);
		return 0;
	case OPTION_TIME:
		settings->batch_seconds = (double)parse_number(value, "--time", 1, 60000) / 1e3;
		return 0;
	case OPTION_CPUS:
		parse_cpus(settings, value);
		return 0;
	case OPTION_CSV:
		settings->csv = value;
		return 0;
	case OPTION_PLOT:
		settings->plot = value;
		return 0;
	case ARGP_KEY_ARG:
		if (invocation->role != ROLE_PAIR)
			fail(0, "\"%s\": one address at most, and none with --server", value);
		result = pm_address_parse(value, &invocation->server);
		if (result)
			fail(0, "\"%s\" is not an address as pm-perf --server prints it", value);
		invocation->role = ROLE_CLIENT;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void print_version(FILE *stream, struct argp_state *state)
{
	(void)state;
	fprintf(stream, "pm-perf %s\n", pm_version());
}

void parse_options(int argc, char **argv, struct invocation *invocation)
{
	static const struct argp parser = {
		.options = options,
		.parser = parse,
		.args_doc = "\nADDRESS",
		.doc = "Measure latency and bandwidth of PM between two processes, by size: both started here, or the client of one"
		       " that was started with --server, on this machine, another one or in a guest, and has printed ADDRESS.",
	};
	argp_program_version_hook = print_version;
	argp_err_exit_status = 2;
	*invocation = (struct invocation){ .settings = { .repetitions = 31, .batch_seconds = 0.001, .cpus = { -1, -1 } } };
	struct settings *settings = &invocation->settings;
	memset(settings->curves, true, sizeof settings->curves);
	memset(settings->metrics, true, sizeof settings->metrics);
	parse_sizes(settings, DEFAULT_SIZES);
	default_cpus(settings);
	argp_parse(&parser, argc, argv, 0, NULL, invocation);
	if (invocation->role != ROLE_PAIR)
		settings->curves[CURVE_FLAG] = false; /* these two share no memory but PM's */
	if (settings->plot)
		check_plot(settings->plot);
}
