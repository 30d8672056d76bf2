/* Vectors of REAL, which is float32 or float64, for products.c and convolution.c. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef int64_t int64; typedef float float32; typedef double float64;
#if defined(__AVX512F__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512") /* else each vector is two, and those in memory */
#define LONG
enum { BYTES = 64 };
#else
enum { BYTES = 32 };
#endif
#define REAL_BITS __typeof__(__builtin_choose_expr(sizeof(REAL) == 4, (int32_t)0, (int64)0))
typedef REAL V __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL_BITS B __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
enum { WIDE = BYTES / sizeof(REAL) };
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)
#define INLINE static inline __attribute__((always_inline))

/* runtime.c's: does a job, of so many turns and so many nanoseconds, by several threads; and how many
 * these are. */
int (*split)(int (*)(const void *, int64, int64, int64), const void *, int64, int64);
int64 (*members)(void);

INLINE V times_plus(V a, V b, V c) {
    V sum;
    for (int i = 0; i < WIDE; i++)
        sum[i] = sizeof(REAL) == 4 ? __builtin_fmaf(a[i], b[i], c[i]) : __builtin_fma(a[i], b[i], c[i]);
    return sum;
}

INLINE V all(REAL x) {
    V v;
    for (int i = 0; i < WIDE; i++) v[i] = x;
    return v;
}

static int64 least(int64 a, int64 b) { return a < b ? a : b; }

