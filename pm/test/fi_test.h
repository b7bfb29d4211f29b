/* fi_test.h - two endpoints of the provider in one process, for tests of its operations. */
#ifndef FI_TEST_H
#define FI_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "test.h"

#define TRIES 100000000L /* readings of a queue until a test gives up */

struct side {
	struct fid_ep *ep;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_cntr *sent, *received, *rma;
	fi_addr_t other, own;
	char name[64];
	size_t name_length;
};

struct pair {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct side a, b;
};

struct pair_options {
	enum fi_threading threading;
	enum fi_av_type av_type;
	enum fi_cq_format format;
	uint64_t tx_bind, rx_bind; /* FI_SELECTIVE_COMPLETION */
	uint64_t tx_op_flags;
	enum fi_wait_obj wait;
	uint64_t caps; /* beyond what wanted() asks for */
};

static inline struct fi_info *wanted(void)
{
	struct fi_info *hints;

	/* The provider of this build, unless another one is named. */
	if (getenv("PM_BUILD"))
		setenv("FI_PROVIDER_PATH", getenv("PM_BUILD"), 0);
	hints = fi_allocinfo();
	CHECK(hints);
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV | FI_LOCAL_COMM |
		      FI_REMOTE_COMM;
	hints->fabric_attr->prov_name = strdup("pm");
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	return hints;
}

/* Without the provider there is nothing to test. */
static inline void need_provider(void)
{
	struct fi_info *hints = wanted(), *info = NULL;
	int status = fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info);

	fi_freeinfo(hints);
	if (status == -FI_ENODATA) {
		printf("no provider pm in the folder FI_PROVIDER_PATH\n");
		exit(SKIPPED);
	}
	CHECK_IS(status, 0);
	fi_freeinfo(info);
}

static inline void open_side(struct pair *pair, struct side *side, const struct pair_options *options)
{
	struct fi_cq_attr cq = { .format = options->format, .wait_obj = options->wait };
	struct fi_av_attr av = { .type = options->av_type };
	struct fi_cntr_attr cntr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = options->wait };

	CHECK(!fi_endpoint(pair->domain, pair->info, &side->ep, side));
	CHECK(!fi_cq_open(pair->domain, &cq, &side->cq, NULL));
	CHECK(!fi_av_open(pair->domain, &av, &side->av, NULL));
	CHECK(!fi_cntr_open(pair->domain, &cntr, &side->sent, NULL));
	CHECK(!fi_cntr_open(pair->domain, &cntr, &side->received, NULL));
	CHECK(!fi_cntr_open(pair->domain, &cntr, &side->rma, NULL));
	CHECK(!fi_ep_bind(side->ep, &side->av->fid, 0));
	CHECK(!fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | options->tx_bind));
	CHECK(!fi_ep_bind(side->ep, &side->cq->fid, FI_RECV | options->rx_bind));
	CHECK(!fi_ep_bind(side->ep, &side->sent->fid, FI_SEND));
	CHECK(!fi_ep_bind(side->ep, &side->received->fid, FI_RECV));
	CHECK(!fi_ep_bind(side->ep, &side->rma->fid, FI_READ | FI_WRITE));
	CHECK(!fi_enable(side->ep));
	side->name_length = sizeof(side->name);
	CHECK(!fi_getname(&side->ep->fid, side->name, &side->name_length));
	CHECK_IS(side->name_length, 48);
}

static inline void open_pair(struct pair *pair, const struct pair_options *options)
{
	struct fi_info *hints = wanted();
	int status;

	memset(pair, 0, sizeof(*pair));
	hints->domain_attr->threading = options->threading;
	hints->domain_attr->av_type = options->av_type;
	hints->tx_attr->op_flags = options->tx_op_flags;
	hints->caps |= options->caps;
	status = fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &pair->info);
	fi_freeinfo(hints);
	CHECK_IS(status, 0);
	CHECK(!fi_fabric(pair->info->fabric_attr, &pair->fabric, NULL));
	CHECK(!fi_domain(pair->fabric, pair->info, &pair->domain, NULL));
	open_side(pair, &pair->a, options);
	open_side(pair, &pair->b, options);
	CHECK_IS(fi_av_insert(pair->a.av, pair->a.name, 1, &pair->a.own, 0, NULL), 1);
	CHECK_IS(fi_av_insert(pair->a.av, pair->b.name, 1, &pair->a.other, 0, NULL), 1);
	CHECK_IS(fi_av_insert(pair->b.av, pair->a.name, 1, &pair->b.other, 0, NULL), 1);
	CHECK_IS(fi_av_insert(pair->b.av, pair->b.name, 1, &pair->b.own, 0, NULL), 1);
}

static inline void close_side(struct side *side)
{
	CHECK_IS(fi_close(&side->cq->fid), -FI_EBUSY);
	CHECK_IS(fi_close(&side->av->fid), -FI_EBUSY);
	CHECK(!fi_close(&side->ep->fid));
	CHECK(!fi_close(&side->cq->fid));
	CHECK(!fi_close(&side->av->fid));
	CHECK(!fi_close(&side->sent->fid));
	CHECK(!fi_close(&side->received->fid));
	CHECK(!fi_close(&side->rma->fid));
}

static inline void close_pair(struct pair *pair)
{
	CHECK_IS(fi_close(&pair->domain->fid), -FI_EBUSY);
	close_side(&pair->a);
	close_side(&pair->b);
	CHECK(!fi_close(&pair->domain->fid));
	CHECK(!fi_close(&pair->fabric->fid));
	fi_freeinfo(pair->info);
}

/* The next completion of a side, while the other one is moved along as well; the other's are not read. */
static inline struct fi_cq_tagged_entry next(struct side *side, struct side *other, fi_addr_t *source)
{
	struct fi_cq_tagged_entry entry = { 0 };
	fi_addr_t from = 12345;

	for (long i = 0; i < TRIES; i++) {
		ssize_t got = fi_cq_readfrom(side->cq, &entry, 1, &from);

		if (got == 1) {
			if (source)
				*source = from;
			return entry;
		}
		if (got == -FI_EAVAIL) {
			struct fi_cq_err_entry error = { 0 };

			fi_cq_readerr(side->cq, &error, 0);
			fprintf(stderr, "error %d\n", error.err);
		}
		CHECK_IS(got, -FI_EAGAIN);
		fi_cntr_read(other->received);
	}
	CHECK(!"a completion comes");
	return entry;
}

static inline struct fi_cq_err_entry next_error(struct side *side, struct side *other)
{
	struct fi_cq_err_entry error = { 0 };
	struct fi_cq_tagged_entry entry;

	for (long i = 0; i < TRIES; i++) {
		ssize_t got = fi_cq_read(side->cq, &entry, 1);

		if (got == -FI_EAVAIL) {
			CHECK_IS(fi_cq_readerr(side->cq, &error, 0), 1);
			CHECK(fi_cq_strerror(side->cq, error.prov_errno, error.err_data, NULL, 0));
			return error;
		}
		CHECK_IS(got, -FI_EAGAIN);
		fi_cntr_read(other->received);
	}
	CHECK(!"an error comes");
	return error;
}

static inline void nothing(struct side *side, struct side *other)
{
	struct fi_cq_tagged_entry entry;

	for (int i = 0; i < 100; i++) {
		CHECK_IS(fi_cq_read(side->cq, &entry, 1), -FI_EAGAIN);
		fi_cntr_read(other->received);
	}
}

static inline bool over_udp(void)
{
	const char *rails = getenv("PM_RAILS");

	return rails && !strcmp(rails, "udp");
}

/* Does it until there is room. */
#define AGAIN(call, other_side)                                                                                       \
	do {                                                                                                          \
		ssize_t again_;                                                                                       \
		long tries_ = 0;                                                                                      \
		while ((again_ = (call)) == -FI_EAGAIN && tries_++ < TRIES)                                           \
			fi_cntr_read((other_side)->received);                                                         \
		CHECK_IS(again_, 0);                                                                               \
	} while (0)

/* When it returns, all that a side has sent to the other one has arrived there; the latter has no other completions. */
static inline void let_arrive(struct side *from, struct side *at)
{
	enum { LAST = 0x1a57 };

	AGAIN(fi_tinject(from->ep, NULL, 0, from->other, LAST), at);
	CHECK(!fi_trecv(at->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, LAST, 0, NULL));
	CHECK_IS(next(at, from, NULL).tag, LAST);
}

static inline void fill(char *buffer, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		buffer[i] = (char)(seed * 31 + i * 7 + (i >> 8));
}

static inline int filled(const char *buffer, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++) {
		if (buffer[i] != (char)(seed * 31 + i * 7 + (i >> 8)))
			return 0;
	}
	return 1;
}

#endif
