/* What native code does that is the same for every step: it walks through the units of one, calls
 * BLAS and NumPy's inner loops, and finds arguments where they are.
 *
 * All of it reads words from a table that Python lays out: numbers, addresses, and where in the
 * table further words are. A unit is a function of its words that returns 0, 1 (an index is out
 * of bounds) or 2 (no memory). Python's own functions are declared here, so no header of it is
 * needed.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef int64_t int64;
typedef int (*unit)(int64 *);
typedef struct _object PyObject;

PyObject *PyBool_FromLong(long), *PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject *);
void *PyCapsule_GetPointer(PyObject *, const char *), *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *), PyErr_SetString(PyObject *, const char *);
PyObject *PyErr_NoMemory(void);
extern PyObject *PyExc_IndexError;

/* Units, in order, and that again and again: turns, how many units, how many moves; of every unit
 * the code and where its words are; of every move a word and by how much it grows each turn. */
int sequence(int64 *t) {
    int64 turns = t[0], done, *units = t + 3, *moves = units + 2 * t[1], *end = moves + 2 * t[2];
    int failed = 0;
    for (done = 0; done < turns && !failed; done++) {
        for (int64 *u = units; u < moves && !failed; u += 2) failed = ((unit)u[0])(t + u[1]);
        for (int64 *m = moves; m < end; m += 2) t[m[0]] += m[1];
    }
    for (int64 *m = moves; m < end; m += 2) t[m[0]] -= done * m[1];
    return failed;
}

static PyObject *result(int failed) {
    if (failed == 2) return PyErr_NoMemory();
    if (failed) {
        PyErr_SetString(PyExc_IndexError, "an index of a compiled step is out of bounds");
        return NULL;
    }
    return PyBool_FromLong(1);
}

/* The sequence that `self` holds. */
PyObject *run(PyObject *self, PyObject *none) {
    return result(sequence(PyCapsule_GetPointer(self, NULL)));
}

/* The same, while other threads may have Python. */
PyObject *run_apart(PyObject *self, PyObject *none) {
    int64 *words = PyCapsule_GetPointer(self, NULL);
    void *thread = PyEval_SaveThread();
    int failed = sequence(words);
    PyEval_RestoreThread(thread);
    return result(failed);
}

/* A call for each of many places. Words: what is called; three addresses; the words that are for
 * it alone; behind these how many dimensions, and of each its length and three strides in bytes. */
typedef void (*call)(int64 *, char *, char *, char *);
enum { OWN = 14 };

__attribute__((noinline)) static void each(int64 *t, int64 dims, int64 *d, char *a, char *b, char *c) {
    if (!dims) ((call)t[0])(t + 4, a, b, c);
    else
        for (int64 i = 0; i < d[0]; i++)
            each(t, dims - 1, d + 4, a + i * d[1], b + i * d[2], c + i * d[3]);
}

int calls(int64 *t) {
    each(t, t[OWN], t + OWN + 1, (char *)t[1], (char *)t[2], (char *)t[3]);
    return 0;
}

/* Products, as cblas says them. Words: the routine; of matrices, whether A and B are transposed, M,
 * N, K and three leading dimensions; of a matrix and a vector, whether the matrix is transposed, M,
 * N, its leading dimension and two increments. */
#define PRODUCTS(letter, real, bits, whole)                                                       \
    void letter##gemm##bits(int64 *t, char *a, char *b, char *c) {                                \
        typedef void (*gemm)(int, int, int, whole, whole, whole, real, void *, whole, void *,     \
                             whole, real, void *, whole);                                         \
        ((gemm)t[0])(101, t[1], t[2], t[3], t[4], t[5], 1, a, t[6], b, t[7], 0, c, t[8]);         \
    }                                                                                             \
    void letter##gemv##bits(int64 *t, char *a, char *x, char *y) {                                \
        typedef void (*gemv)(int, int, whole, whole, real, void *, whole, void *, whole, real,    \
                             void *, whole);                                                      \
        ((gemv)t[0])(101, t[1], t[2], t[3], 1, a, t[4], x, t[5], 0, y, t[6]);                     \
    }
PRODUCTS(s, float, 32, int32_t)
PRODUCTS(s, float, 64, int64_t)
PRODUCTS(d, double, 32, int32_t)
PRODUCTS(d, double, 64, int64_t)

/* One of NumPy's inner loops of a function. Words: code and data, how many elements, two strides in
 * bytes. */
void apply(int64 *t, char *x, char *out, char *none) {
    char *arrays[] = {x, out};
    intptr_t count = t[2], strides[] = {t[3], t[4]};
    ((void (*)(char **, intptr_t *, intptr_t *, void *))t[0])(arrays, &count, strides,
                                                              (void *)t[1]);
}

/* Arguments where they are, if they are as expected. Words: how many words an object has before
 * its own; the table; how many ranges of memory the step writes, and these; then of every array
 * its dtype, dimensions, lengths and strides, bytes, alignment, how many words of the table are
 * addresses in it, and of each which word and how far behind its beginning. An array is laid out as
 * NumPy's C interface says: data, dimensions (an int), lengths, strides, base, dtype. */
PyObject *arrive(PyObject *self, PyObject *const *arrays, intptr_t count) {
    const int64 *t = PyCapsule_GetPointer(self, NULL), *ranges = t + 3, *at = ranges + 2 * t[2];
    int64 *table = (int64 *)t[1];
    for (intptr_t n = 0; n < count; n++) {
        const int64 *array = (const int64 *)arrays[n] + t[0], *lengths, *strides;
        int64 data = array[0], dims = at[1];
        if (array[5] != at[0] || (int32_t)array[1] != dims) return PyBool_FromLong(0);
        lengths = (const int64 *)array[2];
        strides = (const int64 *)array[3];
        at += 2;
        for (int64 d = 0; d < dims; d++, at += 2)
            if (lengths[d] != at[0] || (at[0] != 1 && strides[d] != at[1]))
                return PyBool_FromLong(0);
        if (data % at[1]) return PyBool_FromLong(0);
        for (const int64 *r = ranges; r < ranges + 2 * t[2]; r += 2)
            if (data < r[1] && r[0] < data + at[0]) return PyBool_FromLong(0);
        int64 parts = at[2];
        at += 3;
        for (int64 p = 0; p < parts; p++, at += 2) table[at[0]] = data + at[1];
    }
    return PyBool_FromLong(1);
}

/* Many steps. Words: how many; where the loss is and how many bytes it has; then, their number
 * before each: sequences; words of tables, what they are first and by how much they grow; copies
 * before a step and behind it: to where, from where, how far both move on, how many bytes. It ends
 * behind a step whose loss is not finite: all bits of its exponent are set. Returns how many steps
 * were taken, or -1 - the one that failed. */
static const int64 *copies(const int64 *at, int64 step) {
    int64 count = *at++;
    for (int64 n = 0; n < count; n++, at += 5)
        memcpy((char *)at[0] + step * at[1], (char *)at[2] + step * at[3], at[4]);
    return at;
}

static int64 steps_of(const int64 *t) {
    for (int64 step = 0; step < t[0]; step++) {
        const int64 *sequences = t + 4, *at = sequences + t[3];
        int64 count = *at++;
        for (int64 n = 0; n < count; n++, at += 3) *(int64 *)at[0] = at[1] + step * at[2];
        at = copies(at, step);
        for (int64 n = 0; n < t[3]; n++)
            if (sequence((int64 *)sequences[n])) return -1 - step;
        copies(at, step);
        int64 loss = 0, exponent = t[2] == 2 ? 0x7C00 : t[2] == 4 ? 0x7F800000 : 0x7FFLL << 52;
        memcpy(&loss, (void *)t[1], t[2]);
        if ((loss & exponent) == exponent) return step + 1;
    }
    return t[0];
}

PyObject *scan(PyObject *self, PyObject *words) {
    const int64 *t = (const int64 *)PyLong_AsLongLong(words);
    void *thread = PyEval_SaveThread();
    int64 done = steps_of(t);
    PyEval_RestoreThread(thread);
    return PyLong_FromLongLong(done);
}
