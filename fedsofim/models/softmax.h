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

/* e^x for x in [-80, 80], to 1.2e-7 where it is at most 1; NaN stays NaN. */
INLINE NAME(lanes) NAME(exponential)(NAME(lanes) x)
{
    const float round = 12583039.0f; /* 1.5 * 2^23 + 127: adding it leaves the nearest integer */
    const NAME(lanes) shifted = x * 1.44269504f + round, f = x * 1.44269504f - (shifted - round);
    NAME(lanes) p = f * 1.3264669e-3f + 9.671518e-3f; /* 2^f for |f| <= 1/2, minimax, 1 at 0 */
    p = p * f + 5.550721e-2f;
    p = p * f + 2.4022244e-1f;
    p = p * f + 6.93147e-1f;
    p = p * f + 1.0f;
    return p * NAME(power_of_two)(shifted); /* its lowest bits are an exponent, 127 for 1 */
}

/* Logits become e_k, 0 where k is the label.

   The label's residual is minus the sum of the others' over the sum of all, so its norm loses nothing
   to cancellation; and exponentials below exp(-40) are exactly 0, so no square of one underflows. */
INLINE void NAME(exponentials)(NAME(Softmax) *s, float *z, Py_ssize_t stride, Py_ssize_t K)
{
    const NAME(ints) label = s->label;
    NAME(lanes) top = *(NAME(lanes) *)z, all = {0}, others = {0}, square = {0};
    for (Py_ssize_t k = 1; k < K; k++) {
        const NAME(lanes) row = *(NAME(lanes) *)(z + k * stride);
        top = NAME(larger)(top, row);
    }
    for (Py_ssize_t k = 0; k < K; k++, z += stride) {
        NAME(lanes) *row = (NAME(lanes) *)z;
        const NAME(lanes) x = *row - top, e = NAME(without)(x < -40.0f, NAME(exponential)(x));
        const NAME(lanes) o = NAME(without)(label == (int32_t)k, e);
        *row = o;
        all += e;
        others += o;
        square += o * o;
    }
    s->all = all, s->others = others, s->square = square + others * others;
}

/* Add the squares of some rows of R r to what they are in sum; left of the diagonal R is 0. */
INLINE void NAME(add_squares)(NAME(Softmax) *s, const float *z, Py_ssize_t stride, Py_ssize_t K,
                              const float *R, Py_ssize_t first, const int rows)
{
    NAME(lanes) sums[ROWS][SIDE] = {{{0}}};
    z += first * stride, R += first * K + first, K -= first;
#pragma GCC unroll 10
    for (int k = 0; k < rows; k++)
        for (int i = 0; i < SIDE; i++) {
            const NAME(lanes) last = NAME(only)(s[i].label == (int32_t)(first + k), s[i].others);
            const NAME(lanes) r = *(NAME(lanes) *)(z + k * stride + i * LANES) - last;
            for (int j = 0; j <= k; j++)
                sums[j][i] += R[j * (K + first) + k] * r;
        }
    for (Py_ssize_t k = rows; k < K; k++)
        for (int i = 0; i < SIDE; i++) {
            const NAME(lanes) last = NAME(only)(s[i].label == (int32_t)(first + k), s[i].others);
            const NAME(lanes) r = *(NAME(lanes) *)(z + k * stride + i * LANES) - last;
            for (int j = 0; j < rows; j++)
                sums[j][i] += R[j * (K + first) + k] * r;
        }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < rows; j++)
            s[i].square += sums[j][i] * sums[j][i];
}

/* The squared norms of R r, R being an upper triangle; squares may underflow, so a bit is added. */
INLINE void NAME(squares)(NAME(Softmax) *s, const float *z, Py_ssize_t stride, Py_ssize_t K,
                          const float *R)
{
    for (int i = 0; i < SIDE; i++)
        s[i].square = (NAME(lanes)){0} + FLT_MIN;
    for (Py_ssize_t k = 0, high; k < K; k += high) {
        high = tile_height(K, k, ROWS);
        OF_HEIGHT(high, NAME(add_squares), s, z, stride, K, R, k)
    }
}

/* What `exponentials` left becomes r * min(1, C / (the root of square / sum * norm)), or 0 where that
   norm is not finite, or so large that what is left of r would lose digits: where is returned. A norm
   that is NaN weighs 0; what is NaN itself stays. */
INLINE NAME(ints) NAME(weigh)(const NAME(Softmax) *s, float *z, Py_ssize_t stride, Py_ssize_t K,
                              const float *norm, float C)
{
    const float slack = 1.0f + (K + 4) * FLT_EPSILON; /* the sum of K squares may be too small by less */
    const NAME(ints) label = s->label;
    const NAME(lanes) size = NAME(root)(s->square * slack) * *(NAME(lanes) *)norm * (1.0f / C);
    const NAME(lanes) w = 1.0f / NAME(chosen)(size <= s->all, s->all, size); /* NaN if size is */
    const NAME(lanes) most = w * NAME(chosen)(s->others > 0.0f, s->others, (NAME(lanes)){0} + 1.0f); /* of what is left of r */
    const NAME(ints) kept = (most >= FLT_MIN / FLT_EPSILON) & (s->all <= FLT_MAX);
    const NAME(lanes) weight = NAME(only)(kept, w), last = NAME(only)(kept, s->others * w);
    for (Py_ssize_t k = 0; k < K; k++, z += stride) {
        NAME(lanes) *row = (NAME(lanes) *)z;
        *row = *row * weight - NAME(only)(label == (int32_t)k, last);
    }
    return kept;
}

/* Logits of n examples, K rows `stride` floats apart, become the residuals of clipped gradients, in place:

       r = softmax(z) - onehot(label),   r * min(1, C / (|R r| norm)),

   or 0 where that norm is not finite, or so large that what is left of r would lose digits; whether
   some is 0 for that reason is returned. R, (K, K), is an upper triangle, and n a multiple of SIDE
   vectors; NULL is the identity, and n a multiple of LANES. */
static int NAME(clip_residuals)(float *z, Py_ssize_t stride, Py_ssize_t K, Py_ssize_t n, const int32_t *label,
                                const float *norm, float C, const float *R)
{
    NAME(ints) kept = ~(NAME(ints)){0};
    for (Py_ssize_t i = 0; i < n; i += R ? SIDE * LANES : LANES) {
        NAME(Softmax) s[SIDE];
        const int side = R ? SIDE : 1;
        for (int j = 0; j < side; j++) {
            s[j].label = *(NAME(ints) *)(label + i + j * LANES);
            NAME(exponentials)(s + j, z + i + j * LANES, stride, K);
        }
        if (R)
            NAME(squares)(s, z + i, stride, K, R);
        for (int j = 0; j < side; j++)
            kept &= NAME(weigh)(s + j, z + i + j * LANES, stride, K, norm + i + j * LANES, C);
    }
    for (int i = 0; i < LANES; i++)
        if (!AT(kept, i)) {
            clean(z, stride, K, n);
            return 1;
        }
    return 0;
}

#undef AT
