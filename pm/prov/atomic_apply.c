/*
 * atomic_apply.c - the atomic operations themselves: for each datatype a function that does all that libfabric names for
 * it (fi_atomic(3)). They are atomic towards each other because who owns the memory does them, one after the other.
 */
#include <complex.h>
#include <string.h>

#include "prov.h"

/* What is to be done to one element: old is what was there, own the operand, wanted what it is compared with. */
#define ANY(type, wide)                                                                                               \
	case FI_SUM: new = (type)((wide)old + (wide)own); break;                                                      \
	case FI_PROD: new = (type)((wide)old * (wide)own); break;                                                     \
	case FI_LOR: new = old || own; break;                                                                         \
	case FI_LAND: new = old && own; break;                                                                        \
	case FI_LXOR: new = !old != !own; break;                                                                      \
	case FI_ATOMIC_WRITE: new = own; break;                                                                       \
	case FI_CSWAP: if (wanted != old) continue; new = own; break;                                                 \
	case FI_CSWAP_NE: if (wanted == old) continue; new = own; break;

#define ORDERED                                                                                                       \
	case FI_MIN: if (!(own < old)) continue; new = own; break;                                                    \
	case FI_MAX: if (!(own > old)) continue; new = own; break;                                                    \
	case FI_CSWAP_LE: if (!(wanted <= old)) continue; new = own; break;                                           \
	case FI_CSWAP_LT: if (!(wanted < old)) continue; new = own; break;                                            \
	case FI_CSWAP_GE: if (!(wanted >= old)) continue; new = own; break;                                           \
	case FI_CSWAP_GT: if (!(wanted > old)) continue; new = own; break;

#define BITWISE                                                                                                       \
	case FI_BOR: new = old | own; break;                                                                          \
	case FI_BAND: new = old & own; break;                                                                         \
	case FI_BXOR: new = old ^ own; break;                                                                         \
	case FI_MSWAP: new = (own & wanted) | (old & ~wanted); break;

/* Operands lie in a message, aligned to nothing. wide: what is reckoned in, so that nothing overflows. */
#define APPLY(name, type, wide, cases)                                                                                \
	static void apply_##name(enum fi_op op, void *target, const char *operand, const char *compare, char *result, \
				 size_t count)                                                                        \
	{                                                                                                             \
		for (size_t i = 0; i < count; i++) {                                                                  \
			type *there = (type *)target + i, old = *there, own = 0, wanted = 0, new;                     \
			if (result)                                                                                   \
				memcpy(result + i * sizeof(type), there, sizeof(type));                               \
			if (operand)                                                                                  \
				memcpy(&own, operand + i * sizeof(type), sizeof(type));                               \
			if (compare)                                                                                  \
				memcpy(&wanted, compare + i * sizeof(type), sizeof(type));                            \
			switch (op) {                                                                                 \
				cases                                                                                 \
			default: /* FI_ATOMIC_READ */                                                                 \
				continue;                                                                             \
			}                                                                                             \
			*there = new;                                                                                 \
		}                                                                                                     \
	}

#define INTEGER(name, type, wide) APPLY(name, type, wide, ANY(type, wide) ORDERED BITWISE)
#define REAL(name, type) APPLY(name, type, type, ANY(type, type) ORDERED)
#define COMPLEX(name, type) APPLY(name, type, type, ANY(type, type))

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

INTEGER(int8, int8_t, uint64_t)
INTEGER(uint8, uint8_t, uint64_t)
INTEGER(int16, int16_t, uint64_t)
INTEGER(uint16, uint16_t, uint64_t)
INTEGER(int32, int32_t, uint64_t)
INTEGER(uint32, uint32_t, uint64_t)
INTEGER(int64, int64_t, uint64_t)
INTEGER(uint64, uint64_t, uint64_t)
INTEGER(int128, int128, uint128)
INTEGER(uint128, uint128, uint128)
REAL(float, float)
REAL(double, double)
REAL(long_double, long double)
COMPLEX(float_complex, float complex)
COMPLEX(double_complex, double complex)
COMPLEX(long_double_complex, long double complex)

enum kind { KIND_COMPLEX, KIND_REAL, KIND_INTEGER };

static const struct {
	void (*apply)(enum fi_op op, void *target, const char *operand, const char *compare, char *result, size_t count);
	uint8_t size, alignment;
	enum kind kind;
} types[] = {
#define TYPE(name, type, kind) { apply_##name, sizeof(type), _Alignof(type), kind }
	[FI_INT8] = TYPE(int8, int8_t, KIND_INTEGER),
	[FI_UINT8] = TYPE(uint8, uint8_t, KIND_INTEGER),
	[FI_INT16] = TYPE(int16, int16_t, KIND_INTEGER),
	[FI_UINT16] = TYPE(uint16, uint16_t, KIND_INTEGER),
	[FI_INT32] = TYPE(int32, int32_t, KIND_INTEGER),
	[FI_UINT32] = TYPE(uint32, uint32_t, KIND_INTEGER),
	[FI_INT64] = TYPE(int64, int64_t, KIND_INTEGER),
	[FI_UINT64] = TYPE(uint64, uint64_t, KIND_INTEGER),
	[FI_FLOAT] = TYPE(float, float, KIND_REAL),
	[FI_DOUBLE] = TYPE(double, double, KIND_REAL),
	[FI_FLOAT_COMPLEX] = TYPE(float_complex, float complex, KIND_COMPLEX),
	[FI_DOUBLE_COMPLEX] = TYPE(double_complex, double complex, KIND_COMPLEX),
	[FI_LONG_DOUBLE] = TYPE(long_double, long double, KIND_REAL),
	[FI_LONG_DOUBLE_COMPLEX] = TYPE(long_double_complex, long double complex, KIND_COMPLEX),
	[FI_INT128] = TYPE(int128, int128, KIND_INTEGER),
	[FI_UINT128] = TYPE(uint128, uint128, KIND_INTEGER),
};

/* The least that a datatype must be for an operation. */
static enum kind kind_for(enum fi_op op)
{
	switch (op) {
	case FI_BOR:
	case FI_BAND:
	case FI_BXOR:
	case FI_MSWAP:
		return KIND_INTEGER;
	case FI_MIN:
	case FI_MAX:
	case FI_CSWAP_LE:
	case FI_CSWAP_LT:
	case FI_CSWAP_GE:
	case FI_CSWAP_GT:
		return KIND_REAL;
	default:
		return KIND_COMPLEX;
	}
}

size_t prov_atomic_size(enum wire_form form, enum fi_datatype datatype, enum fi_op op)
{
	bool fits = form == WIRE_COMPARE ? op >= FI_CSWAP && op <= FI_MSWAP :
		    op == FI_ATOMIC_READ ? form == WIRE_FETCH :
					   op >= FI_MIN && op <= FI_ATOMIC_WRITE;

	if (!fits || (size_t)datatype >= sizeof(types) / sizeof(types[0]) || types[datatype].kind < kind_for(op))
		return 0;
	return types[datatype].size;
}

bool prov_atomic_aligned(enum fi_datatype datatype, uint64_t address)
{
	return address % types[datatype].alignment == 0;
}

void prov_atomic_apply(enum fi_datatype datatype, enum fi_op op, void *target, const char *operand, const char *compare,
		       char *result, size_t bytes)
{
	types[datatype].apply(op, target, operand, compare, result, bytes / types[datatype].size);
}
