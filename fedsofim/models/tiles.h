/* The clipped gradient sum of one head over some examples of a client, for one kind of CPU: client.c
   includes this once a kind, with

       NAME(f)   the name of a function for it,
       LANES     how many numbers it works on at once,
       ROWS      a tile of so many rows by SIDE vectors of sums stays in its registers.

   Features are read from memory once, for both products, and not copied, as BLAS would. */

#if LANES == 1
typedef float NAME(lanes);
#else
typedef float NAME(lanes) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#endif

/* Call a function for a tile's height, which it is compiled for. */
#if ROWS == 6
#define OF_HEIGHT OF_SIX
#else
#define OF_HEIGHT OF_TEN
#endif

#include "softmax.h"

/* c = a b for a tile's rows and PANEL rows of b from `first` on; c is what came before, else 0. */
INLINE void NAME(forward)(const Product *p, float *c, const float *a, Py_ssize_t first,
                          const int rows)
{
    const Py_ssize_t last = p->b_rows - first < PANEL ? p->b_rows : first + PANEL;
    for (Py_ssize_t start = 0; start < p->n; start += SIDE * LANES) {
        NAME(lanes) sums[ROWS][SIDE], *at[ROWS];
        const float *b = p->b + first * p->b_stride + start;
        for (int j = 0; j < rows; j++) {
            at[j] = (NAME(lanes) *)(c + j * p->c_stride + start);
            for (int i = 0; i < SIDE; i++)
                sums[j][i] = first ? at[j][i] : (NAME(lanes)){0};
        }
        for (Py_ssize_t f = first; f < last; f++, b += p->b_stride) {
            const NAME(lanes) *row = (const NAME(lanes) *)b;
            PREFETCH(b + AHEAD);
            if (SIDE * LANES > LINE)
                PREFETCH(b + AHEAD + LINE);
            for (int j = 0; j < rows; j++)
                for (int i = 0; i < SIDE; i++)
                    sums[j][i] += a[j * p->a_stride + f] * row[i];
        }
        for (int j = 0; j < rows; j++)
            for (int i = 0; i < SIDE; i++)
                at[j][i] = sums[j][i];
    }
}

/* c += a b' for so many rows of a and, from f on, of b, lane by lane. */
INLINE void NAME(tile)(const Product *p, NAME(lanes) *c, const float *a, Py_ssize_t f,
                       const int rows, const int b_rows)
{
    NAME(lanes) s[SIDE][ROWS];
    const float *b = p->b + f * p->b_stride;
    c += f * rows;
    for (int i = 0; i < b_rows; i++)
        for (int j = 0; j < rows; j++)
            s[i][j] = c[i * rows + j];
    for (Py_ssize_t n = 0; n < p->n; n += LANES) {
        NAME(lanes) row[SIDE];
        for (int i = 0; i < b_rows; i++)
            row[i] = *(const NAME(lanes) *)(b + i * p->b_stride + n);
        for (int j = 0; j < rows; j++) {
            NAME(lanes) factor = *(const NAME(lanes) *)(a + j * p->a_stride + n);
            KEEP(factor);
            for (int i = 0; i < b_rows; i++)
                s[i][j] += factor * row[i];
        }
    }
    for (int i = 0; i < b_rows; i++)
        for (int j = 0; j < rows; j++)
            c[i * rows + j] = s[i][j];
}

/* Either product for a tile's rows, from row k on. */
INLINE void NAME(some_rows)(const Product *p, int back, Py_ssize_t k, const int rows)
{
    const float *a = p->a + k * p->a_stride;
    NAME(lanes) *sums = (NAME(lanes) *)p->c + k * p->b_rows;
    Py_ssize_t f = 0;
    if (!back)
        for (; f < p->b_rows; f += PANEL)
            NAME(forward)(p, p->c + k * p->c_stride, a, f, rows);
    for (; f + SIDE <= p->b_rows; f += SIDE)
        NAME(tile)(p, sums, a, f, rows, SIDE);
    for (; f < p->b_rows; f++)
        NAME(tile)(p, sums, a, f, rows, 1);
}

/* Either product for all rows of a, in tiles as even as can be. */
static void NAME(product)(const Product *p, int back)
{
    for (Py_ssize_t k = 0, high; k < p->a_rows; k += high) {
        high = tile_height(p->a_rows, k, ROWS);
        OF_HEIGHT(high, NAME(some_rows), p, back, k)
    }
}

/* Logits of a block in room->z become residuals of clipped gradients; whether some was too large, so 0. */
static int NAME(clipped)(const Room *room, const Work *w, Py_ssize_t head, const Block *b)
{
    const float *R = w->R ? w->R + head * w->K * w->K : NULL;
    return NAME(clip_residuals)(room->z, ROW, w->K, b->n, b->label, b->norm, w->clip[head], R);
}

/* Write the residuals of a block's clipped gradients to room->z; whether some was too large, so 0. */
static int NAME(residuals)(const Room *room, const Work *w, Py_ssize_t head, const Block *b)
{
    const Py_ssize_t K = w->K, W = w->W;
    NAME(product)(&(Product){w->theta + head * K * W, b->x, room->z, K, W, b->n, W, b->x_stride, ROW}, 0);
    return NAME(clipped)(room, w, head, b);
}

/* Add what a block of examples comes to, to the lanes of sums. */
static void NAME(add_block)(const Room *room, const Work *w, Py_ssize_t head, const Block *b)
{
    Product back = {room->z, b->x, room->sums, w->K, w->W, b->n, ROW, b->x_stride, 0};
    if (w->moment)
        back.b = room->z, back.b_rows = w->K, back.b_stride = ROW;
    if (!NAME(residuals)(room, w, head, b) || w->moment) {
        NAME(product)(&back, 1);
        return;
    }
    for (Py_ssize_t i = 0; i < b->n; i += STEP) { /* 0 times infinity is not 0 */
        copy_finite(room->x, b->x + i, b->x_stride, w->W);
        back = (Product){room->z + i, room->x, room->sums, w->K, w->W, STEP, ROW, STEP, 0};
        NAME(product)(&back, 1);
    }
}

/* Add the sums of a chunk, whose lanes are added up, to total, (K, W); or the moment, (K, K). */
static void NAME(add_chunk)(float *total, const Room *room, const Work *w, Py_ssize_t head,
                            Py_ssize_t start, Py_ssize_t end)
{
    const float *sums = room->sums;
    const Py_ssize_t width = columns(w);
    memset(room->sums, 0, w->K * width * LANES * sizeof(float));
    while (start < end) {
        const Block b = block(room, w, start, end);
        NAME(add_block)(room, w, head, &b);
        start += b.n;
    }
    for (Py_ssize_t k = 0, high; k < w->K; k += high) {
        high = tile_height(w->K, k, ROWS);
        for (Py_ssize_t f = 0; f < width; f++)
            for (Py_ssize_t j = 0; j < high; j++, sums += LANES)
                total[(k + j) * width + f] += added_up(sums, LANES);
    }
}

/* Write features of few examples, rows of n, so that an example's are a row of `width`, filled up with 0.
   Four by four: behind the last example there may be some more. */
INLINE void NAME(turn)(float *to, Py_ssize_t width, const float *from, Py_ssize_t n, const Work *w)
{
    Py_ssize_t f = 0;
#ifdef SHUFFLE
    for (; f + 4 <= w->W; f += 4)
        for (Py_ssize_t i = 0; i < w->N; i += 4) {
            const float *x = from + f * n + i;
            float *row = to + i * width + f;
            const quad a = *(const quad *)x, b = *(const quad *)(x + n);
            const quad c = *(const quad *)(x + 2 * n), d = *(const quad *)(x + 3 * n);
            quad ac = SHUFFLE(a, c, 0, 4, 1, 5), bd = SHUFFLE(b, d, 0, 4, 1, 5);
            *(quad *)row = SHUFFLE(ac, bd, 0, 4, 1, 5);
            *(quad *)(row + width) = SHUFFLE(ac, bd, 2, 6, 3, 7);
            ac = SHUFFLE(a, c, 2, 6, 3, 7), bd = SHUFFLE(b, d, 2, 6, 3, 7);
            *(quad *)(row + 2 * width) = SHUFFLE(ac, bd, 0, 4, 1, 5);
            *(quad *)(row + 3 * width) = SHUFFLE(ac, bd, 2, 6, 3, 7);
        }
#endif
    for (; f < width; f++)
        for (Py_ssize_t i = 0; i < w->N; i++)
            to[i * width + f] = f < w->W ? from[f * n + i] : 0.0f;
}

/* Copy the features of few examples to rows of n. Beyond them stands what comes next, whose residuals
   nobody reads, or 0. */
INLINE void NAME(copy_few)(float *to, Py_ssize_t n, const Work *w)
{
    const Py_ssize_t last = w->x_stride > 0 ? (w->W - 1) * w->x_stride : 0; /* rows may go back */
    const Py_ssize_t end = last + w->N;
    for (Py_ssize_t f = 0; f < w->W; f++)
        for (Py_ssize_t i = 0; i < n; i += LANES, to += LANES) {
            const Py_ssize_t at = f * w->x_stride + i;
            if (at + LANES <= end)
                *(NAME(lanes) *)to = *(const NAME(lanes) *)(w->x + at);
            else
                for (Py_ssize_t j = 0; j < LANES; j++)
                    to[j] = at + j < end ? w->x[at + j] : 0.0f;
        }
}

/* c = a b for a tile's rows. They need not be filled up: what is written behind one is written again by
   the next, so the last columns come first. */
INLINE void NAME(few_rows)(const Product *p, Py_ssize_t k, const int rows)
{
    const float *a = p->a + k * p->a_stride;
    for (Py_ssize_t start = (p->n - 1) / LANES * LANES; start >= 0; start -= LANES) {
        Py_ssize_t left = (p->a_rows - k - 1) * p->c_stride + p->n - start;
        const float *b = p->b + start;
        float *c = p->c + k * p->c_stride + start;
        NAME(lanes) sums[ROWS];
        for (int j = 0; j < rows; j++)
            sums[j] = (NAME(lanes)){0};
        for (Py_ssize_t f = 0; f < p->b_rows; f++, b += p->b_stride) {
            const NAME(lanes) row = *(const NAME(lanes) *)b;
            for (int j = 0; j < rows; j++)
                sums[j] += a[j * p->a_stride + f] * row;
        }
        for (int j = 0; j < rows; j++, c += p->c_stride, left -= p->c_stride) {
            const NAME(lanes) sum = sums[j]; /* or all of them would be in memory */
            if (left >= LANES)
                *(NAME(lanes) *)c = sum;
            else
                memcpy(c, &sum, left * sizeof *c);
        }
    }
}

/* The same for all rows. */
static void NAME(few_product)(const Product *p)
{
    for (Py_ssize_t k = 0, high; k < p->a_rows; k += high) {
        high = tile_height(p->a_rows, k, ROWS);
        OF_HEIGHT(high, NAME(few_rows), p, k)
    }
}

/* Write the sums of few examples, one block, to total, (S, K, W). Their features are transposed, so
   that no lanes are to be added up, which would take longer than the product. */
static void NAME(add_small)(float *total, const Room *room, const Work *w)
{
    const Py_ssize_t K = w->K, W = w->W, n = rounded(w->N, LANES);
    const Py_ssize_t width = rounded(W, LANES);
    const Block b = {room->x, room->norm, room->label, n, n};
    int clean = 0;
    NAME(copy_few)(room->x, n, w);
    NAME(turn)(room->x_t, width, room->x, n, w);
    fill_up(room->norm, n, w->norm, 0, 1, w->N);
    fill_labels(room->label, n, w->label, w->N);
    for (Py_ssize_t head = 0; head < w->S; head++, total += K * W) {
        NAME(few_product)(&(Product){w->theta + head * K * W, room->x, room->z, K, W, n, W, n, ROW});
        if (NAME(clipped)(room, w, head, &b) && !clean++) /* 0 times infinity is not 0 */
            for (Py_ssize_t i = 0; i < w->N * width; i++)
                room->x_t[i] = isfinite(room->x_t[i]) ? room->x_t[i] : 0.0f;
        NAME(few_product)(&(Product){room->z, room->x_t, total, K, w->N, W, ROW, width, W});
    }
}

#undef OF_HEIGHT
