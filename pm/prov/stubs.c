/*
 * stubs.c - members of operation tables that nothing is done for. libfabric's wrappers call most members without a
 * look at them, so that none may be missing.
 */
#include "prov.h"

int prov_no_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)other, (void)flags;
	return -FI_ENOSYS;
}

int prov_no_control(struct fid *fid, int command, void *argument)
{
	(void)fid, (void)command, (void)argument;
	return -FI_ENOSYS;
}

int prov_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
	(void)fid, (void)name, (void)flags, (void)ops, (void)context;
	return -FI_ENOSYS;
}

int prov_no_tostr(const struct fid *fid, char *text, size_t length)
{
	(void)fid, (void)text, (void)length;
	return -FI_ENOSYS;
}

int prov_no_ops_set(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context)
{
	(void)fid, (void)name, (void)flags, (void)ops, (void)context;
	return -FI_ENOSYS;
}

/* The members below differ in their arguments, which none of them looks at; on the machines at hand the caller clears
 * what it passed. One function of the same form as the member stands for each. */
#define NOTHING { return -FI_ENOSYS; }
#define UNUSED __attribute__((unused))
#define KIND enum fi_datatype datatype UNUSED, enum fi_op op UNUSED
#define RESULTS struct fi_ioc *results UNUSED, void **result_descriptors UNUSED, size_t result_count UNUSED
#define ENDPOINT struct fid_ep *ep UNUSED
#define BUFFER const void *buffer UNUSED, size_t count UNUSED, void *descriptor UNUSED
#define CONTEXT void *context UNUSED

#define GROUP fi_addr_t group UNUSED
#define RESULT void *result UNUSED, void *result_descriptor UNUSED
#define TYPE enum fi_datatype datatype UNUSED
#define FLAGS uint64_t flags UNUSED

static ssize_t barrier(ENDPOINT, GROUP, CONTEXT) NOTHING
static ssize_t barrier2(ENDPOINT, GROUP, FLAGS, CONTEXT) NOTHING
static ssize_t broadcast(ENDPOINT, void *buffer UNUSED, size_t count UNUSED, void *descriptor UNUSED, GROUP,
			 fi_addr_t root UNUSED, TYPE, FLAGS, CONTEXT) NOTHING
static ssize_t all(ENDPOINT, BUFFER, RESULT, GROUP, TYPE, FLAGS, CONTEXT) NOTHING
static ssize_t all_reduce(ENDPOINT, BUFFER, RESULT, GROUP, KIND, FLAGS, CONTEXT) NOTHING
static ssize_t reduce(ENDPOINT, BUFFER, RESULT, GROUP, fi_addr_t root UNUSED, KIND, FLAGS, CONTEXT) NOTHING
static ssize_t rooted(ENDPOINT, BUFFER, RESULT, GROUP, fi_addr_t root UNUSED, TYPE, FLAGS, CONTEXT) NOTHING
static ssize_t collective(ENDPOINT, const struct fi_msg_collective *message UNUSED, RESULTS, FLAGS) NOTHING

struct fi_ops_collective prov_collective_stubs = {
	.size = sizeof(struct fi_ops_collective),
	.barrier = barrier,
	.broadcast = broadcast,
	.alltoall = all,
	.allreduce = all_reduce,
	.allgather = all,
	.reduce_scatter = all_reduce,
	.reduce = reduce,
	.scatter = rooted,
	.gather = rooted,
	.msg = collective,
	.barrier2 = barrier2,
};
