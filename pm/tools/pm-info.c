/*
 * pm-info.c - lists the PM endpoints of this user's processes on this machine, and what they have done; pm-info(1).
 */
#include <pm.h>

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rail_names.h"

enum {
	OPTION_JSON = 256,
};

static const struct argp_option options[] = {
	{ "json", OPTION_JSON, NULL, 0, "print one line of JSON, with all statistics", 0 },
	{ "watch", 'w', "SECONDS", 0, "print again every so many seconds, until interrupted", 0 },
	{ 0 },
};

struct settings {
	bool json;
	double watch; /* seconds, 0: once */
};

/* The statistics by name, in the order of the structure. */
static const struct column {
	const char *name;
	size_t offset;
} columns[] = {
#define COLUMN(member) { #member, offsetof(struct pm_statistics, member) }
	COLUMN(messages_sent),
	COLUMN(message_bytes_sent),
	COLUMN(messages_received),
	COLUMN(message_bytes_received),
	COLUMN(writes),
	COLUMN(write_bytes),
	COLUMN(reads),
	COLUMN(read_bytes),
	COLUMN(direct_bytes),
	COLUMN(no_room),
	COLUMN(dropped),
	COLUMN(waits),
	COLUMN(wait_ns),
	COLUMN(links_out),
	COLUMN(links_in),
	COLUMN(switches),
	COLUMN(pin_hits),
	COLUMN(pin_misses),
	COLUMN(pinned_bytes),
	COLUMN(paths_set_aside),
};

#define COLUMNS (sizeof columns / sizeof columns[0])
_Static_assert(COLUMNS * sizeof(uint64_t) == offsetof(struct pm_statistics, reserved), "pm-info does not show all statistics");

static uint64_t figure(const struct pm_statistics *statistics, size_t column)
{
	uint64_t value;
	memcpy(&value, (const char *)statistics + columns[column].offset, sizeof value);
	return value;
}

static _Noreturn void fail(int of_errno, const char *what)
{
	fprintf(stderr, "pm-info: %s%s%s\n", what, of_errno ? ": " : "", of_errno ? strerror(abs(of_errno)) : "");
	exit(1);
}

static void command_of(int pid, char *command, size_t size)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/comm", pid);
	FILE *file = fopen(path, "re");
	if (!file || !fgets(command, (int)size, file))
		snprintf(command, size, "?");
	if (file)
		fclose(file);
	command[strcspn(command, "\n")] = '\0';
}

static int print_json(const struct pm_survey_entry *entry, void *argument)
{
	int *printed = argument;
	char text[PM_ADDRESS_TEXT];
	pm_address_format(&entry->address, text);
	printf("%s{\"pid\":%d,\"address\":\"%s\"", (*printed)++ ? "," : "", entry->pid, text);
	for (size_t i = 0; i < COLUMNS; i++)
		printf(",\"%s\":%llu", columns[i].name, (unsigned long long)figure(&entry->statistics, i));
	printf(",\"rails\":{");
	for (unsigned i = 0; i < PM_RAILS; i++) {
		const struct pm_rail_statistics *rail = &entry->statistics.rails[i];
		printf("%s\"%s\":{\"messages\":%llu,\"message_bytes\":%llu,\"accesses\":%llu,\"access_bytes\":%llu}",
			i ? "," : "", rail_names[i], (unsigned long long)rail->messages, (unsigned long long)rail->message_bytes,
			(unsigned long long)rail->accesses, (unsigned long long)rail->access_bytes);
	}
	printf("}}");
	return 0;
}

/* "999", "1.2K", "345M": at most five characters, in powers of 1000 */
static const char *short_number(uint64_t number, char text[16])
{
	static const char suffixes[] = " KMGTPE";
	double value = (double)number;
	int power = 0;
	for (; value >= 999.5; value /= 1000)
		power++;
	if (power == 0)
		snprintf(text, 16, "%d", (int)number);
	else
		snprintf(text, 16, value < 9.95 ? "%.1f%c" : "%.0f%c", value, suffixes[power]);
	return text;
}

/* The beginning of the context's id, and the endpoint's serial number; see the wire format in pm(7). */
static void short_address(const struct pm_address *address, char text[24])
{
	const uint8_t *bytes = address->bytes;
	unsigned serial = bytes[4] | (unsigned)bytes[5] << 8 | (unsigned)bytes[6] << 16 | (unsigned)bytes[7] << 24;
	snprintf(text, 24, "%02x%02x%02x%02x.%u", bytes[8], bytes[9], bytes[10], bytes[11], serial);
}

/* The rails that have been used, with what has gone by each: bytes of messages and of remote accesses. */
static void print_rails(const struct pm_statistics *statistics)
{
	bool none = true;
	char cell[16];
	for (unsigned i = 0; i < PM_RAILS; i++) {
		const struct pm_rail_statistics *rail = &statistics->rails[i];
		if (!rail->messages && !rail->accesses)
			continue;
		printf("%s%s:%s", none ? " " : ",", rail_names[i], short_number(rail->message_bytes + rail->access_bytes, cell));
		none = false;
	}
	puts(none ? " -" : "");
}

static int print_row(const struct pm_survey_entry *entry, void *argument)
{
	int *printed = argument;
	const struct pm_statistics *statistics = &entry->statistics;
	char command[32], address[24], cell[16];
	const uint64_t cells[] = {
		statistics->messages_sent, statistics->message_bytes_sent,
		statistics->messages_received, statistics->message_bytes_received,
		statistics->writes, statistics->write_bytes, statistics->reads, statistics->read_bytes,
		statistics->direct_bytes, statistics->no_room, statistics->dropped, statistics->waits,
		statistics->links_out, statistics->links_in,
		statistics->pin_hits, statistics->pin_misses, statistics->pinned_bytes,
	};
	if ((*printed)++ == 0)
		printf("%7s %-15s %-16s %5s %5s %5s %5s %5s %5s %5s %5s %6s %7s %7s %5s %4s %4s %5s %5s %6s RAILS\n", "PID", "COMMAND", "ADDRESS",
			"SENT", "BYTES", "RECV", "BYTES", "WRITE", "BYTES", "READ", "BYTES", "DIRECT", "NO-ROOM", "DROPPED", "WAITS",
			"OUT", "IN", "HITS", "MISS", "PINNED");
	static const int widths[] = { 5, 5, 5, 5, 5, 5, 5, 5, 6, 7, 7, 5, 4, 4, 5, 5, 6 };
	command_of(entry->pid, command, sizeof command);
	short_address(&entry->address, address);
	printf("%7d %-15s %-16s", entry->pid, command, address);
	for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
		printf(" %*s", widths[i], short_number(cells[i], cell));
	print_rails(statistics);
	return 0;
}

static void print_once(const struct settings *settings)
{
	int printed = 0;
	if (settings->json)
		putchar('[');
	int result = pm_survey(settings->json ? print_json : print_row, &printed);
	if (settings->json)
		puts("]");
	else if (!printed && !result)
		puts("No process of this user has an endpoint here.");
	if (result < 0)
		fail(result, "look for endpoints");
	if (fflush(stdout))
		fail(errno, "standard output");
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct settings *settings = state->input;
	char *end;
	switch (key) {
	case OPTION_JSON:
		settings->json = true;
		return 0;
	case 'w':
		settings->watch = strtod(value, &end);
		if (end == value || *end || !(settings->watch >= 0.01 && settings->watch <= 1e6))
			argp_error(state, "--watch: \"%s\" is not a number of seconds from 0.01 to 1000000", value);
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "\"%s\": no arguments are taken", value);
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void print_version(FILE *stream, struct argp_state *state)
{
	(void)state;
	fprintf(stream, "pm-info %s\n", pm_version());
}

int main(int argc, char **argv)
{
	static const struct argp parser = {
		.options = options,
		.parser = parse,
		.doc = "List the PM endpoints of this user's processes on this machine, with what they have done so far.",
	};
	struct settings settings = { 0 };
	argp_program_version_hook = print_version;
	argp_err_exit_status = 2;
	argp_parse(&parser, argc, argv, 0, NULL, &settings);
	print_once(&settings);
	while (settings.watch > 0) {
		double whole, rest = modf(settings.watch, &whole);
		struct timespec pause = { (time_t)whole, (long)(rest * 1e9) };
		nanosleep(&pause, NULL);
		if (!settings.json)
			puts(isatty(STDOUT_FILENO) ? "\033[H\033[2J" : "");
		print_once(&settings);
	}
	return 0;
}
