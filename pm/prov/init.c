/* init.c - what libfabric finds in this file: the provider, its tunables. */
#include "prov.h"

_Static_assert(PROV_EAGER_LIMIT == 16352, "the default is as fi_pm(7) and the description below say");

struct fi_provider *fi_prov_ini(void) __attribute__((visibility("default")));

struct prov_tunables prov_tunables = {
	.eager = PROV_EAGER_LIMIT,
	.unexpected = (size_t)64 << 20,
};

static void prov_cleanup(void)
{
}

struct fi_provider prov_provider = {
	.version = FI_VERSION(0, 1),
	.name = PROV_NAME,
	.getinfo = prov_getinfo,
	.fabric = prov_fabric_open,
	.cleanup = prov_cleanup,
};

struct fi_provider *fi_prov_ini(void)
{
	/* Nothing here differs between the versions of the interface, but libfabric ignores a provider that says it
	 * was made for an older one than the caller's. */
	prov_provider.fi_version = fi_version();

	fi_param_define(&prov_provider, "eager", FI_PARAM_SIZE_T,
			"Bytes up to which a message is sent at once, and copied; longer ones are read by the receiver "
			"when it wants them (default and most: 16352)");
	fi_param_define(&prov_provider, "unexpected", FI_PARAM_SIZE_T,
			"Bytes of messages kept until they are asked for, before senders are told to hold theirs "
			"(default: 67108864)");
	fi_param_define(&prov_provider, "atomics", FI_PARAM_BOOL,
			"Whether atomic operations are offered; Intel MPI then does one-sided operations another way "
			"(default: no)");
	fi_param_get_bool(&prov_provider, "atomics", &prov_tunables.atomics);
	fi_param_get_size_t(&prov_provider, "eager", &prov_tunables.eager);
	fi_param_get_size_t(&prov_provider, "unexpected", &prov_tunables.unexpected);
	if (prov_tunables.eager > PROV_EAGER_LIMIT)
		prov_tunables.eager = PROV_EAGER_LIMIT;
	prov_tunables.inject = prov_tunables.eager > PROV_LEAST_INJECT ? prov_tunables.eager : PROV_LEAST_INJECT;
	return &prov_provider;
}
