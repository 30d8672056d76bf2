/* The gradients of a step, added up over the ranks of a host and divided. Called with a table, the
 * word that says which call this is, and whether it begins; returns whether it has to wait.
 *
 * Words: the addresses of the gradients, of the loss, of the footer without it (footer.py) and
 * of where sums go, in the order of `Outcome`; how many gradients, how many numbers in the footer,
 * the rows, the bytes of the loss; the rest is from `SharedMemory.turns`. `split` is footer.py's,
 * and so are NOTES and FOOTER, which Python says before this text.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef int64_t int64;
typedef struct _object PyObject;

PyObject *PyBool_FromLong(long);
long long PyLong_AsLongLong(PyObject *);
void *PyEval_SaveThread(void), PyEval_RestoreThread(void *);

enum { FUTEX = 202, WAIT = 0, WAKE = 1 };

static double split(double value, double *rest) {
    if (!(-1e290 < value && value < 1e290)) {
        *rest = 0;
        return value;
    }
    double scaled = value * 2199023255553.0, high = scaled - (scaled - value);
    *rest = value - high;
    return high;
}

static int64 seen_at(int64 place) { return __atomic_load_n((int64 *)place, __ATOMIC_SEQ_CST); }
static void say(int64 place, int64 word) {
    __atomic_store_n((int64 *)place, word, __ATOMIC_SEQ_CST);
}

#define REDUCE(name, real)                                                                        \
    static bool name##_(const int64 *t, int64 word, bool first, void **thread) {                  \
        real *wide = (real *)t[0], *sums = wide + t[4];                                           \
        int64 size = t[4], footer = t[5], count = size + footer;                                      \
        long (*system_call)(long, ...) = (long (*)(long, ...))t[11];                              \
        if (first) {                                                                              \
            const double *before = (const double *)t[2];                                          \
            for (int64 i = 0; i < footer; i++) sums[i] = (real)before[i];                           \
            double rest, loss = t[7] == 4 ? *(float *)t[1] : *(double *)t[1];                     \
            sums[2] = (real)split(0.0 + t[6] * loss, &rest);                                      \
            sums[3] = (real)rest;                                                                 \
            memcpy((void *)t[8], wide, count * sizeof(real));                                     \
            say(t[9], word);                                                                      \
            if (seen_at(t[9] + 8)) {                                                              \
                say(t[9] + 8, 0);                                                                 \
                system_call(FUTEX, t[9] + 4, WAKE, 0x7FFFFFFF, 0);                                \
            }                                                                                     \
        }                                                                                         \
        int64 yields = t[13], naps = t[14], others = t[15], seen;                                 \
        for (int64 n = 0; n < others; n++)                                                        \
            while ((seen = seen_at(t[16 + n])) != word) {                                         \
                if (seen >> 32 == word >> 32 || yields + naps == 0) return true;                  \
                if (!*thread) *thread = PyEval_SaveThread();                                      \
                if (yields > 0) {                                                                 \
                    yields--;                                                                     \
                    ((int (*)(void))t[10])();                                                     \
                } else {                                                                          \
                    naps--;                                                                       \
                    say(t[16 + n] + 8, 1);                                                        \
                    system_call(FUTEX, t[16 + n] + 4, WAIT, seen >> 32, t[12]);                   \
                }                                                                                 \
            }                                                                                     \
        const int64 *at = t + 17 + others, *end = at + 3 * t[16 + others];                        \
        for (; at < end; at += 3) {                                                               \
            const real *one = (const real *)at[0], *more = (const real *)at[1];                   \
            real *to = (real *)at[2];                                                             \
            for (int64 i = 0; i < count; i++) to[i] = more ? one[i] + more[i] : one[i];           \
        }                                                                                         \
        double *found = (double *)t[3], weight = (double)sums[5] + sums[6];                       \
        found[0] = (double)sums[0] * 4096 + sums[1];                                              \
        found[1] = weight;                                                                        \
        found[2] = (double)sums[2] + sums[3];                                                     \
        found[3] = sums[4];                                                                       \
        for (int64 n = NOTES; n < FOOTER; n++) found[n - NOTES + 4] = sums[n];                      \
        if (weight != 0)                                                                          \
            for (int64 i = 0; i < size; i++) wide[i] /= (real)weight;                             \
        return false;                                                                             \
    }                                                                                             \
    PyObject *name(PyObject *self, PyObject *const *args, intptr_t n) {                           \
        void *thread = NULL;                                                                      \
        bool waits = name##_((const int64 *)PyLong_AsLongLong(args[0]),                           \
                             PyLong_AsLongLong(args[1]), PyLong_AsLongLong(args[2]), &thread);    \
        if (thread) PyEval_RestoreThread(thread);                                                 \
        return PyBool_FromLong(waits);                                                            \
    }
REDUCE(reduce32, float)
REDUCE(reduce64, double)
