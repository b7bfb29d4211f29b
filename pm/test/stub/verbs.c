/* verbs.c - the stub's device, contexts, protection domains, memory regions and channels. */
#include "stub.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <signal.h>
#include <stdarg.h>

static struct ibv_device the_device = {
	.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "stub0", .dev_name = "stub0"};

/* All that can be destroyed and has not been. The lock is taken with no other held. */
static LIST_HEAD(, object) objects = LIST_HEAD_INITIALIZER(objects);
static LIST_HEAD(, stub_context) contexts = LIST_HEAD_INITIALIZER(contexts);
static pthread_mutex_t objects_lock = PTHREAD_MUTEX_INITIALIZER;

void die(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "stub verbs: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
	abort();
}

void object_add(struct object *object)
{
	pthread_mutex_lock(&objects_lock);
	LIST_INSERT_HEAD(&objects, object, link);
	pthread_mutex_unlock(&objects_lock);
}

/* Takes an object that is to be destroyed out of the list: EBUSY while others need it. One that isn't in the list is
 * not looked into, for its memory may be another's. */
int object_remove(struct object *object, const char *name)
{
	struct object *found;
	pthread_mutex_lock(&objects_lock);
	LIST_FOREACH(found, &objects, link)
		if (found == object)
			break;
	if (!found)
		die("a %s is destroyed twice, or was none", name);
	int error = object->users ? EBUSY : 0;
	if (!error)
		LIST_REMOVE(object, link);
	pthread_mutex_unlock(&objects_lock);
	return error;
}

void object_use(struct object *object, int change)
{
	pthread_mutex_lock(&objects_lock);
	object->users += change;
	pthread_mutex_unlock(&objects_lock);
}

uint64_t random_number(struct stub_context *context)
{
	context->random ^= context->random >> 12;
	context->random ^= context->random << 25;
	context->random ^= context->random >> 27;
	return context->random * 2685821657736338717ull >> 16;
}

/* A forked child has none of the threads, and must not keep the connections of its parent open. */
static void before_fork(void)
{
	struct stub_context *context;
	pthread_mutex_lock(&objects_lock);
	LIST_FOREACH(context, &contexts, link)
		pthread_mutex_lock(&context->lock);
}

static void after_fork(void)
{
	struct stub_context *context;
	LIST_FOREACH(context, &contexts, link)
		pthread_mutex_unlock(&context->lock);
	pthread_mutex_unlock(&objects_lock);
}

static void after_fork_in_child(void)
{
	struct stub_context *context;
	LIST_FOREACH(context, &contexts, link)
		close_wire(context);
	after_fork();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof *list);
	bool none = getenv("STUB_VERBS_NONE");
	if (list && !none)
		list[0] = &the_device;
	if (count)
		*count = list && !none;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

static int fill_port(struct ibv_context *ibv, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	(void)ibv;
	if (port != 1)
		return EINVAL;
	struct ibv_port_attr filled = {
		.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_1024, .gid_tbl_len = GID_TABLE,
		.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS, .max_msg_sz = MAX_MESSAGE, .pkey_tbl_len = 1,
		.max_vl_num = 1, .active_width = 1, .active_speed = 1, .phys_state = 5, .link_layer = IBV_LINK_LAYER_ETHERNET};
	memcpy(attr, &filled, size < sizeof filled ? size : sizeof filled);
	return 0;
}

static unsigned number_of(const char *name)
{
	const char *value = getenv(name);
	return value ? (unsigned)strtoul(value, NULL, 0) : 0;
}

/* GID 0 is of the link, GID 1 of the address. */
static void fill_gids(struct stub_context *context)
{
	const char *address = getenv("STUB_VERBS_ADDRESS");
	uint8_t *link = context->gids[0].raw, *mapped = context->gids[1].raw;
	link[0] = 0xfe;
	link[1] = 0x80;
	link[15] = 1;
	memset(mapped + 10, 0xff, 2);
	if (inet_pton(AF_INET, address ? address : "127.0.0.1", mapped + 12) != 1)
		die("STUB_VERBS_ADDRESS is no IPv4 address: %s", address);
}

/* The thread of a device runs no signal handlers. */
static int start_thread(struct stub_context *context)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&context->thread, NULL, device_thread, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct stub_context *context = calloc(1, sizeof *context);
	if (!context)
		return NULL;
	pthread_mutex_init(&context->lock, NULL);
	context->owner = getpid();
	context->delay_us = number_of("STUB_VERBS_DELAY_US");
	context->break_one_in = number_of("STUB_VERBS_BREAK");
	fill_gids(context);
	if (open_slot(context) < 0) {
		free(context);
		return NULL;
	}
	context->random = (number_of("STUB_VERBS_SEED") * 0x9e3779b97f4a7c15ull ^ (uint64_t)context->slot) | 1ull << 63;
	struct ibv_context *ibv = &context->verbs.context;
	context->verbs.sz = sizeof context->verbs;
	context->verbs.query_port = fill_port;
	*ibv = (struct ibv_context){.device = device, .cmd_fd = -1, .async_fd = -1, .num_comp_vectors = 1,
		.abi_compat = __VERBS_ABI_IS_EXTENDED};
	ibv->ops.poll_cq = poll_cq;
	ibv->ops.req_notify_cq = req_notify_cq;
	ibv->ops.post_send = post_send;
	ibv->ops.post_recv = post_recv;
	ibv->ops.post_srq_recv = post_srq_recv;
	if ((errno = start_thread(context))) {
		close_wire(context);
		free(context);
		return NULL;
	}
	object_add(&context->object);
	pthread_mutex_lock(&objects_lock);
	LIST_INSERT_HEAD(&contexts, context, link);
	pthread_mutex_unlock(&objects_lock);
	return ibv;
}

int ibv_close_device(struct ibv_context *ibv)
{
	struct stub_context *context = stub_context(ibv);
	if (object_remove(&context->object, "context"))
		die("a context is closed that has objects");
	pthread_mutex_lock(&objects_lock);
	LIST_REMOVE(context, link);
	pthread_mutex_unlock(&objects_lock);
	if (context->owner == getpid()) {
		pthread_mutex_lock(&context->lock);
		context->stopping = true;
		wake(context);
		pthread_mutex_unlock(&context->lock);
		pthread_join(context->thread, NULL);
		close_wire(context);
	}
	pthread_mutex_destroy(&context->lock);
	free(context);
	return 0;
}

int ibv_query_device(struct ibv_context *ibv, struct ibv_device_attr *attr)
{
	(void)ibv;
	*attr = (struct ibv_device_attr){
		.max_mr_size = UINT64_MAX, .page_size_cap = 0xfffff000, .max_qp = QPS - 1, .max_qp_wr = MAX_WR,
		.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN, .max_sge = MAX_SGE, .max_sge_rd = MAX_SGE, .max_cq = QPS,
		.max_cqe = MAX_CQE, .max_mr = MRS - 1, .max_pd = QPS, .max_qp_rd_atom = MAX_RD_ATOMIC,
		.max_res_rd_atom = MAX_RD_ATOMIC * QPS, .max_qp_init_rd_atom = MAX_RD_ATOMIC, .max_srq = QPS, .max_srq_wr = MAX_WR,
		.max_srq_sge = MAX_SGE, .max_pkeys = 1, .phys_port_cnt = 1};
	return 0;
}

/* The symbol; what the macro of this name calls is in the context. It knows the fields up to the flags. */
int ibv_query_port(struct ibv_context *ibv, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	return fill_port(ibv, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_gid(struct ibv_context *ibv, uint8_t port, int index, union ibv_gid *gid)
{
	if (port != 1 || index < 0 || index >= GID_TABLE) {
		errno = EINVAL;
		return -1;
	}
	memset(gid, 0, sizeof *gid);
	if (index < GIDS)
		*gid = stub_context(ibv)->gids[index];
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *ibv, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,
		      size_t size)
{
	if (port != 1 || index >= GID_TABLE || flags)
		return EINVAL;
	if (index >= GIDS)
		return ENODATA;
	struct ibv_gid_entry filled = {.gid = stub_context(ibv)->gids[index], .gid_index = index, .port_num = port,
		.gid_type = index ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1, .ndev_ifindex = if_nametoindex("lo")};
	memcpy(entry, &filled, size < sizeof filled ? size : sizeof filled);
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ibv)
{
	struct stub_pd *pd = calloc(1, sizeof *pd);
	if (!pd)
		return NULL;
	pd->ibv.context = ibv;
	object_add(&pd->object);
	object_use(&stub_context(ibv)->object, 1);
	return &pd->ibv;
}

int ibv_dealloc_pd(struct ibv_pd *ibv)
{
	struct stub_pd *pd = (struct stub_pd *)ibv;
	int error = object_remove(&pd->object, "protection domain");
	if (error)
		return error;
	object_use(&stub_context(ibv->context)->object, -1);
	free(pd);
	return 0;
}

/* The region of a key if an access to so many bytes of it is allowed. */
struct stub_mr *find_mr(struct stub_context *context, struct ibv_pd *pd, uint32_t key, uint64_t address, uint64_t length,
			int access)
{
	struct stub_mr *mr = key >> 8 < MRS ? context->mrs[key >> 8] : NULL;
	if (!mr || mr->ibv.lkey != key || mr->ibv.pd != pd || (mr->access & access) != access)
		return NULL;
	uint64_t start = (uintptr_t)mr->ibv.addr;
	if (address < start || length > mr->ibv.length || address - start > mr->ibv.length - length)
		return NULL;
	return mr;
}

/* Numbers go round, so that a key that is no longer valid is seldom another's. */
static bool place_mr(struct stub_context *context, struct stub_mr *mr)
{
	for (unsigned tries = 1; tries < MRS; tries++) {
		context->last_mr = context->last_mr % (MRS - 1) + 1;
		if (!context->mrs[context->last_mr]) {
			context->mrs[context->last_mr] = mr;
			mr->ibv.lkey = mr->ibv.rkey = context->last_mr << 8 | (random_number(context) & 0xff);
			return true;
		}
	}
	return false;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	struct stub_context *context = stub_context(pd->context);
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
		errno = EINVAL;
		return NULL;
	}
	struct stub_mr *mr = calloc(1, sizeof *mr);
	if (!mr)
		return NULL;
	mr->ibv = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length};
	mr->access = access;
	pthread_mutex_lock(&context->lock);
	bool placed = place_mr(context, mr);
	pthread_mutex_unlock(&context->lock);
	if (!placed) {
		free(mr);
		errno = ENOMEM;
		return NULL;
	}
	object_add(&mr->object);
	object_use(&((struct stub_pd *)pd)->object, 1);
	return &mr->ibv;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned int access)
{
	if (iova != (uintptr_t)address) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return ibv_reg_mr(pd, address, length, (int)(access & ~IBV_ACCESS_OPTIONAL_RANGE));
}

int ibv_dereg_mr(struct ibv_mr *ibv)
{
	struct stub_mr *mr = (struct stub_mr *)ibv;
	object_remove(&mr->object, "memory region");
	struct stub_context *context = stub_context(ibv->context);
	pthread_mutex_lock(&context->lock);
	context->mrs[ibv->lkey >> 8] = NULL;
	pthread_mutex_unlock(&context->lock);
	object_use(&((struct stub_pd *)ibv->pd)->object, -1);
	free(mr);
	return 0;
}
