/* Functions of one number, and powers, without a branch, so that a loop of them becomes vectors.
 *
 * Each is a reduction to a short interval, a polynomial there, and the exponent put in place by its
 * bits; both sides of a condition are computed and one is taken. The polynomials are minimax fits of
 * the relative error (of the absolute one where 1 - ... follows). Every operation is rounded by itself:
 * the bits are those of any compiler and any width of vectors. Not a number stays one, infinities,
 * zeros and subnormal numbers are as in C's library of mathematics. Bounds of errors, in units of the
 * last place, are in tests/capture/test_native_functions.py, which tries every float32.
 */
/* What stays a call ends vectors, so the compiler has no choice. */
#ifdef __GNUC__
#define FUNCTION static inline __attribute__((always_inline, unused))
#else
#define FUNCTION static inline
#endif

#define AS(name, from, to)                                                                        \
    FUNCTION to name(from x) {                                                                    \
        to y;                                                                                     \
        memcpy(&y, &x, sizeof y);                                                       \
        return y;                                                                                 \
    }
AS(bits_of_float32, float32, int32)
AS(float32_of, int32, float32)
AS(bits_of_float64, float64, int64)
AS(float64_of, int64, float64)

/* Adding it leaves a whole number in the last bits. */
#define SHIFT_float32 0x1.8p23f
#define SHIFT_float64 0x1.8p52

/* x = k log(2) + r; exp(r) = 1 + the result. */
FUNCTION float32 exp_of_float32(float32 x, int32 *k) {
    float32 shifted = x * 0x1.715476p0f + SHIFT_float32, n = shifted - SHIFT_float32;
    float32 high = x - n * 0x1.63p-1f, low = n * 0x1.bd0106p-13f, r = high + low;
    *k = bits_of_float32(shifted) - bits_of_float32(SHIFT_float32);
    low += high - r; /* what r has lost */
    return r + (low + r * r * (0.5f + r * (0.1666666716337204f + r * (0.041666265577077866f + r *
        (0.008333263918757439f + r * (0.0013946291292086244f + r * 0.00019918676116503775f))))));
}
FUNCTION float64 exp_of_float64(float64 x, int64 *k) {
    float64 shifted = x * 0x1.71547652b82fep0 + SHIFT_float64, n = shifted - SHIFT_float64;
    float64 r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    *k = bits_of_float64(shifted) - bits_of_float64(SHIFT_float64);
    return r + r * r * (0x1p-1 + r * (0x1.555555555555cp-3 + r * (0x1.555555555555ep-5 + r *
        (0x1.111111110eb20p-7 + r * (0x1.6c16c16c13491p-10 + r * (0x1.a01a01b3f4c18p-13 + r *
        (0x1.a01a01b498381p-16 + r * (0x1.71ddef01c59c2p-19 + r * (0x1.27e4beaf6274dp-22 + r *
        (0x1.af6dceb7689c8p-26 + r * 0x1.1f9ea8d856bfdp-29))))))))));
}

FUNCTION float32 two_to_float32(int32 k) { return float32_of((int32)((uint32)(k + 127) << 23)); }
FUNCTION float64 two_to_float64(int64 k) { return float64_of((int64)((uint64)(k + 1023) << 52)); }

/* f and e with x = (1 + f) 2^e, for a normal x above 0; from sqrt(1/2) to sqrt(2). */
FUNCTION float32 log_of_float32(float32 x, float32 e) {
    int32 i = (int32)((uint32)bits_of_float32(x) - 0x3F3504F3);
    float32 f = float32_of((i & 0x7FFFFF) + 0x3F3504F3) - 1, z = f * f;
    e += (float32)(i >> 23);
    float32 y = f * z * (0.3333331346511841f + f * (-0.25000008940696716f + f *
        (0.2000211924314499f + f * (-0.1666799634695053f + f * (0.14219552278518677f + f *
        (-0.124055877327919f + f * (0.11888159066438675f + f * (-0.11675655096769333f + f *
        0.06746651232242584f))))))));
    return (f + (y - e * 0x1.bd0106p-13f - 0.5f * z)) + e * 0x1.63p-1f;
}
FUNCTION float64 log_of_float64(float64 x, float64 e) {
    int64 i = (int64)((uint64)bits_of_float64(x) - 0x3FE6A09E667F3BCD);
    float64 f = float64_of((i & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD) - 1;
    uint64 whole = ((uint64)i + (2048ULL << 52)) >> 52; /* plus 2048 */
    e += float64_of((int64)whole + bits_of_float64(SHIFT_float64)) - (SHIFT_float64 + 2048);
    float64 s = f / (2 + f), z = s * s, half = 0.5 * f * f;
    float64 r = z * (0x1.5555555555555p-1 + z * (0x1.9999999999dfep-2 + z * (0x1.249249242b517p-2 +
        z * (0x1.c71c7258ea862p-3 + z * (0x1.745cde3ba0d28p-3 + z * (0x1.3b20aa87e9624p-3 + z *
        (0x1.0f5ce05598893p-3 + z * 0x1.0f623cfe11dd6p-3)))))));
    return e * 0x1.62e42feep-1 - ((half - (s * (half + r) + e * 0x1.a39ef35793c76p-33)) - f);
}

FUNCTION float32 tanh_of_float32(float32 x, float32 z) {
    return x + x * z * (-0.3333328366279602f + z * (0.13331490755081177f + z *
        (-0.05374349653720856f + z * (0.020650586113333702f + z * -0.005717043299227953f))));
}
FUNCTION float64 tanh_of_float64(float64 x, float64 z) {
    return x + x * z * (-0x1.5555555555503p-2 + z * (0x1.111111110b0c8p-3 + z *
        (-0x1.ba1ba1b5310d7p-5 + z * (0x1.664f4781f82efp-6 + z * (-0x1.226e16da1f0e1p-7 + z *
        (0x1.d6cf3ca80837dp-9 + z * (-0x1.7d696a881a721p-10 + z * (0x1.336ae67dba1a5p-11 + z *
        (-0x1.df7a8db1af80ep-13 + z * (0x1.43e17fe2b50eap-14 + z * -0x1.0e3d7438539d9p-16))))))))));
}

/* erf(x) for |x| < 1, with z = x x; erfc(a) from 1 on to where 1 - erfc(a) is 1. */
FUNCTION float32 erf_of_float32(float32 x, float32 z) {
    return x * (1.1283791065216064f + z * (-0.3761262595653534f + z * (0.1128358542919159f + z *
        (-0.026853812858462334f + z * (0.005188327748328447f + z * (-0.0008010194287635386f + z *
        7.853864372009411e-05f))))));
}
FUNCTION float64 erf_of_float64(float64 x, float64 z) {
    return x * (0x1.20dd750429b6dp+0 + z * (-0x1.812746b0379e6p-2 + z * (0x1.ce2f21a042b20p-4 + z *
        (-0x1.b82ce3128499dp-6 + z * (0x1.565bcd0db02efp-8 + z * (-0x1.c02db3d8ed426p-11 + z *
        (0x1.f9a321a121120p-14 + z * (-0x1.f4d1df3986c08p-17 + z * (0x1.b9def1a0c6c4ap-20 + z *
        (-0x1.5f1d36d8fc491p-23 + z * (0x1.f7a41315a439ap-27 + z * (-0x1.386ac3694843dp-30 + z *
        0x1.0579b177bb5c0p-34))))))))))));
}
FUNCTION float32 erfc_of_float32(float32 a) {
    float32 y = a > 4 ? 4 : a;
    y = -0.00018803631246555597f + y * (1.1295783519744873f + y * (0.6332198977470398f + y *
        (0.1084185466170311f + y * (-0.025208236649632454f + y * (0.004204554948955774f + y *
        (-0.0004413350543472916f + y * 2.168674473068677e-05f))))));
    int32 k;
    float32 p = exp_of_float32(-y, &k);
    return (1 + p) * two_to_float32(k);
}
FUNCTION float64 erfc_of_float64(float64 a) {
    float64 y = a > 6 ? 6 : a, t = (y - 2) / (y + 2);
    int64 k;
    float64 p = exp_of_float64(-y * y, &k);
    return (1 + p) * two_to_float64(k) * (0x1.058671b52c776p-2 + t * (-0x1.b57034efd3f4fp-2 + t *
        (0x1.eeea7dc8a77cdp-3 + t * (-0x1.437f0b68d12d2p-4 + t * (0x1.e947158a90ff3p-9 + t *
        (0x1.ca95eda2aed88p-8 + t * (-0x1.bc25893c769aap-11 + t * (-0x1.016b5cb8a6c27p-10 + t *
        (0x1.6d296ba17536fp-15 + t * (0x1.6d7eb30c5a066p-13 + t * (0x1.d0386fa8b2a45p-16 + t *
        (-0x1.bbbb23ca0dfd0p-16 + t * -0x1.a31aa4961e104p-17))))))))))));
}

/* The functions, for both types: `whole` is the integer of a type's size, `high` and `low` end what
 * exp has numbers for, `least` is its smallest normal number, from which on `gain` is 2^`up`, and
 * `none` is where 1 + x is 1. */
#define FUNCTIONS(real, f, whole, natural, high, low, bottom, least, gain, up, none)             \
    FUNCTION real mt_exp##f(real x) {                                                             \
        whole k, half;                                                                            \
        real y = x > high ? (real)high : x;                                                       \
        real p = exp_of_##real(y < low ? (real)low : y, &k);                                      \
        half = (whole)((natural)(k + 4096) >> 1) - 2048;  /* 2^k itself may be no number */       \
        return (1 + p) * two_to_##real(half) * two_to_##real(k - half);                           \
    }                                                                                             \
    FUNCTION real mt_expm1##f(real x) {                                                           \
        whole k;                                                                                  \
        real y = x > high ? (real)high : x;                                                       \
        real p = exp_of_##real(y < bottom ? (real)bottom : y, &k), half = two_to_##real(k - 1);   \
        return fabs##f(x) < none ? x : 2 * (half * p + (half - (real)0.5));             \
    }                                                                                             \
    FUNCTION real mt_log##f(real x) {                                                             \
        real y = log_of_##real(x < least ? x * gain : x, x < least ? -up : 0);                    \
        y = x < (real)Inf ? y : x;                                                                \
        return x > 0 ? y : x == 0 ? -(real)Inf : (real)NaN;                                       \
    }                                                                                             \
    FUNCTION real mt_log1p##f(real x) {                                                           \
        real u = 1 + x, lost = x - (u - 1), y = log_of_##real(u, 0);                              \
        y = u < (real)Inf ? y + lost / u : u;                                                     \
        y = u > 0 ? y : u == 0 ? -(real)Inf : (real)NaN;                                          \
        return fabs##f(x) < none ? x : y;                                               \
    }                                                                                             \
    FUNCTION real mt_tanh##f(real x) {                                                            \
        whole k;                                                                                  \
        real a = fabs##f(x), p = exp_of_##real(2 * (a > 22 ? 22 : a), &k);              \
        real y = 1 - 2 / ((1 + p) * two_to_##real(k) + 1);                                        \
        return copysign##f(a < (real)0.625 ? tanh_of_##real(a, a * a) : y, x);          \
    }                                                                                             \
    FUNCTION real mt_erf##f(real x) {                                                             \
        real a = fabs##f(x), y = 1 - erfc_of_##real(a);                                 \
        return a < 1 ? erf_of_##real(x, x * x) : copysign##f(y, x);                     \
    }
FUNCTIONS(float32, f, int32, uint32, 89, -104, -18, 0x1p-126f, 0x1p23f, 23, 0x1p-25f)
FUNCTIONS(float64, , int64, uint64, 710, -746, -38, 0x1p-1022, 0x1p52, 52, 0x1p-54)

/* Functions of float32 by way of float64, of which they need half the digits: what they give is off
 * by little more than the last rounding. 2^t; log2(x) for x above 0; and 1 / (1 + exp(-x)). Terms are
 * added in pairs, because a processor would wait for one after the other. */
FUNCTION float64 half_exp2(float64 t) {
    t = t > 200 ? 200 : t;
    t = t < -300 ? -300 : t;
    float64 shift = SHIFT_float64 + 1023, shifted = t + shift, r = t - (shifted - shift), z = r * r;
    return float64_of((int64)((uint64)bits_of_float64(shifted) << 52)) * ((1 + r * 0x1.62e431172f3eap-1) + z *
        ((0x1.ebfbe2c44f629p-3 + r * 0x1.c6ae72e1adefep-5) + z *
        ((0x1.3b270eff46e90p-7 + r * 0x1.5f727646c81c9p-10) + z * 0x1.470ae518425eep-13)));
}
FUNCTION float64 half_log2(float64 x) {
    int64 i = (int64)((uint64)bits_of_float64(x) - 0x3FE6A09E667F3BCD);
    float64 f = float64_of((i & 0xFFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD) - 1;
    uint64 whole = ((uint64)i + (2048ULL << 52)) >> 52; /* plus 2048 */
    float64 e = float64_of((int64)whole + bits_of_float64(SHIFT_float64)) - (SHIFT_float64 + 2048);
    float64 s = f / (2 + f), z = s * s, zz = z * z;
    return e + s * ((0x1.71547652bedf3p+1 + z * 0x1.ec709d12cf29cp-1) + zz *
        ((0x1.27777fe8f7afbp-1 + z * 0x1.a58d888300de8p-2) + zz * 0x1.5ce85a622fc37p-2));
}
FUNCTION float64 half_sigmoid(float64 x) {
    float64 e = half_exp2(x * 0x1.71547652b82fep0);
    return e / (1 + e);
}
FUNCTION float32 mt_sigmoidf(float32 x) { return (float32)half_sigmoid(x); }
FUNCTION float32 mt_siluf(float32 x) {
    float32 y = x < -200 ? -200 : x; /* it is 0 there, and infinity times 0 is no number */
    return (float32)(y * half_sigmoid(x));
}
FUNCTION float32 mt_powf(float32 x, float32 y) {
    /* What y alone says is in bits: gcc makes no vectors of choices by what is the same for all x. */
    float32 whole = rintf(y), half = y * 0.5f;
    int32 one = 0x3F800000, none = 0x7FC00000; /* 1, and no number */
    int32 odd = (int32)((uint32)((whole == y) & (rintf(half) != half)) << 31) | one;
    float32 of_end = float32_of(odd), of_negative = float32_of(odd | (-(whole != y) & none));
    float32 of_none = float32_of(one | (-(y != 0) & none));
    float32 a = fabsf(x), far = y * 1e38f * 1e38f; /* the logarithm of an end is finite */
    int32 end = (a == 0) | (a == (float32)Inf);
    float32 p = (float32)half_exp2((end ? far : y) * half_log2(a));
    p = a == 1 ? 1 : p; /* also to infinity */
    p = bits_of_float32(x) < 0 ? p * (end ? of_end : of_negative) : p;
    return x != x ? of_none : p;
}

/* The sine of |x| and some quarters of a turn. 1 / (2 pi) comes in pieces of 29 bits, whose products
 * with a float32 are exact, so that whole turns come off each of them, however large x is. */
FUNCTION float32 sine_of_float32(float32 x, int64 quarters) {
    float64 a = fabsf(x), t0 = a * 0x1.45f306cp-3, t1 = a * 0x1.c9c882ap-31;
    float64 t2 = a * 0x1.4fe13a8p-61, t3 = a * 0x1.f47d4d3p-88, t4 = a * 0x1.dc0db62p-118;
    float64 turns = ((t0 - rint(t0)) + (t1 - rint(t1))) +
        ((t2 - rint(t2)) + (t3 - rint(t3))) +
        ((t4 - rint(t4)) + a * 0x1.2b32788720840p-147);
    float64 shifted = turns + SHIFT_float64 / 4; /* quarters are in the last bits */
    float64 r = (turns - (shifted - SHIFT_float64 / 4)) * 0x1.921fb54442d18p2, z = r * r;
    int64 k = bits_of_float64(shifted) + quarters;
    float64 s = r + r * z * (-0x1.555545258f17fp-3 + z * (0x1.11073a89c5c9cp-7 + z *
        -0x1.9943b68187d0ap-13));
    float64 c = (1 + z * -0x1.ffffffcb7d9d3p-2) + z * z * (0x1.55553c76b12c7p-5 + z *
        (-0x1.6c07f0a70c092p-10 + z * 0x1.991671e3fa071p-16));
    float64 y = k & 1 ? c : s;
    return (float32)float64_of(bits_of_float64(y) ^ (int64)((uint64)(k & 2) << 62));
}
FUNCTION float32 mt_sinf(float32 x) {
    int32 sign = bits_of_float32(x) & INT32_MIN;
    return float32_of(bits_of_float32(sine_of_float32(x, 0)) ^ sign);
}
FUNCTION float32 mt_cosf(float32 x) { return sine_of_float32(x, 1); }
/* Those of float64 are the library's: there is no wider type to go by. */
#define mt_sin sin
#define mt_cos cos
#define mt_pow pow

/* Division as NumPy has it: rounded down, what is left has the sign of the divisor; of whole numbers
 * by 0 it is 0. Alone `fmod` is C's, whose rest has the sign of what is divided. */
#define DIVISION_OF_FLOATS(t, f)                                                                  \
    FUNCTION t mt_remainder_##t(t x, t y) {                                                       \
        t r = fmod##f(x, y);                                                                      \
        if (y == 0) return r;                                                                     \
        return r == 0 ? copysign##f(0, y) : (r < 0) != (y < 0) ? r + y : r;                       \
    }                                                                                             \
    FUNCTION t mt_floor_divide_##t(t x, t y) {                                                    \
        t r = fmod##f(x, y), q = (x - r) / y, whole;                                              \
        if (y == 0) return x / y;                                                                 \
        q -= (t)(r != 0 && (r < 0) != (y < 0));                                                   \
        whole = floor##f(q);                                                                      \
        return q == 0 ? copysign##f(0, x / y) : q - whole > (t)0.5 ? whole + 1 : whole;           \
    }
DIVISION_OF_FLOATS(float32, f)
DIVISION_OF_FLOATS(float64, )

#define DIVISION_OF_WHOLE(t)                                                                      \
    FUNCTION int is_minus_one_##t(t y) { return (t)-1 < 1 && y == (t)-1; }                        \
    FUNCTION t mt_fmod_##t(t x, t y) { return y == 0 || is_minus_one_##t(y) ? 0 : (t)(x % y); }   \
    FUNCTION int is_above_##t(t x, t y) {                                                         \
        t r = mt_fmod_##t(x, y);                                                                  \
        return r != 0 && (r > 0) != (y > 0);                                                      \
    }                                                                                             \
    FUNCTION t mt_remainder_##t(t x, t y) {                                                       \
        return (t)(mt_fmod_##t(x, y) + (is_above_##t(x, y) ? y : 0));                             \
    }                                                                                             \
    FUNCTION t mt_floor_divide_##t(t x, t y) {                                                    \
        if (y == 0) return 0;                                                                     \
        return is_minus_one_##t(y) ? (t)(0 - (uint64)x) : (t)(x / y - is_above_##t(x, y));        \
    }
DIVISION_OF_WHOLE(int8)
DIVISION_OF_WHOLE(int16)
DIVISION_OF_WHOLE(int32)
DIVISION_OF_WHOLE(int64)
DIVISION_OF_WHOLE(uint8)
DIVISION_OF_WHOLE(uint32)
DIVISION_OF_WHOLE(uint64)
