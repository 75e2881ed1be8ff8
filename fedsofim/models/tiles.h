/* The clipped gradient sum of one head over a chunk of a client's examples, for one kind of CPU:
   whole.c includes this once a kind, with

       NAME(f)   the name of a function for it,
       LANES     how many numbers it works on at once,
       SIDE      a tile of ROWS sums by so many vectors stays in its registers.

   A block of examples is read from memory once, for both products, and not copied, as BLAS would. */

typedef float NAME(lanes) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* z = theta x for a tile's rows, from feature `first` on, where z is what came before, else 0. */
INLINE void NAME(forward)(float *z, const float *theta, Py_ssize_t W, const float *x,
                          Py_ssize_t stride, Py_ssize_t first, Py_ssize_t n, const int rows)
{
    const Py_ssize_t last = W - first < PANEL ? W : first + PANEL;
    for (Py_ssize_t start = 0; start < n; start += SIDE * LANES) {
        NAME(lanes) sums[ROWS][SIDE];
        const float *at = x + first * stride + start;
        for (int j = 0; j < rows; j++)
            for (int i = 0; i < SIDE; i++)
                sums[j][i] = first ? *(NAME(lanes) *)(z + j * BLOCK + start + i * LANES)
                                   : (NAME(lanes)){0};
        for (Py_ssize_t f = first; f < last; f++, at += stride) {
            NAME(lanes) row[SIDE];
            for (int i = 0; i < SIDE; i++) {
                row[i] = *(const NAME(lanes) *)(at + i * LANES);
                PREFETCH(at + i * LANES + AHEAD);
            }
            for (int j = 0; j < rows; j++)
                for (int i = 0; i < SIDE; i++)
                    sums[j][i] += theta[j * W + f] * row[i];
        }
        for (int j = 0; j < rows; j++)
            for (int i = 0; i < SIDE; i++)
                *(NAME(lanes) *)(z + j * BLOCK + start + i * LANES) = sums[j][i];
    }
}

/* sums += z x' for a tile: so many rows of z and features, lane by lane. */
INLINE void NAME(tile)(NAME(lanes) *sums, const float *z, const float *x, Py_ssize_t stride,
                       Py_ssize_t n, const int rows, const int features)
{
    NAME(lanes) s[SIDE][ROWS];
    for (int i = 0; i < features; i++)
        for (int j = 0; j < rows; j++)
            s[i][j] = sums[i * rows + j];
    for (Py_ssize_t start = 0; start < n; start += LANES) {
        NAME(lanes) row[SIDE];
        for (int i = 0; i < features; i++)
            row[i] = *(const NAME(lanes) *)(x + i * stride + start);
        for (int j = 0; j < rows; j++) {
            const NAME(lanes) r = *(const NAME(lanes) *)(z + j * BLOCK + start);
            for (int i = 0; i < features; i++)
                s[i][j] += r * row[i];
        }
    }
    for (int i = 0; i < features; i++)
        for (int j = 0; j < rows; j++)
            sums[i * rows + j] = s[i][j];
}

/* Either product for so many rows: z = theta x, or sums += z x'. */
INLINE void NAME(some_rows)(int back, float *z, float *sums, const float *theta, Py_ssize_t W,
                       const float *x, Py_ssize_t stride, Py_ssize_t n, const int rows)
{
    NAME(lanes) *const s = (NAME(lanes) *)sums;
    Py_ssize_t f = 0;
    if (!back)
        for (; f < W; f += PANEL)
            NAME(forward)(z, theta, W, x, stride, f, n, rows);
    for (; f + SIDE <= W; f += SIDE)
        NAME(tile)(s + f * rows, z, x + f * stride, stride, n, rows, SIDE);
    for (; f < W; f++)
        NAME(tile)(s + f * rows, z, x + f * stride, stride, n, rows, 1);
}

/* Either product for all K rows, in tiles as even as can be. */
static void NAME(product)(int back, float *z, float *sums, const float *theta, Py_ssize_t K,
                          Py_ssize_t W, const float *x, Py_ssize_t stride, Py_ssize_t n)
{
    for (Py_ssize_t k = 0, high; k < K; k += high) {
        high = tile_height(K, k);
        switch (high) {
#define CASE(rows)                                                                              \
    case rows:                                                                                  \
        NAME(some_rows)(back, z + k * BLOCK, sums + k * W * LANES, theta + k * W, W, x, stride, n, rows); \
        break
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
            CASE(5);
            CASE(6);
            CASE(7);
            CASE(8);
            CASE(9);
            CASE(10);
#undef CASE
        }
    }
}

/* Logits to the residuals of clipped gradients; whether some was too large, and so is 0. */
static int NAME(residuals)(const Room *room, const Work *w, Py_ssize_t head, const Block *b)
{
    int lost = 0;
    for (Py_ssize_t i = 0; i < b->n; i += NEAR) {
        const int n = (int)(b->n - i < NEAR ? b->n - i : NEAR);
        const Near near = {room->z + i, b->target + i, BLOCK, b->target_stride, w->K, n};
        Softmax s;
        exponentials(&s, &near);
        if (w->U) {
            fill_labels(&s, &near);
            NAME(product)(0, room->u, NULL, w->U + head * w->K * w->K, w->K, w->K, near.z, BLOCK, n);
            squares(&s, room->u, BLOCK, w->K, n);
        }
        lost |= weigh(&s, &near, b->norm + i, w->clip[head]);
    }
    return lost;
}

/* Add what a block of examples comes to, to the lanes of sums. */
static void NAME(add_block)(const Room *room, const Work *w, Py_ssize_t head, const Block *b)
{
    const Py_ssize_t K = w->K, W = w->W;
    NAME(product)(0, room->z, NULL, w->theta + head * K * W, K, W, b->x, b->x_stride, b->n);
    if (!NAME(residuals)(room, w, head, b))
        NAME(product)(1, room->z, room->sums, NULL, K, W, b->x, b->x_stride, b->n);
    else
        for (Py_ssize_t i = 0; i < b->n; i += STEP) { /* 0 times infinity is not 0 */
            copy_finite(room->x, b->x + i, b->x_stride, W);
            NAME(product)(1, room->z + i, room->sums, NULL, K, W, room->x, STEP, STEP);
        }
}

/* Add the sums of a chunk, whose lanes are added up, to total, (K, W). */
static void NAME(add_chunk)(float *total, const Room *room, const Work *w, Py_ssize_t head,
                            Py_ssize_t start, Py_ssize_t end)
{
    memset(room->sums, 0, w->K * w->W * LANES * sizeof(float));
    while (start < end) {
        const Block b = block(room, w, start, end);
        NAME(add_block)(room, w, head, &b);
        start += b.n;
    }
    const float *sums = room->sums;
    for (Py_ssize_t k = 0, high; k < w->K; k += high) {
        high = tile_height(w->K, k);
        for (Py_ssize_t f = 0; f < w->W; f++)
            for (Py_ssize_t j = 0; j < high; j++, sums += LANES) {
                float s[LANES];
                memcpy(s, sums, sizeof s);
                fold(s, LANES == 16 ? 8 : 0);
                fold(s, LANES >= 8 ? 4 : 0);
                fold(s, 2);
                fold(s, 1);
                total[(k + j) * w->W + f] += s[0];
            }
    }
}
