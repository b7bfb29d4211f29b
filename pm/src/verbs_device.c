/* verbs_device.c - the device of the verbs rail: which one it is, and memory that is registered with it. */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "udp.h"
#include "verbs_ring.h"

/* GIDs of a port that are looked at. */
#define MOST_GIDS 256

struct verbs_library verbs_library;

static const struct {
	const char *name;
	size_t at;
} symbols[] = {
	{"ibv_get_device_list", offsetof(struct verbs_library, get_device_list)},
	{"ibv_free_device_list", offsetof(struct verbs_library, free_device_list)},
	{"ibv_get_device_name", offsetof(struct verbs_library, get_device_name)},
	{"ibv_open_device", offsetof(struct verbs_library, open_device)},
	{"ibv_close_device", offsetof(struct verbs_library, close_device)},
	{"ibv_query_port", offsetof(struct verbs_library, query_port)},
	{"_ibv_query_gid_ex", offsetof(struct verbs_library, query_gid_ex)},
	{"ibv_alloc_pd", offsetof(struct verbs_library, alloc_pd)},
	{"ibv_dealloc_pd", offsetof(struct verbs_library, dealloc_pd)},
	{"ibv_reg_mr", offsetof(struct verbs_library, reg_mr)},
	{"ibv_dereg_mr", offsetof(struct verbs_library, dereg_mr)},
	{"ibv_create_comp_channel", offsetof(struct verbs_library, create_comp_channel)},
	{"ibv_destroy_comp_channel", offsetof(struct verbs_library, destroy_comp_channel)},
	{"ibv_create_cq", offsetof(struct verbs_library, create_cq)},
	{"ibv_destroy_cq", offsetof(struct verbs_library, destroy_cq)},
	{"ibv_get_cq_event", offsetof(struct verbs_library, get_cq_event)},
	{"ibv_ack_cq_events", offsetof(struct verbs_library, ack_cq_events)},
	{"ibv_create_srq", offsetof(struct verbs_library, create_srq)},
	{"ibv_destroy_srq", offsetof(struct verbs_library, destroy_srq)},
	{"ibv_create_qp", offsetof(struct verbs_library, create_qp)},
	{"ibv_modify_qp", offsetof(struct verbs_library, modify_qp)},
	{"ibv_destroy_qp", offsetof(struct verbs_library, destroy_qp)},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool loaded;

/* Loads the library; it stays. Where it is not, or is too old, there are no devices. */
static void load_library(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE), *symbol;
	if (!library)
		return;
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		if (!(symbol = dlsym(library, symbols[i].name)))
			return;
		memcpy((uint8_t *)&verbs_library + symbols[i].at, &symbol, sizeof(symbol));
	}
	loaded = true;
}

/* $PM_VERBS: the device, a colon and its port, a colon and the GID's index; what is left out is looked for. */
struct choice {
	char device[64];
	int port, gid;
};

static bool read_choice(struct choice *choice)
{
	const char *given = getenv("PM_VERBS");
	int end = 0;
	*choice = (struct choice){.port = 0, .gid = -1};
	if (!given || !*given)
		return true;
	if (sscanf(given, "%63[^:]%n:%d%n:%d%n", choice->device, &end, &choice->port, &end, &choice->gid, &end) < 1 || given[end])
		return false;
	return choice->port >= 0 && choice->port <= UINT8_MAX && choice->gid >= -1 && choice->gid < MOST_GIDS;
}

bool verbs_options_bad(void)
{
	struct choice choice;
	size_t bytes;
	return !read_choice(&choice) || pin_default_bytes(&bytes);
}

/* Whether a GID is that of this IPv4 or IPv6 address. */
static bool gid_is(const union ibv_gid *gid, const struct sockaddr_storage *address)
{
	struct in6_addr mapped = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
	if (address->ss_family == AF_INET6)
		mapped = ((const struct sockaddr_in6 *)address)->sin6_addr;
	else
		memcpy(mapped.s6_addr + 12, &((const struct sockaddr_in *)address)->sin_addr, 4);
	return !memcmp(gid->raw, &mapped, sizeof(gid->raw));
}

/* How well a GID fits: on Ethernet one of RoCE version 2 is wanted, which routers know, best that of the address by which
 * peers meet. */
static int fitness(const struct ibv_gid_entry *entry, bool ethernet, const struct sockaddr_storage *own)
{
	if (!ethernet)
		return entry->gid_index == 0 ? 4 : 1;
	if (entry->gid_type != IBV_GID_TYPE_ROCE_V2)
		return 1;
	if (own && gid_is(&entry->gid, own))
		return 4;
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)entry->gid.raw) ? 3 : 2;
}

static bool find_gid(const struct pm_context *context, struct verbs *verbs, int wanted)
{
	struct sockaddr_storage own;
	socklen_t length;
	bool known = !udp_address_own(context, &own, &length), ethernet = verbs->port_found.link_layer == IBV_LINK_LAYER_ETHERNET;
	int best = 0;
	for (int i = 0; i < verbs->port_found.gid_tbl_len && i < MOST_GIDS; i++) {
		struct ibv_gid_entry entry;
		if ((wanted >= 0 && i != wanted) || verbs_library.query_gid_ex(verbs->device, verbs->port, i, &entry, 0, sizeof(entry)))
			continue;
		int fits = fitness(&entry, ethernet, known ? &own : NULL);
		if (fits <= best)
			continue;
		best = fits;
		verbs->gid = entry.gid;
		verbs->gid_index = i;
	}
	return best > 0;
}

/* The first port that is up, or the one that is wanted if it is. */
static bool find_port(const struct pm_context *context, struct verbs *verbs, const struct choice *choice)
{
	/* Ports are numbered from 1, and a query of the one after the last fails. */
	for (unsigned port = choice->port ? choice->port : 1; port <= UINT8_MAX; port++) {
		memset(&verbs->port_found, 0, sizeof(verbs->port_found));
		if (verbs_library.query_port(verbs->device, port, &verbs->port_found))
			return false;
		verbs->port = port;
		if (verbs->port_found.state == IBV_PORT_ACTIVE && find_gid(context, verbs, choice->gid))
			return true;
		if (choice->port)
			return false;
	}
	return false;
}

static bool open_device(const struct pm_context *context, struct verbs *verbs, struct ibv_device *device, const struct choice *choice)
{
	if (choice->device[0] && strcmp(choice->device, verbs_library.get_device_name(device)))
		return false;
	verbs->device = verbs_library.open_device(device);
	if (!verbs->device)
		return false;
	if (find_port(context, verbs, choice) && (verbs->pd = verbs_library.alloc_pd(verbs->device)))
		return true;
	verbs_library.close_device(verbs->device);
	return false;
}

static int pin(struct pin_device *device, void *base, size_t length, bool writable, void **handle)
{
	struct verbs *verbs = (struct verbs *)device;
	*handle = verbs_library.reg_mr(verbs->pd, base, length, writable ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0);
	return *handle ? 0 : -errno;
}

static void unpin(struct pin_device *device, void *handle)
{
	(void)device;
	verbs_library.dereg_mr(handle);
}

static struct verbs *open_any(const struct pm_context *context)
{
	struct choice choice;
	int count = 0;
	bool found = false;
	struct verbs *verbs = calloc(1, sizeof(*verbs));
	struct ibv_device **list = verbs && read_choice(&choice) ? verbs_library.get_device_list(&count) : NULL;
	for (int i = 0; list && i < count && !found; i++)
		found = open_device(context, verbs, list[i], &choice);
	if (list)
		verbs_library.free_device_list(list);
	if (found) {
		size_t bytes;
		verbs->pins_of = (struct pin_device){.pin = pin, .unpin = unpin};
		uint32_t most = verbs->port_found.max_msg_sz;
		verbs->piece = most && most < VERBS_PIECE ? most : VERBS_PIECE;
		if (!pin_open(&verbs->pins_of, 0, &verbs->regions)) {
			if (!pin_default_bytes(&bytes) && !pin_open(&verbs->pins_of, bytes, &verbs->pins))
				return verbs;
			pin_close(verbs->regions);
		}
		verbs_library.dealloc_pd(verbs->pd);
		verbs_library.close_device(verbs->device);
	}
	free(verbs);
	return NULL;
}

/* Whether there is a device; if not, the rail is not used until somebody orders that it be joined. */
bool verbs_usable(struct pm_context *context)
{
	pthread_once(&once, load_library);
	pthread_mutex_lock(&context->lock);
	if (!context->verbs && loaded)
		context->verbs = open_any(context);
	bool usable = context->verbs;
	if (!usable)
		atomic_fetch_and(&context->rails, ~(1u << RAIL_VERBS));
	pthread_mutex_unlock(&context->lock);
	return usable;
}

/* Takes the memory of a region, if it was registered, away from peers; under the context's lock. */
void verbs_region_gone(struct pm_region *region)
{
	struct pm_context *context = region->context;
	if (!region->pin)
		return;
	pin_put(context->verbs->regions, region->pin);
	region->pin = NULL;
}

/* Gives the device back, when nothing of it is in use any more; under the lock. */
void verbs_close(struct pm_context *context)
{
	struct verbs *verbs = context->verbs;
	if (!verbs)
		return;
	for (uint32_t i = 0; i < context->region_count; i++)
		verbs_region_gone(&context->regions[i]);
	context->verbs = NULL;
	pin_close(verbs->pins);
	pin_close(verbs->regions);
	verbs_library.dealloc_pd(verbs->pd);
	verbs_library.close_device(verbs->device);
	free(verbs);
}

/* Memory of this process, registered; NULL: that cannot be. */
struct pin *verbs_pin(struct pm_endpoint *endpoint, const void *base, size_t length, bool writable)
{
	struct pin *pin;
	bool hit;
	if (pin_get(endpoint->verbs->verbs->pins, base, length, writable, &pin, &hit))
		return NULL;
	count(hit ? &endpoint->statistics->pin_hits : &endpoint->statistics->pin_misses, 1);
	__atomic_store_n(&endpoint->statistics->pinned_bytes, pin_kept_bytes(endpoint->verbs->verbs->pins), __ATOMIC_RELAXED);
	return pin;
}

void verbs_unpin(struct pm_endpoint *endpoint, struct pin *pin)
{
	if (pin)
		pin_put(endpoint->verbs->verbs->pins, pin);
}
