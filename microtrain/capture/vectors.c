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
enum { WIDE = BYTES / sizeof(REAL), PANEL = 2 * WIDE };
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

/* WIDE rows as columns. */
INLINE void turn(const REAL *from, int64 step, REAL *to, int64 to_step) {
#ifdef __clang__ /* has no __builtin_shuffle */
    for (int i = 0; i < WIDE; i++)
        for (int j = 0; j < WIDE; j++) to[j * to_step + i] = from[i * step + j];
#else
    V rows[WIDE];
    EACH(i, WIDE) rows[i] = *(const V *)(from + i * step);
    EACH(stage, WIDE == 16 ? 4 : WIDE == 8 ? 3 : 2) {
        const int far = 1 << stage;
        B first, second;
        EACH(x, WIDE) first[x] = x & far ? WIDE + x - far : x;
        EACH(x, WIDE) second[x] = x & far ? WIDE + x : x + far;
        EACH(i, WIDE) if (!(i & far)) {
            V a = rows[i], b = rows[i + far];
            rows[i] = __builtin_shuffle(a, b, first);
            rows[i + far] = __builtin_shuffle(a, b, second);
        }
    }
    EACH(i, WIDE) *(V *)(to + i * to_step) = rows[i];
#endif
}
