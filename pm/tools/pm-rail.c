/*
 * pm-rail.c - tells running processes to leave or join a rail, or puts their endpoints aside and takes them up again;
 * pm-rail(1).
 */
#include <pm.h>

#include <argp.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTION_JSON = 256,
	OPTION_ALL,
};

static const struct argp_option options[] = {
	{ "pid", 'p', "PID", 0, "this process; may be given several times", 0 },
	{ "all", OPTION_ALL, NULL, 0, "all processes of this user, or for root of all users", 0 },
	{ "memory", 'm', "PATH[:PART/PARTS]", 0, "join ivshmem with this memory, of which that part is this guest's", 0 },
	{ "timeout", 't', "SECONDS", 0, "how long to wait for each answer (10)", 0 },
	{ "json", OPTION_JSON, NULL, 0, "print one line of JSON: what became of each order", 0 },
	{ 0 },
};

static const struct verb {
	const char *name, *argument; /* what it takes, or NULL */
	bool each_endpoint;          /* not each process */
} verbs[] = {
	{ "leave", "RAIL", false },
	{ "join", "RAIL", false },
	{ "save", NULL, true },
	{ "restore", NULL, true },
	{ "gone", "ADDRESS", false },
};

enum { LEAVE, JOIN, SAVE, RESTORE, GONE, VERBS };

struct target {
	int pid;
	struct pm_address address;
};

struct settings {
	const struct verb *verb;
	const char *argument;
	const char *memory;          /* of join, or NULL */
	struct pm_address gone;
	bool json, all;
	double timeout; /* seconds */
	int *pids;
	size_t pid_count;
	struct target *targets;
	size_t target_count;
};

static _Noreturn void fail(int of_errno, const char *what)
{
	fprintf(stderr, "pm-rail: %s: %s\n", what, strerror(abs(of_errno)));
	exit(1);
}

/* Room for one more of what an array has. */
static void *grown(void *array, size_t count, size_t size)
{
	void *more = reallocarray(array, count + 1, size);
	if (!more)
		fail(ENOMEM, "remember processes");
	return more;
}

static bool is_wanted(const struct settings *settings, int pid)
{
	for (size_t i = 0; i < settings->pid_count; i++)
		if (settings->pids[i] == pid)
			return true;
	return settings->all;
}

/* Octets 8 to 23 of an address are the context's: it takes one order for all of its endpoints. */
static bool same_context(const struct pm_address *one, const struct pm_address *other)
{
	return !memcmp(one->bytes + 8, other->bytes + 8, 16);
}

static int take_target(const struct pm_survey_entry *entry, void *argument)
{
	struct settings *settings = argument;
	if (!is_wanted(settings, entry->pid))
		return 0;
	for (size_t i = 0; i < settings->target_count && !settings->verb->each_endpoint; i++)
		if (same_context(&settings->targets[i].address, &entry->address))
			return 0;
	settings->targets = grown(settings->targets, settings->target_count, sizeof *settings->targets);
	settings->targets[settings->target_count++] = (struct target){ entry->pid, entry->address };
	return 0;
}

/* Why, and what to do. */
static const char *reason(const struct settings *settings, int error)
{
	switch (-error) {
	case ETIMEDOUT:
		return "not yet: it is stopped, or in one long call, or holds a message or a reservation, or a peer is without udp; "
		       "the order holds and is carried out when that ends; wait longer with --timeout";
	case EOPNOTSUPP:
		return "it has no other rail to go on by; start the job with PM_JOB_KEY set (and udp in PM_RAILS, if that is set)";
	case EINVAL:
		return settings->verb == &verbs[GONE] ? "that is no address of an endpoint"
						      : "that is no rail that can be left and joined, or no part of that memory; shm, ivshmem and verbs can";
	case EBUSY:
		return "it has such memory already; it has to leave the rail first";
	case ENODEV:
		return "it has no such memory; name it by --memory";
	case ENOSPC:
		return "the part of the memory is too small for a ring";
	case ENOENT:
		return "the endpoint has been closed meanwhile; nothing is to be done";
	case EHOSTUNREACH:
	case EHOSTDOWN:
	case ESHUTDOWN:
		return "the process has ended meanwhile, or closed its context; nothing is to be done";
	case EPERM:
		return "it belongs to another user; only root may give it orders";
	case EAGAIN:
		return "it has too many connections to answer just now; try again";
	case EPROTO:
		return "it uses another version of the library; use the pm-rail of that one";
	default:
		return strerror(-error);
	}
}

static int give(const struct settings *settings, const struct pm_address *to)
{
	int ms = (int)(settings->timeout * 1000);
	switch (settings->verb - verbs) {
	case LEAVE:
		return pm_order_leave(to, settings->argument, ms);
	case JOIN:
		return settings->memory ? pm_order_join_memory(to, settings->memory, ms) : pm_order_join(to, settings->argument, ms);
	case SAVE:
		return pm_order_save(to, ms);
	case RESTORE:
		return pm_order_restore(to, ms);
	default:
		return pm_order_gone(to, &settings->gone, ms);
	}
}

/* Who has ended has nothing left to be told, unless it was asked for by name. */
static bool does_not_matter(const struct settings *settings, int error)
{
	return settings->all && (error == -EHOSTUNREACH || error == -EHOSTDOWN || error == -ESHUTDOWN || error == -ENOENT);
}

static void print_json(const struct settings *settings, const struct target *target, int error, bool first)
{
	char text[PM_ADDRESS_TEXT];
	pm_address_format(&target->address, text);
	printf("%s{\"pid\":%d,\"address\":\"%s\",\"status\":%d", first ? "" : ",", target->pid, text, error);
	if (error)
		printf(",\"reason\":\"%s\"", reason(settings, error));
	putchar('}');
}

/* The exit status. */
static int give_all(const struct settings *settings)
{
	int status = 0;
	if (settings->json)
		putchar('[');
	for (size_t i = 0; i < settings->target_count; i++) {
		const struct target *target = &settings->targets[i];
		int error = give(settings, &target->address);
		bool bad = error && !does_not_matter(settings, error);
		status |= bad;
		if (settings->json)
			print_json(settings, target, error, i == 0);
		if (bad)
			fprintf(stderr, "pm-rail: %s%s%s: process %d: %s\n", settings->verb->name, settings->verb->argument ? " " : "",
				settings->verb->argument ? settings->argument : "", target->pid, reason(settings, error));
	}
	if (settings->json)
		puts("]");
	return status;
}

/* Whether all processes that were named have been found. */
static bool all_found(const struct settings *settings)
{
	bool all = true;
	for (size_t i = 0; i < settings->pid_count; i++) {
		bool found = false;
		for (size_t j = 0; j < settings->target_count; j++)
			found |= settings->targets[j].pid == settings->pids[i];
		if (!found)
			fprintf(stderr, "pm-rail: process %d: no endpoint of it is found here: it does not run or does not use PM, is stopped, is "
				"another user's, or is in another network namespace; pm-info lists those that are found\n", settings->pids[i]);
		all &= found;
	}
	return all;
}

static void set_argument(struct settings *settings, const char *value, struct argp_state *state)
{
	for (size_t i = 0; i < VERBS && !settings->verb; i++)
		if (!strcmp(value, verbs[i].name))
			settings->verb = &verbs[i];
	if (!settings->verb)
		argp_error(state, "\"%s\": what is wanted is leave, join, save, restore or gone", value);
	else if (state->arg_num == 1 && settings->verb->argument)
		settings->argument = value;
	else if (state->arg_num)
		argp_error(state, "\"%s\": %s takes %s", value, settings->verb->name, settings->verb->argument ? "one argument" : "no argument");
}

static void check(struct settings *settings, struct argp_state *state)
{
	if (!settings->verb)
		argp_error(state, "say what is wanted: leave, join, save, restore or gone");
	else if (settings->verb->argument && !settings->argument)
		argp_error(state, "%s: %s is missing", settings->verb->name, settings->verb->argument);
	else if (settings->verb == &verbs[GONE] && pm_address_parse(settings->argument, &settings->gone))
		argp_error(state, "gone: \"%s\" is no address, which is %zu hexadecimal digits", settings->argument, PM_ADDRESS_TEXT - 1);
	else if (settings->memory && (settings->verb != &verbs[JOIN] || strcmp(settings->argument, "ivshmem")))
		argp_error(state, "--memory: that goes with join ivshmem");
	else if (settings->all == (settings->pid_count > 0))
		argp_error(state, "say which processes: --pid or --all");
}

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct settings *settings = state->input;
	char *end;
	switch (key) {
	case OPTION_JSON:
		settings->json = true;
		return 0;
	case OPTION_ALL:
		settings->all = true;
		return 0;
	case 'p':
		settings->pids = grown(settings->pids, settings->pid_count, sizeof *settings->pids);
		settings->pids[settings->pid_count++] = (int)strtol(value, &end, 10);
		if (end == value || *end || settings->pids[settings->pid_count - 1] <= 0)
			argp_error(state, "--pid: \"%s\" is no number of a process", value);
		return 0;
	case 'm':
		settings->memory = value;
		return 0;
	case 't':
		settings->timeout = strtod(value, &end);
		if (end == value || *end || !(settings->timeout >= 0.001 && settings->timeout <= 1e6))
			argp_error(state, "--timeout: \"%s\" is not a number of seconds from 0.001 to 1000000", value);
		return 0;
	case ARGP_KEY_ARG:
		set_argument(settings, value, state);
		return 0;
	case ARGP_KEY_END:
		check(settings, state);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void print_version(FILE *stream, struct argp_state *state)
{
	(void)state;
	fprintf(stream, "pm-rail %s\n", pm_version());
}

int main(int argc, char **argv)
{
	static const struct argp parser = {
		.options = options,
		.parser = parse,
		.args_doc = "leave RAIL\njoin RAIL\nsave\nrestore\ngone ADDRESS",
		.doc = "Tell running processes of PM to leave or join a rail, to put their endpoints aside (save) or take them up again "
		       "(restore), or that an endpoint is gone.",
	};
	struct settings settings = { .timeout = 10 };
	argp_program_version_hook = print_version;
	argp_err_exit_status = 2;
	argp_parse(&parser, argc, argv, 0, NULL, &settings);
	int result = pm_survey(take_target, &settings);
	if (result < 0)
		fail(result, "look for endpoints");
	bool found = all_found(&settings);
	int status = give_all(&settings) || !found;
	if (fflush(stdout))
		fail(errno, "standard output");
	free(settings.pids);
	free(settings.targets);
	return status;
}
