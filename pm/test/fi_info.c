/* fi_info.c - what fi_getinfo takes and refuses of the libfabric provider, and its completion queues' formats. */
#include "fi_test.h"

static struct pair pair;
static struct side *a = &pair.a, *b = &pair.b;
static char out[8], in[8];

static void formats(void)
{
	static const size_t entry_sizes[] = { 0, sizeof(struct fi_cq_entry), sizeof(struct fi_cq_msg_entry),
					      sizeof(struct fi_cq_data_entry), sizeof(struct fi_cq_tagged_entry) };

	for (int format = FI_CQ_FORMAT_CONTEXT; format <= FI_CQ_FORMAT_TAGGED; format++) {
		struct pair_options options = { .threading = FI_THREAD_DOMAIN, .av_type = FI_AV_MAP, .format = format };
		struct {
			struct fi_cq_tagged_entry entry;
			char guard[8];
		} read = { .guard = "guard" };
		char *bytes = (char *)&read.entry;
		ssize_t got;

		open_pair(&pair, &options);
		CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &in));
		AGAIN(fi_tinjectdata(a->ep, out, 8, 5, a->other, 1), b);
		memset(&read.entry, 0x11, sizeof(read.entry));
		while ((got = fi_cq_read(b->cq, &read.entry, 1)) == -FI_EAGAIN)
			;
		CHECK_IS(got, 1);
		CHECK(read.entry.op_context == &in);
		for (size_t i = entry_sizes[format]; i < sizeof(read.entry); i++)
			CHECK_IS(bytes[i], 0x11);
		if (format >= FI_CQ_FORMAT_MSG)
			CHECK_IS(read.entry.len, 8);
		if (format >= FI_CQ_FORMAT_DATA)
			CHECK_IS(read.entry.data, 5);
		close_pair(&pair);
	}
}

/* What getinfo takes and refuses. */
static int info_status(uint32_t version, struct fi_info *hints)
{
	struct fi_info *info = NULL;
	int status = fi_getinfo(version, NULL, NULL, 0, hints, &info);

	if (!status) {
		CHECK(!strcmp(info->fabric_attr->prov_name, "pm"));
		CHECK_IS(info->ep_attr->type, FI_EP_RDM);
		fi_freeinfo(info);
	}
	fi_freeinfo(hints);
	return status;
}

#define HINTS(change)                                                                                                 \
	({                                                                                                            \
		struct fi_info *h = wanted();                                                                         \
		change;                                                                                               \
		h;                                                                                                    \
	})

static void information(void)
{
	uint32_t v = FI_VERSION(1, 9);

	CHECK_IS(info_status(FI_VERSION(1, 5), wanted()), 0);
	CHECK_IS(info_status(v, wanted()), 0);
	CHECK_IS(info_status(v, HINTS(h->domain_attr->mr_mode = 0)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS((h->domain_attr->mr_mode = 0, h->caps = FI_TAGGED))), 0);
	CHECK_IS(info_status(v, HINTS(h->caps |= FI_ATOMIC)), 0);
	CHECK_IS(info_status(v, HINTS((h->caps |= FI_ATOMIC, h->tx_attr->msg_order = FI_ORDER_ATOMIC_WAW))), 0);
	CHECK_IS(info_status(v, HINTS(h->tx_attr->msg_order = FI_ORDER_ATOMIC_WAW)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS((h->caps |= FI_ATOMIC, h->ep_attr->max_order_waw_size = 8192))), 0);
	CHECK_IS(info_status(v, HINTS((h->caps |= FI_ATOMIC, h->ep_attr->max_order_waw_size = 16384))), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS((h->caps = FI_ATOMIC, h->domain_attr->mr_mode = 0))), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS((h->caps = 0, h->tx_attr->msg_order = FI_ORDER_ATOMIC_WAW))), 0);
	CHECK_IS(info_status(v, HINTS(h->caps |= FI_RMA_EVENT)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->ep_attr->type = FI_EP_MSG)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->ep_attr->type = FI_EP_DGRAM)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->ep_attr->type = FI_EP_UNSPEC)), 0);
	CHECK_IS(info_status(v, HINTS(h->domain_attr->data_progress = FI_PROGRESS_AUTO)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->domain_attr->data_progress = FI_PROGRESS_MANUAL)), 0);
	CHECK_IS(info_status(v, HINTS(h->tx_attr->msg_order = FI_ORDER_SAS)), 0);
	CHECK_IS(info_status(v, HINTS(h->tx_attr->msg_order = FI_ORDER_RAW)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->tx_attr->inject_size = 1 << 20)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->tx_attr->iov_limit = 5)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->ep_attr->tx_ctx_cnt = 2)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->domain_attr->mr_iov_limit = 1)), 0);
	CHECK_IS(info_status(v, HINTS(h->domain_attr->mr_iov_limit = 2)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->domain_attr->name = strdup("other"))), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->fabric_attr->name = strdup("pm"))), 0);
	CHECK_IS(info_status(v, HINTS(h->addr_format = FI_SOCKADDR_IN)), -FI_ENODATA);
	CHECK_IS(info_status(v, HINTS(h->ep_attr->max_msg_size = ~(size_t)0)), -FI_ENODATA);
}

/* Control operations have ended when their calls return, so either model is true of them: the caller's is given back. */
static void progress(enum fi_progress control, enum fi_progress told)
{
	struct fi_info *info, *hints = HINTS(h->domain_attr->control_progress = control);

	CHECK(!fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info));
	CHECK_IS(info->domain_attr->control_progress, told);
	CHECK_IS(info->domain_attr->data_progress, FI_PROGRESS_MANUAL);
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

/* Atomic operations, and the order in which they are done, are promised to who asks for them or for nothing. */
static void promised(uint64_t caps, uint64_t granted)
{
	uint64_t all = FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	uint64_t order = granted & FI_ATOMIC ? FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW : 0;
	struct fi_info *info, *hints = HINTS(h->caps = caps);

	CHECK(!fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info));
	CHECK_IS(info->caps & all, granted);
	CHECK_IS(info->tx_attr->caps & all, granted & ~(FI_REMOTE_READ | FI_REMOTE_WRITE));
	CHECK_IS(info->rx_attr->caps & all, granted & ~(FI_READ | FI_WRITE));
	CHECK_IS(info->tx_attr->msg_order, FI_ORDER_SAS | order);
	CHECK_IS(info->rx_attr->msg_order, FI_ORDER_SAS | order);
	CHECK_IS(info->ep_attr->max_order_raw_size > 8000, (granted & FI_ATOMIC) != 0);
	CHECK_IS(info->ep_attr->max_order_war_size > 8000, (granted & FI_ATOMIC) != 0);
	CHECK_IS(info->ep_attr->max_order_waw_size > 8000, (granted & FI_ATOMIC) != 0);
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

/* Nobody is promised any where they are not offered. */
static void not_offered(void)
{
	pid_t pid = fork();

	if (pid) {
		CHECK_IS(child_status(pid), 0);
		return;
	}
	unsetenv("FI_PM_ATOMICS");
	need_provider();
	CHECK_IS(info_status(FI_VERSION(1, 9), HINTS(h->caps |= FI_ATOMIC)), -FI_ENODATA);
	CHECK_IS(info_status(FI_VERSION(1, 9), HINTS((h->caps = 0, h->tx_attr->msg_order = FI_ORDER_ATOMIC_WAW))), -FI_ENODATA);
	promised(FI_TAGGED, 0);
	promised(0, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
	exit(0);
}

/* FI_REMOTE_COMM is promised also where no other machine is reached, for Open MPI wants it in any case. Sending says so. */
static void unreachable(void)
{
	struct pair_options options = { .threading = FI_THREAD_DOMAIN, .av_type = FI_AV_TABLE };
	struct fi_cq_tagged_entry entry;
	char stranger[48];
	fi_addr_t there;
	ssize_t status;

	setenv("PM_RAILS", "shm", 1);
	open_pair(&pair, &options);
	CHECK(pair.info->caps & FI_REMOTE_COMM);
	CHECK(pair.info->domain_attr->caps & FI_REMOTE_COMM);
	memcpy(stranger, b->name, sizeof(stranger));
	memset(&stranger[8], 0x77, 34); /* another process, on another machine (pm(7)) */
	CHECK_IS(fi_av_insert(a->av, stranger, 1, &there, 0, NULL), 1);
	while ((status = fi_tsend(a->ep, out, 8, NULL, there, 1, NULL)) == -FI_EAGAIN)
		(void)!fi_cq_read(a->cq, &entry, 1);
	CHECK(status == -FI_EHOSTUNREACH || status == -FI_EHOSTDOWN);
	close_pair(&pair);
}

int main(void)
{
	not_offered();
	setenv("FI_PM_ATOMICS", "1", 1);
	need_provider();
	information();
	promised(FI_TAGGED, 0);
	promised(FI_ATOMIC, FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
	promised(FI_ATOMIC | FI_READ | FI_REMOTE_WRITE, FI_ATOMIC | FI_READ | FI_REMOTE_WRITE);
	promised(0, FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
	progress(FI_PROGRESS_UNSPEC, FI_PROGRESS_MANUAL);
	progress(FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL);
	progress(FI_PROGRESS_AUTO, FI_PROGRESS_AUTO);
	formats();
	unreachable();
	return 0;
}
