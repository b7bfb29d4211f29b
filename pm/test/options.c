/* options.c - what a context is told to do, by its caller or the environment, it does or refuses. */
#include <pm.h>
#include <stdbool.h>

#include "test.h"

static int opened(const struct pm_options *options)
{
	struct pm_context *context;
	int error = pm_context_open(options, &context);
	if (!error)
		CHECK_IS(pm_context_close(context), 0);
	return error;
}

static int with(const char *name, const char *value)
{
	CHECK(!setenv(name, value, 1));
	int error = opened(NULL);
	CHECK(!unsetenv(name));
	return error;
}

/* Whether an endpoint of that key can be reached from other machines: its address has a port then. */
static bool has_port(const uint8_t *key)
{
	struct pm_options options = {.size = sizeof(options), .job_key = key};
	struct pm_context *context;
	struct pm_endpoint *endpoint;
	struct pm_address address;
	CHECK_IS(pm_context_open(&options, &context), 0);
	CHECK_IS(pm_endpoint_open(context, &endpoint), 0);
	CHECK_IS(pm_endpoint_address(endpoint, &address), 0);
	CHECK_IS(pm_context_close(context), 0);
	return address.bytes[40] || address.bytes[41];
}

static void key_decides_on_udp(void)
{
	uint8_t key[PM_JOB_KEY_SIZE] = {1};
	CHECK(!setenv("PM_ADDRESS", "127.0.0.1", 1));
	CHECK(!has_port(NULL));
	CHECK(has_port(key));
	CHECK(!setenv("PM_RAILS", "shm", 1));
	CHECK(!has_port(key));
	CHECK(!setenv("PM_RAILS", "shm,udp", 1));
	CHECK(has_port(NULL));
	CHECK(!unsetenv("PM_RAILS") && !unsetenv("PM_ADDRESS"));
}

int main(void)
{
	static const char *const bad[][2] = {
		{"PM_JOB_KEY", "12"}, {"PM_JOB_KEY", "zz00000000000000000000000000000000000000000000000000000000000000"},
		{"PM_RING_BYTES", "100000"}, {"PM_RING_BYTES", "32768"}, {"PM_RING_BYTES", "x"}, {"PM_RING_BYTES", ""},
		{"PM_RAILS", ""}, {"PM_RAILS", "shm,ib"}, {"PM_RAILS", "shmudp"}, {"PM_ADDRESS", "here"}, {"PM_ADDRESS", ""},
		{"PM_PATIENCE", "0"}, {"PM_PATIENCE", "soon"}, {"PM_PATIENCE", "9999999999"},
	};
	unsetenv("PM_JOB_KEY");
	unsetenv("PM_RAILS");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int error = with(bad[i][0], bad[i][1]);
		if (error != -EINVAL)
			fprintf(stderr, "%s=%s: ", bad[i][0], bad[i][1]);
		CHECK_IS(error, -EINVAL);
	}
	CHECK_IS(with("PM_RAILS", "udp"), 0);
	CHECK_IS(with("PM_PATIENCE", "5"), 0);
	CHECK_IS(with("PM_RING_BYTES", "65536"), 0);
	CHECK_IS(opened(&(struct pm_options){.size = sizeof(struct pm_options), .ring_bytes = 1000}), -EINVAL);
	key_decides_on_udp();
	return 0;
}
