/* options.c - what a context is told to do, by its caller or the environment, it does or refuses. */
#include <pm.h>
#include <stdbool.h>
#include <sys/mman.h>

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

/* The memory that guests share, and which part of it is this one's. */
static void ivshmem(void)
{
	static const struct {
		const char *part;
		int error;
	} cases[] = {
		{"", 0}, {":0/1", 0}, {":1/2", 0}, {":5/6", 0},
		{":1/1", -EINVAL}, {":2/2", -EINVAL}, {":0/0", -EINVAL}, {":4294967296/4294967297", -EINVAL},
		{":99999999999999999999/99999999999999999999", -EINVAL},
		{":0/7", -ENOSPC}, {":0/4294967295", -ENOSPC}, {":0/4294967297", -ENOSPC}, /* too small for a ring */
		/* Of another form: a name that has a colon. */
		{":", -ENOENT}, {":1", -ENOENT}, {":0/", -ENOENT}, {":/2", -ENOENT}, {":0/2 ", -ENOENT}, {":0/2/3", -ENOENT},
		{":-1/2", -ENOENT}, {":0/-2", -ENOENT}, {":+1/2", -ENOENT}, {": 1/2", -ENOENT}, {":0/ 2", -ENOENT}, {":a/b", -ENOENT},
	};
	char value[100];
	int fd = memfd_create("ivshmem", 0);
	CHECK(fd >= 0 && !ftruncate(fd, 1000000));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		sprintf(value, "/proc/self/fd/%d%s", fd, cases[i].part);
		int error = with("PM_IVSHMEM", value);
		if (error != cases[i].error)
			fprintf(stderr, "PM_IVSHMEM=%s: ", value);
		CHECK_IS(error, cases[i].error);
	}
	close(fd);
	CHECK_IS(with("PM_IVSHMEM", value), -ENOENT);
	CHECK_IS(with("PM_IVSHMEM", ""), -ENOENT);
	CHECK_IS(with("PM_IVSHMEM", "/"), -EISDIR);
	CHECK_IS(with("PM_IVSHMEM", "/dev/null"), -ENOSPC);
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
	ivshmem();
	return 0;
}
