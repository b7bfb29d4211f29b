/* prov_bed.h - an endpoint of the provider, and two peers of it of which the other sides are in a fuzzer's hands. */
#ifndef PROV_BED_H
#define PROV_BED_H

#include <assert.h>
#include <sys/mman.h>

#include "prov.h"
#include "rings.h"

#define GUARDED 4096u
#define PEERS 2
#define MOST_POSTS 64
#define REQUESTS 8
#define UNEXPECTED 40000 /* octets that are kept, so that peers are told to hold */

struct fi_provider *fi_prov_ini(void);

/* Something that was asked for, and its buffer. */
struct post {
	struct fi_context context; /* first: what is asked for is known by it */
	uint8_t *buffer;
	size_t length;
};

struct bed {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_cntr *cntr;
	struct rings rings[PEERS];
	struct ring_writer writers[PEERS]; /* the peers' sides of the rings */
	struct ring_reader readers[PEERS];
	fi_addr_t peers[PEERS];
	uint64_t requests[REQUESTS];       /* names of what the endpoint has asked the peers for */
	unsigned requested;
	struct post posts[MOST_POSTS];
	unsigned posted;
};

/* These stay. */
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_mr *mr;
static uint8_t *guarded;

static inline void open_once(void)
{
	struct fi_provider *provider;
	uint8_t *memory;
	if (domain)
		return;
	setenv("PM_CMA", "0", 1); /* the peers are no processes */
	setenv("PM_RAILS", "shm", 1);
	provider = fi_prov_ini();
	prov_tunables.atomics = 1;
	prov_tunables.unexpected = UNEXPECTED;
	memory = mmap(NULL, 3 * GUARDED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || provider->getinfo(FI_VERSION(1, 9), NULL, NULL, 0, NULL, &info) ||
	    provider->fabric(info->fabric_attr, &fabric, NULL) || fi_domain(fabric, info, &domain, NULL))
		abort();
	memset(memory, 0xc7, 3 * GUARDED);
	guarded = memory + GUARDED;
	if (fi_mr_reg(domain, guarded, GUARDED, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL))
		abort();
}

static inline void open_peer(struct bed *bed, unsigned number)
{
	struct pm_endpoint *endpoint = container_of(bed->ep, struct prov_ep, fid)->pm;
	struct pm_address address;
	struct pm_peer *peer;
	pm_endpoint_address(endpoint, &address);
	address.bytes[9] ^= 1 + number;
	if (pm_peer_get(endpoint, &address, &peer) || fi_av_insert(bed->av, &address, 1, &bed->peers[number], 0, NULL) != 1)
		abort();
	rings_open(&bed->rings[number], peer);
	ring_writer_open(&bed->writers[number], bed->rings[number].in->ring.memory, RINGS_BYTES);
	ring_reader_open(&bed->readers[number], bed->rings[number].out->ring.memory, RINGS_BYTES);
}

static inline void open_bed(struct bed *bed)
{
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP};
	open_once();
	memset(guarded, 0, GUARDED);
	if (fi_endpoint(domain, info, &bed->ep, NULL) || fi_cq_open(domain, &cq, &bed->cq, NULL) || fi_av_open(domain, &av, &bed->av, NULL) ||
	    fi_cntr_open(domain, &cntr, &bed->cntr, NULL) || fi_ep_bind(bed->ep, &bed->av->fid, 0) ||
	    fi_ep_bind(bed->ep, &bed->cq->fid, FI_TRANSMIT | FI_RECV) || fi_ep_bind(bed->ep, &bed->cntr->fid, FI_SEND | FI_RECV | FI_READ) ||
	    fi_enable(bed->ep))
		abort();
	for (unsigned i = 0; i < PEERS; i++)
		open_peer(bed, i);
}

static inline bool canaries_live(void)
{
	const uint8_t *before = guarded - GUARDED, *after = guarded + GUARDED;
	for (unsigned i = 0; i < GUARDED; i++)
		if (before[i] != 0xc7 || after[i] != 0xc7)
			return false;
	return true;
}

static inline void close_bed(struct bed *bed)
{
	for (unsigned i = 0; i < PEERS; i++)
		rings_close(&bed->rings[i]);
	if (fi_close(&bed->ep->fid) || fi_close(&bed->cq->fid) || fi_close(&bed->av->fid) || fi_close(&bed->cntr->fid))
		abort();
	for (unsigned i = 0; i < bed->posted; i++)
		free(bed->posts[i].buffer);
	assert(canaries_live());
}

#endif
