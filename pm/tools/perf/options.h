/* options.h - what the command line asked for. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "perf.h"

enum role {
	ROLE_PAIR,
	ROLE_SERVER,
	ROLE_CLIENT,
};

struct invocation {
	struct settings settings;
	enum role role;
	struct pm_address server; /* of a client */
};

/* Ends the program where the command line is wrong, or asked for help only. */
void parse_options(int argc, char **argv, struct invocation *invocation);

#endif
