/* survey.c - processes that are stopped are left out, and all of them together are waited for once. */
#include <pm.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "test.h"

#define STOPPED 20
#define MOST_SECONDS 10 /* it takes one, and twenty if each were waited for by itself */

static pid_t children[STOPPED + 1];

static void child(int told)
{
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK_IS(pm_context_open(NULL, &context), 0);
	CHECK_IS(pm_endpoint_open(context, &endpoint), 0);
	CHECK_IS(write(told, "x", 1), 1);
	for (;;)
		pause();
}

static int look(const struct pm_survey_entry *entry, void *argument)
{
	int *found = argument;
	for (int i = 0; i <= STOPPED; i++)
		if (entry->pid == children[i])
			found[i]++;
	return 0;
}

static int stop_at_first(const struct pm_survey_entry *entry, void *argument)
{
	(void)entry;
	(void)argument;
	return 4711;
}

int main(void)
{
	int ready[2], found[STOPPED + 1] = {0};
	char byte;
	alarm(90);
	CHECK(!pipe(ready));
	for (int i = 0; i <= STOPPED; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (!children[i])
			child(ready[1]);
	}
	for (int i = 0; i <= STOPPED; i++)
		CHECK_IS(read(ready[0], &byte, 1), 1);
	CHECK_IS(pm_survey(look, found), 0);
	for (int i = 0; i <= STOPPED; i++)
		CHECK_IS(found[i], 1);
	for (int i = 0; i < STOPPED; i++)
		CHECK(!kill(children[i], SIGSTOP));
	double began = seconds();
	CHECK_IS(pm_survey(look, found), 0);
	CHECK(seconds() - began < MOST_SECONDS);
	CHECK_IS(found[STOPPED], 2);
	CHECK_IS(pm_survey(stop_at_first, NULL), 4711);
	for (int i = 0; i <= STOPPED; i++) {
		CHECK(!kill(children[i], SIGKILL));
		CHECK_IS(waitpid(children[i], NULL, 0), children[i]);
	}
	return 0;
}
