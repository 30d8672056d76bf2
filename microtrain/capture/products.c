/* Products of matrices. Every element of one is a sum over k, of fused multiplications and additions
 * in the order of k; sums of DEEP terms are added up in their order. So the bits of an element are
 * the same whatever the width of vectors, the other elements and the number of threads.
 *
 * The right matrix is laid out in panels of some columns (Goto and van de Geijn, "Anatomy of
 * high-performance matrix multiplication", 2008), the left one is read where it is, or laid out in
 * blocks of rows where that pays.
 */
enum { RATE = 160 / sizeof(REAL) }; /* about how many terms are added up in a nanosecond */
enum { HIGH = BYTES == 64 ? 12 : 6, DEEP = 256, GROUP = 16, BROAD = 4096 };

/* A product over a part of k. Strides: of A down and right, of B, of C down. */
typedef struct {
    const REAL *a, *b;
    REAL *c, *panels, *rooms; /* rooms: for blocks of A, `room` elements for each thread */
    int64 m, n, depth, ai, ap, bp, bj, ci, room, blocks, height, higher, together;
    bool more, packs, in_place, by_rows; /* more: adds to C; in_place: B needs no panels */
} Part;

/* Where block b of rows of A begins: all have `height` rows, the first `higher` one more. */
INLINE int64 begin(const Part *p, int64 b) { return p->height * b + least(b, p->higher); }

static int make_panels(const void *part, int64 from, int64 to, int64 member) {
    const Part *p = part;
    for (int64 n = from; n < to; n++) {
        const int64 wide = least(PANEL, p->n - n * PANEL);
        const REAL *b = p->b + n * PANEL * p->bj;
        REAL *goal = p->panels + n * PANEL * p->depth;
        if (wide < PANEL) memset(goal, 0, PANEL * p->depth * sizeof(REAL));
        if (p->bj == 1 && n + 4 <= to && p->n >= (n + 4) * PANEL) {
            for (int64 k = 0; k < p->depth; k++, goal += PANEL, b += p->bp)
                EACH(q, 4) memcpy(goal + q * PANEL * p->depth, b + q * PANEL, PANEL * sizeof(REAL));
            n += 3;
        } else if (wide == PANEL && p->bj == 1)
            for (int64 k = 0; k < p->depth; k++, goal += PANEL, b += p->bp)
                memcpy(goal, b, PANEL * sizeof(REAL));
        else if (p->bj == 1)
            for (int64 k = 0; k < p->depth; k++, goal += PANEL, b += p->bp)
                for (int64 j = 0; j < wide; j++) goal[j] = b[j];
        else {
            const int64 whole = wide == PANEL && p->bp == 1 ? p->depth / WIDE * WIDE : 0;
            for (int64 k = 0; k < whole; k += WIDE)
                for (int64 j = 0; j < PANEL; j += WIDE)
                    turn(b + j * p->bj + k, p->bj, goal + k * PANEL + j, PANEL);
            for (int64 j = 0; j < wide; j++, b += p->bj)
                for (int64 k = whole; k < p->depth; k++) goal[k * PANEL + j] = b[k * p->bp];
        }
    }
    return 0;
}

static void make_blocks(const Part *p, int64 from, int64 to, REAL *goal) {
    const int64 ai = p->ai, ap = p->ap, size = HIGH * p->depth;
    for (int64 b = from; b < to; b++) {
        const int64 i = begin(p, b), rows = begin(p, b + 1) - i;
        const REAL *a = p->a + i * ai;
        if (ai == 1 && b + 4 <= to && begin(p, b + 4) - i == 4 * HIGH) {
            /* Four blocks have what is in one line of the cache. */
            for (int64 k = 0; k < p->depth; k++, a += ap, goal += HIGH)
                EACH(q, 4) memcpy(goal + q * size, a + q * HIGH, HIGH * sizeof(REAL));
            goal += 3 * size;
            b += 3;
        } else if (rows == HIGH)
            for (int64 k = 0; k < p->depth; k++, a += ap) EACH(r, HIGH) *goal++ = a[r * ai];
        else
            for (int64 k = 0; k < p->depth; k++, a += ap)
                for (int64 r = 0; r < rows; r++) *goal++ = a[r * ai];
    }
}

INLINE void tile(const int rows, const int wide, const Part *p, const REAL *a, int64 ai, int64 ap,
                 const REAL *b, int64 bp, REAL *c, int64 ci, bool more) {
    V sums[HIGH][2];
    EACH(m, rows) __builtin_prefetch(c + m * ci, 1);
    EACH(m, rows) EACH(h, wide) sums[m][h] = all(0);
    for (int64 k = 0; k < p->depth; k++, a += ap, b += bp) {
        V read[2];
        EACH(h, wide) read[h] = *(const V *)(b + h * WIDE);
        EACH(m, rows) {
            V some = all(a[m * ai]);
            EACH(h, wide) sums[m][h] = times_plus(some, read[h], sums[m][h]);
        }
    }
    if (more) EACH(m, rows) EACH(h, wide) sums[m][h] = *(V *)(c + m * ci + h * WIDE) + sums[m][h];
    EACH(m, rows) EACH(h, wide) *(V *)(c + m * ci + h * WIDE) = sums[m][h];
}

static void tile_of(int64 rows, int64 wide, const Part *p, const REAL *a, int64 ai, int64 ap,
                    const REAL *b, int64 bp, REAL *c, int64 ci, bool more) {
#define CASE(high)                                                                                \
    case high:                                                                                    \
        if (wide == 1) tile(high, 1, p, a, ai, ap, b, bp, c, ci, more);                           \
        else if (ai == 1 && ap == high) tile(high, 2, p, a, 1, high, b, bp, c, ci, more);         \
        else tile(high, 2, p, a, ai, ap, b, bp, c, ci, more);                                     \
        break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#ifdef LONG
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

/* Some blocks of rows, `together` in a turn, or some panels. */
static int make_tiles(const void *part, int64 from, int64 to, int64 member) {
    const Part *p = part;
    const int64 panels = (p->n + PANEL - 1) / PANEL;
    const int64 first = p->by_rows ? from * p->together : 0;
    const int64 last = p->by_rows ? least(to * p->together, p->blocks) : p->blocks;
    const int64 left = p->by_rows ? 0 : from, right = p->by_rows ? panels : to;
    REAL *mine = p->rooms + member * p->room, edge[HIGH * PANEL];
    for (int64 group = first; group < last; group += GROUP) {
        const int64 stop = least(last, group + GROUP);
        if (p->packs) make_blocks(p, group, stop, mine);
        for (int64 j = left; j < right; j++) {
            const int64 columns = least(PANEL, p->n - j * PANEL), wide = columns > WIDE ? 2 : 1;
            const bool here = p->in_place && columns == PANEL;
            const REAL *b = here ? p->b + j * PANEL : p->panels + j * PANEL * p->depth, *block = mine;
            const int64 bp = here ? p->bp : PANEL;
            for (int64 n = group; n < stop; n++) {
                const int64 i = begin(p, n), rows = begin(p, n + 1) - i;
                const REAL *a = p->packs ? block : p->a + i * p->ai;
                const int64 ai = p->packs ? 1 : p->ai, ap = p->packs ? rows : p->ap;
                REAL *c = p->c + i * p->ci + j * PANEL;
                block += rows * p->depth;
                if (columns == wide * WIDE) {
                    tile_of(rows, wide, p, a, ai, ap, b, bp, c, p->ci, p->more);
                    continue;
                }
                tile_of(rows, wide, p, a, ai, ap, b, bp, edge, PANEL, false);
                for (int64 r = 0; r < rows; r++)
                    for (int64 x = 0; x < columns; x++) {
                        REAL *goal = c + r * p->ci + x, sum = edge[r * PANEL + x];
                        *goal = p->more ? *goal + sum : sum;
                    }
            }
        }
    }
    return 0;
}

/* C (m, n), whose rows are contiguous. Words: m, n, k; strides of A down and right, of B, of C down;
 * scratch memory and how many elements of it each thread has. member: which of several threads this
 * is; -1: the only one, which may share the work. */
void product(int64 *t, char *a, char *b, char *c, int64 member) {
    const int64 m = t[0], bp = t[5], bj = t[6], most = least(t[2], DEEP);
    REAL *room = (REAL *)t[8] + (member < 0 ? 0 : member) * t[9];
    Part p = {.m = m, .ai = t[3], .ap = t[4], .bp = bp, .bj = bj, .ci = t[7], .panels = room,
              .room = t[9], .blocks = (m + HIGH - 1) / HIGH};
    p.height = m / p.blocks;
    p.higher = m % p.blocks;
    p.together = p.blocks < 4 * GROUP ? 1 : GROUP / 2; /* panels may come from far away */
    p.packs = t[1] >= 384 && t[2] >= 384 || t[3] == 1 && t[1] >= 128;
    p.in_place = bj == 1 && (m <= 4 * HIGH || bp * most * sizeof(REAL) <= 1 << 14);
    for (int64 j = 0; j < t[1]; j += BROAD) {
        p.n = least(BROAD, t[1] - j);
        p.c = (REAL *)c + j;
        const int64 panels = (p.n + PANEL - 1) / PANEL;
        p.rooms = room + panels * PANEL * most;
        p.by_rows = p.blocks >= panels;
        for (int64 k = 0; k < t[2]; k += DEEP) {
            p.a = (REAL *)a + k * p.ap;
            p.b = (REAL *)b + k * bp + j * bj;
            p.depth = least(DEEP, t[2] - k);
            p.more = k;
            const int64 count = p.by_rows ? (p.blocks + p.together - 1) / p.together : panels;
            const int64 work = m * p.n * p.depth / RATE, copied = p.n * p.depth / 4;
            if (member < 0 && !p.in_place) split(make_panels, &p, panels, copied);
            else make_panels(&p, p.in_place ? p.n / PANEL : 0, panels, 0);
            if (member < 0) split(make_tiles, &p, count, work);
            else make_tiles(&p, 0, count, 0);
        }
    }
}

/* A product of a matrix and a vector. Where the elements of a sum are beside each other in memory, it
 * is LANES sums, added up by halves; else it is the sum of `product`. */
typedef struct {
    const REAL *a, *x;
    REAL *out;
    int64 count, depth, down, right, step, out_step;
} Vector;

enum { LANES = 64 / sizeof(REAL), STRIP = 512 };

INLINE void dots(const int rows, const Vector *v, const REAL *a, REAL *out) {
    V sums[4][LANES / WIDE];
    int64 k = 0, last = v->depth % LANES;
    EACH(r, rows) EACH(h, LANES / WIDE) sums[r][h] = all(0);
    for (; k + LANES <= v->depth; k += LANES)
        EACH(h, LANES / WIDE) {
            V x = *(const V *)(v->x + k + h * WIDE);
            EACH(r, rows) {
                V some = *(const V *)(a + r * v->down + k + h * WIDE);
                sums[r][h] = times_plus(some, x, sums[r][h]);
            }
        }
    for (int r = 0; r < rows; r++) {
        REAL lanes[LANES];
        EACH(h, LANES / WIDE) *(V *)(lanes + h * WIDE) = sums[r][h];
        for (int64 i = 0; i < last; i++) {
            REAL some = a[r * v->down + k + i], x = v->x[k + i];
            lanes[i] = sizeof(REAL) == 4 ? __builtin_fmaf(some, x, lanes[i]) : __builtin_fma(some, x, lanes[i]);
        }
        for (int far = LANES / 2; far; far /= 2)
            for (int i = 0; i < far; i++) lanes[i] += lanes[i + far];
        out[r * v->out_step] = lanes[0];
    }
}

static int make_dots(const void *words, int64 from, int64 to, int64 member) {
    const Vector *v = words;
    int64 i = from * 64, stop = least(to * 64, v->count);
    for (; i + 4 <= stop; i += 4) dots(4, v, v->a + i * v->down, v->out + i * v->out_step);
    for (; i < stop; i++) dots(1, v, v->a + i * v->down, v->out + i * v->out_step);
    return 0;
}

INLINE void add_rows(const int rows, const Vector *v, int64 k, int64 from, int64 count, REAL *sums) {
    const REAL *a = v->a + k * v->right + from, *x = v->x + k * v->step;
    V more[8];
    EACH(r, rows) more[r] = all(x[r * v->step]);
    for (int64 j = 0; j < count; j += WIDE) {
        V sum = *(V *)(sums + j);
        if (j + WIDE <= count)
            EACH(r, rows) sum = times_plus(more[r], *(const V *)(a + r * v->right + j), sum);
        else
            EACH(r, rows) {
                V some = all(0);
                memcpy(&some, a + r * v->right + j, (count - j) * sizeof(REAL));
                sum = times_plus(more[r], some, sum);
            }
        *(V *)(sums + j) = sum;
    }
}

static int make_sums(const void *words, int64 from, int64 to, int64 member) {
    const Vector *v = words;
    REAL sums[STRIP + WIDE];
    const int64 end = least(to * 64, v->count);
    for (int64 j = from * 64; j < end; j += STRIP) {
        const int64 count = least(STRIP, end - j);
        for (int64 start = 0; start < v->depth; start += DEEP) {
            const int64 stop = least(v->depth, start + DEEP);
            int64 k = start;
            memset(sums, 0, sizeof sums);
            for (; k + 8 <= stop; k += 8) add_rows(8, v, k, j, count, sums);
            for (; k < stop; k++) add_rows(1, v, k, j, count, sums);
            for (int64 i = 0; i < count; i++) {
                REAL *goal = v->out + (j + i) * v->out_step;
                *goal = start ? *goal + sums[i] : sums[i];
            }
        }
    }
    return 0;
}

/* Words: rows; their length; strides of the matrix down and right, one of which is 1, of the vector
 * and of the result. */
void matrix_vector(int64 *t, char *a, char *x, char *out, int64 member) {
    Vector v = {(REAL *)a, (REAL *)x, (REAL *)out, t[0], t[1], t[2], t[3], t[4], t[5]};
    const bool dots = t[3] == 1 && t[4] == 1;
    const int64 strips = (t[0] + 63) / 64;
    if (member < 0) split(dots ? make_dots : make_sums, &v, strips, t[0] * t[1] / 4);
    else (dots ? make_dots : make_sums)(&v, 0, strips, 0);
}
