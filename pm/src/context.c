/* context.c - a process's membership in a job: its id, its page, its keeper. */
#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ivshmem.h"
#include "udp.h"
#include "verbs.h"

#define LEAST_RING_BYTES 65536
#define MOST_RING_BYTES (1u << 30)
#define DEFAULT_RING_BYTES 262144
/* Without Watari to tell whether a peer lives: silence of so many seconds is taken for its end on the udp rail. */
#define DEFAULT_PATIENCE_S 600
#define MOST_PATIENCE_S 1000000000
#define ALL_RAILS ((1u << RAILS) - 1)

EXPORT const char *pm_version(void)
{
	return PM_VERSION;
}

/* $PM_RAILS, names with commas between them; by default shm, and the others where there is a key. */
static int set_rails(struct pm_context *context, bool have_key)
{
	const char *rails = getenv("PM_RAILS");
	unsigned set = rails ? 0 : have_key ? ALL_RAILS : 1u << RAIL_SHM;
	while (rails && *rails) {
		size_t length = strcspn(rails, ",");
		enum rail rail;
		if (rail_find(rails, length, &rail))
			return -EINVAL;
		set |= 1u << rail;
		rails += length + (rails[length] == ',');
	}
	atomic_store(&context->rails, set);
	/* By udp peers meet who use one of the others. */
	return set && (set == 1u << RAIL_SHM || set & 1u << RAIL_UDP) && !verbs_options_bad() ? 0 : -EINVAL;
}

static int set_options(struct pm_context *context, const struct pm_options *given)
{
	struct pm_options options = {0};
	if (given)
		memcpy(&options, given, given->size < sizeof(options) ? given->size : sizeof(options));
	const char *key = getenv("PM_JOB_KEY"), *ring = getenv("PM_RING_BYTES"), *direct = getenv("PM_CMA");
	const char *patience = getenv("PM_PATIENCE");
	if (options.job_key)
		memcpy(context->job_key, options.job_key, PM_JOB_KEY_SIZE);
	else if (key && hex_parse(key, context->job_key, PM_JOB_KEY_SIZE))
		return -EINVAL;
	size_t bytes = options.ring_bytes ? options.ring_bytes : DEFAULT_RING_BYTES;
	if (!options.ring_bytes && ring) {
		char *end;
		bytes = strtoul(ring, &end, 10);
		if (*end || end == ring)
			return -EINVAL;
	}
	if (bytes < LEAST_RING_BYTES || bytes > MOST_RING_BYTES || bytes & (bytes - 1))
		return -EINVAL;
	context->ring_bytes = bytes;
	if (udp_address_bad())
		return -EINVAL;
	context->direct = !options.no_direct && !(direct && !strcmp(direct, "0"));
	context->patience_s = DEFAULT_PATIENCE_S;
	if (patience) {
		char *end;
		context->patience_s = strtoul(patience, &end, 10);
		if (*end || end == patience || !context->patience_s || context->patience_s > MOST_PATIENCE_S)
			return -EINVAL;
	}
	/* On a machine the kernel says who somebody is. Beyond it only the key does, so without one nobody from there is
	 * talked to, unless that is asked for. */
	return set_rails(context, options.job_key || key);
}

static int make_page(struct pm_context *context)
{
	void *memory;
	ssize_t got = getrandom(context->id, sizeof(context->id), 0);
	if (got != sizeof(context->id))
		return got < 0 ? -errno : -EIO;
	context->page_fd = memory_make("pm-page", sizeof(struct shared_page), true, &memory);
	if (context->page_fd < 0)
		return context->page_fd;
	context->page = memory;
	context->page->version = SHARED_VERSION;
	context->page->pid = getpid();
	memcpy(context->page->id, context->id, sizeof(context->id));
	context->page->id_address = (uintptr_t)context->id;
	context->page->magic = SHARED_MAGIC;
	context->region_free = malloc(SHARED_REGIONS * sizeof(*context->region_free));
	context->regions = calloc(SHARED_REGIONS, sizeof(*context->regions));
	if (!context->region_free || !context->regions)
		return -ENOMEM;
	return 0;
}

static void context_free(struct pm_context *context)
{
	ivshmem_close(context);
	verbs_close(context);
	if (context->page)
		munmap(context->page, sizeof(struct shared_page));
	if (context->page_fd >= 0)
		close(context->page_fd);
	free(context->region_free);
	free(context->regions);
	free(context->links);
	pthread_mutex_destroy(&context->lock);
	free(context);
}

EXPORT int pm_context_open(const struct pm_options *options, struct pm_context **opened)
{
	struct pm_context *context = calloc(1, sizeof(*context));
	if (!context)
		return -ENOMEM;
	context->page_fd = -1;
	pthread_mutex_init(&context->lock, NULL);
	STAILQ_INIT(&context->connecting);
	LIST_INIT(&context->sockets);
	LIST_INIT(&context->closed_sockets);
	TAILQ_INIT(&context->orders);
	int error = set_options(context, options);
	if (!error)
		error = make_page(context);
	if (!error)
		error = ivshmem_from_environment(context);
	if (!error)
		error = udp_links_from_environment(context);
	if (!context->area)
		atomic_fetch_and(&context->rails, ~(1u << RAIL_IVSHMEM)); /* until it comes */
	if (!error) {
		/* A sleeper makes the senders' processors pass a barrier, so that they need none for each message. */
		context->fenced = !syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
		/* And the keeper those of this process (seize.c). */
		syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
		/* Where only a parent may look into a process (Yama), the user's other processes may look into this one. */
		if (context->direct)
			prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
		error = keeper_start(context);
	}
	if (error) {
		context_free(context);
		return error;
	}
	*opened = context;
	return 0;
}

EXPORT int pm_context_close(struct pm_context *context)
{
	for (int i = 0; i < SHARED_ENDPOINTS; i++)
		if (context->endpoints[i])
			pm_endpoint_close(context->endpoints[i]);
	keeper_stop(context);
	context_free(context);
	return 0;
}
