/* What native code does that is the same for every step: it walks through the units of one, calls
 * products and convolutions, and finds arguments where they are.
 *
 * All of it reads words from a table that Python lays out: numbers, addresses, and where in the
 * table further words are. A unit is a function of its words that returns 0, 1 (an index is out
 * of bounds) or 2 (no memory). Python's own functions are declared here, so no header of it is
 * needed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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

/* A job by several threads. It has `count` turns, which may be done in any order, and is done in
 * ranges of these; `member` says which thread does one. Each thread has a share, the same in every
 * job of the same size, so that it finds what it has made in its own cache; who is done helps the
 * others. `work` is about how many nanoseconds it takes: a short one is done alone. A thread that
 * waits for a job looks for one for some 50 us, then sleeps, and is woken for a long one only.
 *
 * There is one team. Who finds it at work works alone. */
typedef int (*job)(const void *, int64 from, int64 to, int64 member);
enum { MEMBERS = 64, RANGES = 4, LOOKS = 3000 };
/* In nanoseconds: a job that is done alone is shorter; a share and a range are as long or longer; a
 * job that sleepers are woken for is, too. */
enum { ALONE = 15000, SHARE = 5000, RANGE = 2000, LONG = 80000 };

int64 cores = 1;        /* no more threads than this, at most MEMBERS, */
int (*limit)(void) = 0; /* nor than BLAS may start */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool busy, failed;
    int64 threads, sleeping;     /* beside the one that has work */
    int64 number, open, inside;  /* of the job; the one that may be entered, or 0; who has entered */
    job code;
    const void *words;
    int64 count, grain, size;    /* turns; at least so many at a time; who takes part */
    struct { int64 next; char apart[56]; } taken[MEMBERS];  /* ranges of each share */
} team = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, y) __atomic_store_n(&(x), y, __ATOMIC_SEQ_CST)
#define ADD(x, y) __atomic_fetch_add(&(x), y, __ATOMIC_SEQ_CST)

static int64 least(int64 a, int64 b) { return a < b ? a : b; }

static void look_again(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_part(int64 member) {
    const int64 grains = (team.count + team.grain - 1) / team.grain, size = team.size;
    for (int64 n = 0; n < size; n++) {
        const int64 whose = (member + n) % size, first = grains * whose / size;
        const int64 share = grains * (whose + 1) / size - first, ranges = least(RANGES, share);
        for (int64 r; (r = ADD(team.taken[whose].next, 1)) < ranges;) {
            int64 from = (first + share * r / ranges) * team.grain;
            int64 to = least(team.count, (first + share * (r + 1) / ranges) * team.grain);
            if (team.code(team.words, from, to, member)) STORE(team.failed, true);
        }
    }
}

static void *work(void *which) {
    int64 seen = 0, now;
    for (;;) {
        for (int64 looks = 0; (now = LOAD(team.number)) == seen;)
            if (++looks < LOOKS) look_again();
            else {
                pthread_mutex_lock(&team.lock);
                ADD(team.sleeping, 1);
                while (LOAD(team.number) == seen) pthread_cond_wait(&team.wake, &team.lock);
                ADD(team.sleeping, -1);
                pthread_mutex_unlock(&team.lock);
            }
        seen = now;
        ADD(team.inside, 1);
        if (LOAD(team.open) == now && (intptr_t)which < team.size) take_part((intptr_t)which);
        ADD(team.inside, -1);
    }
    return NULL;
}

static void forked(void) { /* a child has none of the threads */
    team.busy = false;
    team.threads = team.sleeping = team.open = team.inside = 0;
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.wake, NULL);
}

static void enlist(int64 size) {
    static bool prepared = false;
    if (team.threads >= size - 1) return;
    if (!prepared) prepared = !pthread_atfork(NULL, NULL, forked);
    sigset_t all, before;
    sigfillset(&all); /* signals are for Python's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; team.threads < size - 1; team.threads++) {
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)(team.threads + 1))) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* How many threads a job may have. */
int64 members(void) { return cores > 1 && limit ? least(cores, limit()) : cores; }

int split(job code, const void *words, int64 count, int64 work) {
    int64 size = work < ALONE || count < 2 ? 1 : least(members(), least(count, work / SHARE));
    if (size < 2 || __atomic_exchange_n(&team.busy, true, __ATOMIC_SEQ_CST))
        return code(words, 0, count, 0);
    enlist(size);
    team.code = code;
    team.words = words;
    team.count = count;
    team.grain = 1 + count * RANGE / work;
    team.size = least(size, team.threads + 1);
    team.failed = false;
    for (int64 n = 0; n < team.size; n++) team.taken[n].next = 0;
    STORE(team.open, team.number + 1);
    ADD(team.number, 1);
    if (work >= LONG && LOAD(team.sleeping)) {
        pthread_mutex_lock(&team.lock);
        pthread_cond_broadcast(&team.wake);
        pthread_mutex_unlock(&team.lock);
    }
    take_part(0);
    STORE(team.open, 0);
    for (int64 looks = 0; LOAD(team.inside); looks++)
        if (looks < LOOKS) look_again();
        else sched_yield();
    int failed = LOAD(team.failed);
    __atomic_store_n(&team.busy, false, __ATOMIC_SEQ_CST);
    return failed;
}

/* A unit that is a job. Words: its code, turns, nanoseconds; its own. */
int shared(int64 *t) { return split((job)t[0], t + 3, t[1], t[2]); }

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

/* The same of a check: false where it has found something, and Python is to look. */
PyObject *look(PyObject *self, PyObject *none) {
    return PyBool_FromLong(!sequence(PyCapsule_GetPointer(self, NULL)));
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
 * it alone; about how many nanoseconds a call takes, or 0 where one thread must do all; how many
 * dimensions there are, and of each its length and three strides in bytes. The last argument of
 * a call is `member`, or -1 where no other thread is at work. */
typedef void (*call)(int64 *, char *, char *, char *, int64);
enum { OWN = 14 };

static int some_calls(const void *words, int64 from, int64 to, int64 member) {
    int64 *t = (int64 *)words, *d = t + OWN + 2;
    for (int64 n = from; n < to; n++) {
        char *a = (char *)t[1], *b = (char *)t[2], *c = (char *)t[3];
        int64 rest = n;
        for (int64 *e = d + 4 * (t[OWN + 1] - 1); e >= d && rest; e -= 4) {
            int64 i = rest % e[0];
            a += i * e[1];
            b += i * e[2];
            c += i * e[3];
            rest /= e[0];
        }
        ((call)t[0])(t + 4, a, b, c, member);
    }
    return 0;
}

int calls(int64 *t) {
    int64 turns = 1, *d = t + OWN + 2;
    for (int64 n = 0; n < t[OWN + 1]; n++) turns *= d[4 * n];
    if (t[OWN] && t[OWN] < LONG && turns > 1) return split(some_calls, t, turns, turns * t[OWN]);
    return some_calls(t, 0, turns, -1);
}

/* Random words as NumPy's Philox makes them (4x64, ten rounds; Salmon et al., 2011), a turn PHILOX of
 * them. Words: where the key is, the number of the first block of eight words and of the first word
 * in that; where to write; how many. A fresh generator counts from 1. */
__extension__ typedef unsigned __int128 uint128;
enum { PHILOX = 512 };

int philox(const void *words, int64 from, int64 to, int64 member) {
    const int64 *t = words;
    const uint64_t *place = (const uint64_t *)t[0];
    uint32_t *out = (uint32_t *)t[1];
    const int64 size = t[2], skip = (int64)place[3];
    const int64 last = least(to * (PHILOX / 8), (skip + size + 7) / 8);
    for (int64 block = from * (PHILOX / 8); block < last; block++) {
        const int64 first = 8 * block - skip, begin = first < 0 ? 0 : first;
        const int64 end = least(first + 8, size);
        uint64_t c[4] = {place[2] + block + 1, 0, 0, 0}, key[2] = {place[0], place[1]};
        for (int n = 0; n < 10; n++) {
            const uint128 a = (uint128)c[0] * 0xD2E7470EE14C6C93u;
            const uint128 b = (uint128)c[2] * 0xCA5A826395121157u;
            c[0] = (uint64_t)(b >> 64) ^ c[1] ^ key[0];
            c[2] = (uint64_t)(a >> 64) ^ c[3] ^ key[1];
            c[1] = (uint64_t)b;
            c[3] = (uint64_t)a;
            key[0] += 0x9E3779B97F4A7C15u;
            key[1] += 0xBB67AE8584CAA73Bu;
        }
        memcpy(out + begin, (uint32_t *)c + begin - first, 4 * (end - begin));
    }
    return 0;
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
