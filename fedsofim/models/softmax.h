/* From logits to the residuals of clipped gradients, for one kind of CPU: tiles.h includes this, and says
   what NAME, LANES, SIDE and ROWS are. All that is known of an example stays in registers. */

#if LANES == 1
#define AT(v, i) (v)
typedef int32_t NAME(ints);
INLINE float NAME(only)(int where, float x) { return where ? x : 0.0f; }
INLINE float NAME(without)(int where, float x) { return where ? 0.0f : x; }
INLINE float NAME(chosen)(int where, float x, float other) { return where ? x : other; }
INLINE float NAME(power_of_two)(float shifted)
{
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits <<= 23;
    memcpy(&shifted, &bits, sizeof bits);
    return shifted;
}
#else
#define AT(v, i) (v)[i]
typedef int32_t NAME(ints) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define BITS(x) ((NAME(ints))(x))
INLINE NAME(lanes) NAME(only)(NAME(ints) where, NAME(lanes) x)
{
    return (NAME(lanes))(BITS(x) & where);
}
INLINE NAME(lanes) NAME(without)(NAME(ints) where, NAME(lanes) x)
{
    return (NAME(lanes))(BITS(x) & ~where);
}
INLINE NAME(lanes) NAME(chosen)(NAME(ints) where, NAME(lanes) x, NAME(lanes) other)
{
    return (NAME(lanes))((BITS(x) & where) | (BITS(other) & ~where));
}
INLINE NAME(lanes) NAME(power_of_two)(NAME(lanes) shifted)
{
    return (NAME(lanes))(BITS(shifted) << 23);
}
#undef BITS
#endif

INLINE NAME(lanes) NAME(larger)(NAME(lanes) x, NAME(lanes) other)
{
    NAME(lanes) r;
    for (int i = 0; i < LANES; i++)
        AT(r, i) = AT(x, i) < AT(other, i) ? AT(other, i) : AT(x, i);
    return r;
}

INLINE NAME(lanes) NAME(root)(NAME(lanes) x)
{
    NAME(lanes) r;
    for (int i = 0; i < LANES; i++)
        AT(r, i) = sqrtf(AT(x, i));
    return r;
}

/* What there is of LANES examples. With e_k = exp(z_k - max z): their sum, that of all but the label's,
   and the squared norm of the residual times the sum. */
typedef struct {
    NAME(ints) label;
    NAME(lanes) all, others, square;
} NAME(Softmax);

/* What row k has where row 0 has z; rows are `stride` floats apart. */
INLINE NAME(lanes) *NAME(row_of)(NAME(lanes) *z, Py_ssize_t k, Py_ssize_t stride)
{
    return (NAME(lanes) *)((float *)z + k * stride);
}

/* e^x for x in [-80, 80], to 1.2e-7 where it is at most 1; NaN stays NaN. */
INLINE void NAME(exponential)(NAME(lanes) *x, const int side)
{
    const float round = 12583039.0f; /* 1.5 * 2^23 + 127: adding it leaves the nearest integer */
    NAME(lanes) shifted[SIDE], p[SIDE];
    for (int i = 0; i < side; i++)
        shifted[i] = x[i] * 1.44269504f + round;
    for (int i = 0; i < side; i++)
        x[i] = x[i] * 1.44269504f - (shifted[i] - round);
    for (int i = 0; i < side; i++)
        p[i] = x[i] * 1.3264669e-3f + 9.671518e-3f; /* 2^x for |x| <= 1/2, minimax, 1 at 0 */
    for (int i = 0; i < side; i++)
        p[i] = p[i] * x[i] + 5.550721e-2f;
    for (int i = 0; i < side; i++)
        p[i] = p[i] * x[i] + 2.4022244e-1f;
    for (int i = 0; i < side; i++)
        p[i] = p[i] * x[i] + 6.93147e-1f;
    for (int i = 0; i < side; i++)
        p[i] = p[i] * x[i] + 1.0f;
    for (int i = 0; i < side; i++)
        x[i] = p[i] * NAME(power_of_two)(shifted[i]); /* its lowest bits are an exponent, 127 for 1 */
}

/* Logits become e_k, 0 where k is the label.

   The label's residual is minus the sum of the others' over the sum of all, so its norm loses nothing
   to cancellation; and exponentials below exp(-40) are exactly 0, so no square of one underflows. */
INLINE void NAME(exponentials)(NAME(Softmax) *s, NAME(lanes) *z, Py_ssize_t stride, Py_ssize_t K,
                               const int side)
{
    NAME(lanes) *row = z, top[SIDE], all[SIDE], others[SIDE], square[SIDE];
    NAME(ints) number = {0};
    for (int i = 0; i < side; i++)
        top[i] = row[i], all[i] = others[i] = square[i] = (NAME(lanes)){0};
    for (Py_ssize_t k = 1; k < K; k++) {
        row = NAME(row_of)(z, k, stride);
        for (int i = 0; i < side; i++)
            top[i] = NAME(larger)(top[i], row[i]);
    }
    for (Py_ssize_t k = 0; k < K; k++) { /* by itself: then its constants stay in registers */
        NAME(lanes) e[SIDE];
        NAME(ints) small[SIDE];
        row = NAME(row_of)(z, k, stride);
        for (int i = 0; i < side; i++)
            e[i] = row[i] - top[i], small[i] = e[i] < -40.0f;
        NAME(exponential)(e, side);
        for (int i = 0; i < side; i++)
            row[i] = NAME(without)(small[i], e[i]);
    }
    for (Py_ssize_t k = 0; k < K; k++, number += 1) {
        row = NAME(row_of)(z, k, stride);
        for (int i = 0; i < side; i++) {
            const NAME(lanes) e = row[i], o = NAME(without)(s[i].label == number, e);
            all[i] += e;
            others[i] += o;
            square[i] += o * o;
            row[i] = o;
        }
    }
    for (int i = 0; i < side; i++)
        s[i].all = all[i], s[i].others = others[i], s[i].square = square[i] + others[i] * others[i];
}

/* Add to the first rows of R r what row k of r makes of them; at first the label's residual is not in its
   place. Column k of R begins at R. */
INLINE void NAME(add_column)(NAME(lanes) (*sums)[SIDE], const NAME(Softmax) *s, NAME(lanes) *r, Py_ssize_t k,
                             const float *R, Py_ssize_t K, const int first, const int side, const int rows)
{
    for (int i = 0; first && i < side; i++)
        r[i] -= NAME(only)(s[i].label == (int32_t)k, s[i].others);
    for (int j = 0; j < rows; j++)
        for (int i = 0; i < side; i++)
            sums[j][i] += R[j * K] * r[i];
}

/* Add the squares of some rows of R r, from `begin` on, to what they are in sum; left of the diagonal R is
   0. The first rows see all of r, and put the label's residual into its place. */
INLINE void NAME(add_squares)(NAME(Softmax) *s, NAME(lanes) *z, Py_ssize_t stride, Py_ssize_t K,
                              const float *R, Py_ssize_t begin, const int first, const int side,
                              const int rows)
{
    NAME(lanes) sums[ROWS][SIDE] = {{{0}}};
    z = NAME(row_of)(z, begin, stride), R += begin * K + begin;
#pragma GCC unroll 10
    for (int k = 0; k < rows; k++)
        NAME(add_column)(sums, s, NAME(row_of)(z, k, stride), k, R + k, K, first, side, k + 1);
    for (Py_ssize_t k = rows; k < K - begin; k++)
        NAME(add_column)(sums, s, NAME(row_of)(z, k, stride), k, R + k, K, first, side, rows);
    for (int i = 0; i < side; i++)
        for (int j = 0; j < rows; j++)
            s[i].square += sums[j][i] * sums[j][i];
}

/* The squared norms of R r, R being an upper triangle; squares may underflow, so a bit is added. */
INLINE void NAME(squares)(NAME(Softmax) *s, NAME(lanes) *z, Py_ssize_t stride, Py_ssize_t K, const float *R,
                          const int side)
{
    Py_ssize_t k = tile_height(K, 0, ROWS);
    for (int i = 0; i < side; i++)
        s[i].square = (NAME(lanes)){0} + FLT_MIN;
    OF_HEIGHT(k, NAME(add_squares), s, z, stride, K, R, 0, 1, side)
    for (Py_ssize_t high; k < K; k += high) {
        high = tile_height(K, k, ROWS);
        OF_HEIGHT(high, NAME(add_squares), s, z, stride, K, R, k, 0, side)
    }
}

/* What there is of r, all but the label's or `complete`, becomes r * min(1, C / (the root of square / sum
   * norm)), or 0 where that norm is not finite, or so large that what is left of r would lose digits: where
   is returned. A norm that is NaN weighs 0; what is NaN itself stays. */
INLINE NAME(ints) NAME(weigh)(const NAME(Softmax) *s, NAME(lanes) *z, Py_ssize_t stride, Py_ssize_t K,
                              const NAME(lanes) *norm, float C, const int complete, const int side)
{
    const float slack = 1.0f + (K + 4) * FLT_EPSILON; /* the sum of K squares may be too small by less */
    const float per = C > 0.0f ? 1.0f / C : INFINITY; /* nothing is left by a clip that is not positive */
    const NAME(lanes) one = (NAME(lanes)){0} + 1.0f;
    NAME(lanes) weight[SIDE], last[SIDE];
    NAME(ints) all_kept = ~(NAME(ints)){0}, number = {0};
    for (int i = 0; i < side; i++) {
        const NAME(lanes) all = s[i].all, others = s[i].others;
        const NAME(lanes) size = NAME(root)(s[i].square * slack) * norm[i] * per;
        const NAME(lanes) w = 1.0f / NAME(chosen)(size <= all, all, size); /* NaN if size is */
        const NAME(lanes) most = w * NAME(chosen)(others > 0.0f, others, one); /* of what is left of r */
        const NAME(ints) kept = (most >= FLT_MIN / FLT_EPSILON) & (all <= FLT_MAX);
        weight[i] = NAME(only)(kept, w), last[i] = NAME(only)(kept, others * w);
        all_kept &= kept;
    }
    for (Py_ssize_t k = 0; k < K; k++, number += 1) {
        NAME(lanes) *row = NAME(row_of)(z, k, stride);
        for (int i = 0; i < side; i++) {
            row[i] *= weight[i];
            if (!complete)
                row[i] -= NAME(only)(s[i].label == number, last[i]);
        }
    }
    return all_kept;
}

/* Logits of n examples, K rows `stride` floats apart, become the residuals of clipped gradients, in place:

       r = softmax(z) - onehot(label),   r * min(1, C / (|R r| norm)),

   or 0 where that norm is not finite, or so large that what is left of r would lose digits; whether
   some is 0 for that reason is returned. R, (K, K), is an upper triangle, NULL for the identity; n is a
   multiple of LANES.

   What waits for one vector would keep the next from beginning, so each step is done for several. */
static int NAME(clip_residuals)(float *z, Py_ssize_t stride, Py_ssize_t K, Py_ssize_t n, const int32_t *label,
                                const float *norm, float C, const float *R)
{
    const Py_ssize_t vectors = n / LANES;
    NAME(ints) kept = ~(NAME(ints)){0};
    for (Py_ssize_t done = 0, count; done < vectors; done += count) {
        NAME(lanes) *some = (NAME(lanes) *)z + done, *norms = (NAME(lanes) *)norm + done;
        NAME(Softmax) s[SOME];
        count = vectors - done < SOME ? vectors - done : SOME;
        for (Py_ssize_t v = 0; v < count; v++)
            s[v].label = ((NAME(ints) *)label)[done + v];
        IN_TILES(v, count, NAME(exponentials)(s + v, some + v, stride, K, side))
        if (R) {
            IN_TILES(v, count, NAME(squares)(s + v, some + v, stride, K, R, side))
            IN_TILES(v, count, kept &= NAME(weigh)(s + v, some + v, stride, K, norms + v, C, 1, side))
        } else
            IN_TILES(v, count, kept &= NAME(weigh)(s + v, some + v, stride, K, norms + v, C, 0, side))
    }
    for (int i = 0; i < LANES; i++)
        if (!AT(kept, i)) {
            clean(z, stride, K, n);
            return 1;
        }
    return 0;
}

#undef AT
