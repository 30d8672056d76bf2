/* Convolutions without a matrix of windows: a padded copy of one sample is read at many places.
 *
 * In that copy a row is followed by the next one, the elements between two strides are apart (in a
 * copy of their own), and zeros stand between rows and around. There the window at position p has
 * the element that belongs to number j of the kernel at base[j] + p, for all p, so a convolution is
 *
 *     out[m][p] = sum over j of weight[m][j] * copy[base[j] + p],
 *
 * sums of long vectors. Positions in the gap between two rows give sums that nobody copies out. The
 * gradient of an input is the same sum over the gradient; of a weight it is
 *
 *     out[m][j] = sum over p of gradient[m][p] * copy[base[j] + p],
 *
 * without the gaps, for many m at once.
 *
 * Every sum has one order, of fused multiplications and additions, whatever the width of vectors.
 * convolutions.py makes the tables.
 */
enum { MOST = 6, DEEP = 192, CHUNK = 256 };

/* A row, or a row and `more`; the last vector of it covers some of the one before. */
INLINE void row(const bool adds, REAL *goal, const REAL *from, int64 count, REAL more) {
    const int64 last = count - WIDE;
    if (last < 0)
        for (int64 i = 0; i < count; i++) goal[i] = adds ? from[i] + more : from[i];
    else
        for (int64 i = 0;; i = least(i + WIDE, last)) {
            V v = *(const V *)(from + i);
            if (adds) v += all(more);
            *(V *)(goal + i) = v;
            if (i == last) break;
        }
}

/* The padded copy of a sample. Words: how far channels are apart here and there; rows, their length,
 * the stride, parts; where each row goes (or -1); of each part its first element, how many it has,
 * and where in the row it goes. */
static void spread(const int64 *t, int64 channels, const REAL *x, REAL *to) {
    const int64 rows = t[2], length = t[3], stride = t[4], *places = t + 6, *parts = places + rows;
    for (int64 c = 0; c < channels; c++, x += t[0], to += t[1])
        for (int64 r = 0; r < rows; r++) {
            if (places[r] < 0) continue;
            for (const int64 *f = parts; f < parts + 3 * t[5]; f += 3) {
                const REAL *from = x + r * length + f[0];
                REAL *goal = to + places[r] + f[2];
                if (stride == 1) row(false, goal, from, f[1], 0);
                else for (int64 i = 0; i < f[1]; i++) goal[i] = from[i * stride];
            }
        }
}

/* Sums for some rows of weights and `wide` vectors of positions, `hop` apart in the copy and `by` in
 * the result, added to what is there if `more`, and then the bias to them if there is one. */
INLINE void tile(const int rows, const int wide, bool more, int64 depth, const REAL *w,
                 const int64 *base, const REAL *x, int64 hop, REAL *out, int64 apart, int64 by,
                 const REAL *bias) {
    V sums[MOST][MOST];
    EACH(m, rows) EACH(h, wide) sums[m][h] = more ? *(V *)(out + m * apart + h * by) : all(0);
    for (int64 j = 0; j < depth; j++, w += rows) {
        const REAL *from = x + base[j];
        if (rows > wide) {
            V read[MOST];
            EACH(h, wide) read[h] = *(const V *)(from + h * hop);
            EACH(m, rows) {
                V weight = all(w[m]);
                EACH(h, wide) sums[m][h] = times_plus(weight, read[h], sums[m][h]);
            }
        } else {
            V weight[MOST];
            EACH(m, rows) weight[m] = all(w[m]);
            EACH(h, wide) {
                V read = *(const V *)(from + h * hop);
                EACH(m, rows) sums[m][h] = times_plus(weight[m], read, sums[m][h]);
            }
        }
    }
    if (bias) EACH(m, rows) EACH(h, wide) sums[m][h] += all(bias[m]);
    EACH(m, rows) EACH(h, wide) *(V *)(out + m * apart + h * by) = sums[m][h];
}

/* Functions of their own, so that their loops have the registers to themselves. */
#define TILE(rows, wide)                                                                          \
    static __attribute__((noinline)) void tile_##rows##_##wide(                                   \
        bool more, int64 depth, const REAL *w, const int64 *base, const REAL *x, int64 hop,       \
        REAL *out, int64 apart, int64 by, const REAL *bias) {                                     \
        tile(rows, wide, more, depth, w, base, x, hop, out, apart, by, bias);                     \
    }
TILE(1, 6) TILE(2, 6) TILE(3, 4) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2)
TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1)

/* The same for all rows, in blocks of at most MOST, and for the whole depth. */
static void tiles(int wide, int64 rows, int64 depth, const REAL *w, const int64 *base,
                  const REAL *x, int64 hop, REAL *out, int64 apart, int64 by, const REAL *bias) {
    const int64 blocks = (rows + MOST - 1) / MOST, parts = (depth + DEEP - 1) / DEEP;
    for (int64 j = 0, deep, part = 0; part < parts; j += deep, part++) {
        const REAL *block = w;
        deep = depth / parts + (part < depth % parts);
        for (int64 b = 0, m = 0; b < blocks; b++) {
            const int64 high = rows / blocks + (b < rows % blocks);
            const REAL *more = bias && part == parts - 1 ? bias + m : 0;
#define CASE(high, wide)                                                                          \
    case high:                                                                                    \
        tile_##high##_##wide(j, deep, block + j * high, base + j, x, hop, out + m * apart, apart, \
                             by, more);                                                           \
        break;
            if (wide == 6) switch (high) { CASE(1, 6) CASE(2, 6) }
            else if (wide == 4) switch (high) { CASE(3, 4) }
            else if (wide == 2) switch (high) { CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2) }
            else switch (high) { CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1) }
            block += high * depth;
            m += high;
        }
    }
}

/* The weights of some rows beside each other, for each number of the kernel. */
static REAL *packed(const REAL *w, int64 rows, int64 apart, int64 depth, const int64 *from, REAL *to) {
    int64 blocks = (rows + MOST - 1) / MOST, m = 0;
    for (int64 b = 0; b < blocks; b++) {
        int64 size = rows / blocks + (b < rows % blocks);
        for (int64 j = 0; j < depth; j++)
            for (int64 i = 0; i < size; i++) *to++ = w[(m + i) * apart + from[j]];
        m += size;
    }
    return to;
}

/* A convolution of one group. */
typedef struct {
    const int64 *p, *first; /* the plan, its jobs */
    const REAL *input, *weights, *bias; /* the weights packed */
    REAL *result, *rooms;
    int64 room;
} Group;

/* Of some samples. */
static int samples_of(const void *words, int64 from, int64 to, int64 member) {
    const Group *group = words;
    const int64 *p = group->p, rows = p[7];
    const int64 wide = rows < 3 ? 6 : rows == 3 ? 4 : 2, step = wide * WIDE;
    const int64 whole = wide == 2 ? WIDE : step;
    REAL *copy = group->rooms + member * group->room, *strip = copy + p[10];
    memset(copy, 0, p[10] * sizeof(REAL));
    for (int64 sample = from; sample < to; sample++) {
        spread(p + 15, p[12], group->input + sample * p[2], copy);
        REAL *out = group->result + sample * p[5];
        if (p[13]) memset(out, 0, rows * p[9] * sizeof(REAL));
        const REAL *w = group->weights;
        const int64 *job = group->first;
        for (int64 n = 0; n < p[11]; n++, job += 6 + 2 * job[0] + job[1]) {
            const int64 depth = job[0], lines = job[1], count = job[2], apart = job[3];
            const int64 *base = job + 6, *goes = base + 2 * depth;
            /* Rows of whole vectors are summed where they belong. */
            bool direct = wide == 2 && job[4] == 1 && count % WIDE == 0;
            for (int64 i = 0; i < lines; i++) direct = direct && goes[i] >= 0;
            const int64 each = count / WIDE, vectors = direct ? lines * each : 0;
            for (int64 v = 0; v < vectors; v += 2) {
                const int64 next = v + 1 < vectors ? v + 1 : v;
                const int64 x = v / each * apart + v % each * WIDE;
                const int64 hop = next / each * apart + next % each * WIDE - x;
                const int64 y = goes[v / each] + v % each * WIDE;
                const int64 by = goes[next / each] + next % each * WIDE - y;
                tiles(hop ? 2 : 1, rows, depth, w, base, copy + x, hop, out + y, p[9], by,
                      group->bias);
            }
            for (int64 line = 0; !direct && line < lines; line += job[5]) {
                int64 some = least(lines - line, job[5]);
                int64 length = (some - 1) * apart + count;
                int64 size = (length + whole - 1) / whole * whole;
                for (int64 at = 0; at < length; at += step) {
                    const REAL *from = copy + line * apart + at;
                    const int now = size - at < step ? 1 : wide; /* a single vector is left */
                    tiles(now, rows, depth, w, base, from, WIDE, strip + at, size, WIDE, 0);
                }
                for (int64 m = 0; m < rows; m++)
                    for (int64 i = 0; i < some; i++) {
                        if (goes[line + i] < 0) continue;
                        const REAL *from = strip + m * size + i * apart;
                        REAL *goal = out + m * p[9] + goes[line + i];
                        REAL more = group->bias ? group->bias[m] : 0;
                        if (job[4] == 1) row(true, goal, from, count, more);
                        else for (int64 x = 0; x < count; x++) goal[x * job[4]] = from[x] + more;
                    }
            }
            w += rows * depth;
        }
    }
    return 0;
}

/* Words: the plan; scratch memory, of how many elements for each thread; the address of a bias or
 * 0; about how many nanoseconds it takes. The plan: samples; groups; how far samples and groups are
 * apart in the input, groups in the weight, both in the result; rows of weights, how far they are
 * apart in the weight and in the result; elements of the copy; jobs; channels; whether there are
 * elements of the result that are in no job, and are 0; how many words `spread` has, and these; of
 * each job the depth, rows of positions, how many of a row are wanted, how far rows are apart, how
 * far elements of the result, how many rows are done at a time; the bases, the places in the weight,
 * where each row goes (or -1). */
void convolution(int64 *t, char *input, char *weights, char *result, int64 member) {
    const int64 *p = (const int64 *)t[0], rows = p[7], *first = p + 15 + p[14];
    for (int64 g = 0; g < p[1]; g++) {
        const int64 *job = first;
        REAL *end = (REAL *)t[1];
        for (int64 n = 0; n < p[11]; n++, job += 6 + 2 * job[0] + job[1])
            end = packed((REAL *)weights + g * p[4], rows, p[8], job[0], job + 6 + job[0], end);
        Group group = {p, first, (REAL *)input + g * p[3], (REAL *)t[1],
                       t[3] ? (REAL *)t[3] + g * rows : 0, (REAL *)result + g * p[6], end, t[2]};
        split(samples_of, &group, p[0], t[4] / p[1]);
    }
}

/* Sums for some numbers of the kernel and the rows of a panel, over rows of positions from `from` to
 * `to`: where each begins in the copy is in `places`, for samples that are `apart`. */
INLINE void sums_of(const int high, const int wide, int64 from, int64 to, const int64 *places,
                    int64 rows, int64 apart, int64 width, const REAL *copy, const int64 *base,
                    const REAL *panel, REAL *out) {
    V sums[MOST][2];
    const REAL *x[MOST];
    EACH(j, high) x[j] = copy + base[j];
    EACH(j, high) EACH(h, wide) sums[j][h] = all(0);
    int64 sample = from / rows * apart, row = from % rows;
    for (int64 n = from; n < to; n++) {
        int64 p = sample + places[row];
        for (const int64 stop = p + width; p < stop; p++, panel += PANEL) {
            V read[2];
            EACH(h, wide) read[h] = *(const V *)(panel + h * WIDE);
            EACH(j, high) {
                V some = all(x[j][p]);
                EACH(h, wide) sums[j][h] = times_plus(some, read[h], sums[j][h]);
            }
        }
        if (++row == rows) row = 0, sample += apart;
    }
    EACH(j, high) EACH(h, wide) *(V *)(out + j * PANEL + h * WIDE) += sums[j][h];
}

#define SUMS(high, wide)                                                                          \
    static __attribute__((noinline)) void sums_##high##_##wide(                                   \
        int64 from, int64 to, const int64 *places, int64 rows, int64 apart, int64 width,          \
        const REAL *copy, const int64 *base, const REAL *panel, REAL *out) {                      \
        sums_of(high, wide, from, to, places, rows, apart, width, copy, base, panel, out);        \
    }
SUMS(1, 1) SUMS(2, 1) SUMS(3, 1) SUMS(4, 1) SUMS(5, 1) SUMS(6, 1)
SUMS(1, 2) SUMS(2, 2) SUMS(3, 2) SUMS(4, 2) SUMS(5, 2) SUMS(6, 2)

/* Some rows of `count` positions each as columns of a panel. */
static void panel_of(const REAL *gradient, int64 apart, int64 rows, int64 count, REAL *panel) {
    const int64 whole = count / WIDE * WIDE;
    if (rows < PANEL) memset(panel, 0, count * PANEL * sizeof(REAL));
    for (int64 m = 0; m < rows; m += WIDE) {
        const int64 some = least(WIDE, rows - m), start = some == WIDE ? whole : 0;
        const REAL *g = gradient + m * apart;
        for (int64 p = 0; p < start; p += WIDE) turn(g + p, apart, panel + p * PANEL + m, PANEL);
        for (int64 i = 0; i < some; i++)
            for (int64 p = start; p < count; p++) panel[p * PANEL + m + i] = g[i * apart + p];
    }
}

/* A gradient of weights, of which groups, channels and rows are done in parts. */
typedef struct {
    const int64 *p; /* the plan */
    const REAL *input, *gradient;
    REAL *result, *rooms;
    int64 room, slabs, bands;
} Weight;

/* Of some parts. */
static int weights_of(const void *words, int64 start, int64 stop, int64 member) {
    const Weight *w = words;
    const int64 *p = w->p, numbers = p[8], channels = p[9], slab = p[10], together = p[11];
    const int64 apart = p[12], size = p[13], lines = p[14], width = p[15], count = lines * width;
    const int64 *spreading = p + 17, *places = spreading + p[16], *base = places + lines;
    const int64 some_lines = CHUNK / width ? CHUNK / width : 1;
    REAL *copy = w->rooms + member * w->room, *panel = copy + size;
    REAL *sums = panel + some_lines * width * PANEL;
    memset(copy, 0, size * sizeof(REAL));
    for (int64 part = start; part < stop; part++) {
        const int64 band = part % w->bands, c = part / w->bands % w->slabs * slab;
        const int64 group = part / w->bands / w->slabs, first = p[7] * band / w->bands;
        const int64 rows = p[7] * (band + 1) / w->bands - first, panels = (rows + PANEL - 1) / PANEL;
        const int64 some = least(channels - c, slab), deep = some * numbers;
        memset(sums, 0, panels * deep * PANEL * sizeof(REAL));
        for (int64 n = 0; n < p[0]; n += together) {
            const int64 samples = least(p[0] - n, together);
            const REAL *x = w->input + n * p[2] + group * p[3] + c * spreading[0];
            const REAL *y = w->gradient + n * p[4] + group * p[5] + first * count;
            for (int64 s = 0; s < samples; s++) spread(spreading, some, x + s * p[2], copy + s * apart);
            for (int64 q = 0; q < panels; q++) {
                const int64 mine = least(PANEL, rows - q * PANEL), wide = mine > WIDE ? 2 : 1;
                for (int64 from = 0, to, next; from < samples * lines; from = to) {
                    to = least(samples * lines, from + some_lines);
                    for (int64 line = from; line < to; line = next) { /* of a sample */
                        const int64 s = line / lines, place = line % lines * width;
                        next = least(to, (s + 1) * lines);
                        panel_of(y + s * p[4] + q * PANEL * count + place, count, mine,
                                 (next - line) * width, panel + (line - from) * width * PANEL);
                    }
                    for (int64 j = 0, high; j < deep; j += high) {
                        const int64 left = (deep - j + MOST - 1) / MOST;
                        high = (deep - j + left - 1) / left;
                        REAL *goal = sums + (q * deep + j) * PANEL;
#define CASE2(high)                                                                               \
    case high:                                                                                    \
        (wide == 1 ? sums_##high##_1 : sums_##high##_2)(from, to, places, lines, apart, width,    \
                                                        copy, base + j, panel, goal);             \
        break;
                        switch (high) { CASE2(1) CASE2(2) CASE2(3) CASE2(4) CASE2(5) CASE2(6) }
                    }
                }
            }
        }
        REAL *out = w->result + group * p[6] + (first * channels + c) * numbers;
        for (int64 m = 0; m < rows; m++)
            for (int64 j = 0; j < deep; j++)
                out[m * channels * numbers + j] =
                    sums[(m / PANEL * deep + j) * PANEL + m % PANEL];
    }
    return 0;
}

/* Words: the plan; scratch memory, of how many elements for each thread; about how many nanoseconds
 * it takes. The plan: samples; groups; how far samples and groups are apart in the input and in the
 * gradient, groups in the result; rows of the gradient, numbers of the kernel in one channel;
 * channels, how many of them are done at a time; samples at a time, how far they are apart in a copy,
 * elements of all copies; rows of positions, their length; how many words `spread` has, these; where
 * each row of positions begins, the bases. */
void convolution_weight(int64 *t, char *gradient, char *input, char *result, int64 member) {
    const int64 *p = (const int64 *)t[0], slabs = (p[9] + p[10] - 1) / p[10], threads = members();
    /* A band of rows needs copies of its own, so there are no more than threads have use for. */
    const int64 parts = p[1] * slabs;
    const int64 wanted = threads < 2 || t[3] < 1 << 16 ? 1 : (2 * threads + parts - 1) / parts;
    const int64 bands = least(wanted < 1 ? 1 : wanted, (p[7] + PANEL - 1) / PANEL);
    Weight w = {p, (REAL *)input, (REAL *)gradient, (REAL *)result, (REAL *)t[1], t[2], slabs, bands};
    split(weights_of, &w, parts * bands, t[3]);
}
