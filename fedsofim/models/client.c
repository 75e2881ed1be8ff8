/* The clipped gradient sum of one client, for crowd.c.

   A client is worked on by itself and in one order, and a stack of heads one head after another: a
   sum has the same bits in every company, on every number of threads, and a head those it has alone. */

#include "kernel.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 512  /* examples whose logits stay in the L1 cache */
#define SIDE 2     /* vectors of a tile: with ROWS rows they stay in a CPU's registers */
#define ROW (BLOCK + LINE) /* floats between their rows: not all in the same places of a cache */
#define STEP 32    /* blocks are multiples of it; examples are filled up to it */
#define PANEL 80   /* features at a time: each is on a page of its own */
#define LINE 16    /* floats of a cache line */
#define AHEAD 64   /* so many examples ahead features are asked for */
#define SOME 8     /* vectors whose logits become residuals together */
#define MOST_LANES 16

#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0)
#error "NaN must be NaN, and float arithmetic that of floats"
#endif

typedef struct {
    const float *x, *norm;
    const int32_t *label;
    Py_ssize_t x_stride, n;
} Block;

/* Memory: logits and sums; and few examples, filled up with 0. */
typedef struct {
    float *z, *sums, *x, *x_t, *norm;
    int32_t *label;
} Room;

/* Either c = a b, where a is (a_rows, b_rows), or c += a b', where it is (a_rows, n); b is (b_rows, n).
   Rows are so many floats apart; n is a multiple of what a CPU takes at once. */
typedef struct {
    const float *a, *b;
    float *c;
    Py_ssize_t a_rows, b_rows, n, a_stride, b_stride, c_stride;
} Product;

/* How many rows a tile has that begins with row k: as many as the others, or less. */
static Py_ssize_t tile_height(Py_ssize_t K, Py_ssize_t k, Py_ssize_t most)
{
    const Py_ssize_t tiles = (K + most - 1) / most, high = (K + tiles - 1) / tiles;
    return K - k < high ? K - k : high;
}

#ifdef VECTORS
typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
#endif

/* Add up lanes: four by four, as every CPU can. */
INLINE float added_up(const float *lanes, const int count)
{
#ifdef VECTORS
    quad s = *(const quad *)lanes;
    for (int i = 4; i < count; i += 4)
        s += *(const quad *)(lanes + i);
    return (s[0] + s[2]) + (s[1] + s[3]);
#else
    return lanes[count - 1]; /* there is one */
#endif
}

/* How many columns the result has. */
static Py_ssize_t columns(const Work *w) { return w->moment ? w->K : w->W; }

static Py_ssize_t rounded(Py_ssize_t n, Py_ssize_t step) { return (n + step - 1) / step * step; }

/* Copy rows of n numbers, filled up with zeros to `wide` of them; a call for each would take longer. */
static void fill_up(float *to, Py_ssize_t wide, const float *from, Py_ssize_t stride, Py_ssize_t rows,
                    Py_ssize_t n)
{
    memset(to, 0, rows * wide * sizeof *to);
    for (Py_ssize_t k = 0; k < rows; k++, to += wide, from += stride)
        for (Py_ssize_t i = 0; i < n; i++)
            to[i] = from[i];
}

static void fill_labels(int32_t *to, Py_ssize_t wide, const int32_t *from, Py_ssize_t n)
{
    memset(to, 0, wide * sizeof *to);
    memcpy(to, from, n * sizeof *to);
}

/* Residuals that are not numbers, of examples that weigh 0, become 0. */
static void clean(float *z, Py_ssize_t stride, Py_ssize_t K, Py_ssize_t n)
{
    for (Py_ssize_t k = 0; k < K; k++, z += stride)
        for (Py_ssize_t i = 0; i < n; i++)
            z[i] = isnan(z[i]) ? 0.0f : z[i];
}

/* Copy the features of STEP examples; 0 for what is not finite. */
static void copy_finite(float *to, const float *from, Py_ssize_t stride, Py_ssize_t W)
{
    for (Py_ssize_t f = 0; f < W; f++, to += STEP, from += stride)
        for (int i = 0; i < STEP; i++)
            to[i] = isfinite(from[i]) ? from[i] : 0.0f;
}

/* The next block of a client's examples: where they lie, or less than STEP of them filled up. */
static Block block(const Room *room, const Work *w, Py_ssize_t start, Py_ssize_t end)
{
    const Py_ssize_t n = end - start < BLOCK ? end - start : BLOCK;
    const float *x = w->x + start, *norm = w->norm + start;
    if (n >= STEP)
        return (Block){x, norm, w->label + start, w->x_stride, n / STEP * STEP};
    fill_up(room->x, STEP, x, w->x_stride, w->W, n);
    fill_up(room->norm, STEP, norm, 0, 1, n);
    for (Py_ssize_t i = n; i < STEP && w->moment; i++)
        room->norm[i] = INFINITY; /* has no part in it */
    fill_labels(room->label, STEP, w->label + start, n);
    return (Block){room->x, room->norm, room->label, STEP, STEP};
}

#ifdef VECTORS
#define PREFETCH(place) __builtin_prefetch(place, 0, 2) /* to the L2 cache: it bears more at a time */
#else
#define PREFETCH(place) (void)(place)
#endif

#define OF_SIX(high, f, ...)          \
    switch (high) {                   \
    case 1: f(__VA_ARGS__, 1); break; \
    case 2: f(__VA_ARGS__, 2); break; \
    case 3: f(__VA_ARGS__, 3); break; \
    case 4: f(__VA_ARGS__, 4); break; \
    case 5: f(__VA_ARGS__, 5); break; \
    case 6: f(__VA_ARGS__, 6); break; \
    }
#define OF_TEN(high, f, ...)            \
    OF_SIX(high, f, __VA_ARGS__)        \
    switch (high) {                     \
    case 7: f(__VA_ARGS__, 7); break;   \
    case 8: f(__VA_ARGS__, 8); break;   \
    case 9: f(__VA_ARGS__, 9); break;   \
    case 10: f(__VA_ARGS__, 10); break; \
    }

/* Do something for n vectors: for `side` of them from v on, as many as a tile has, and the last by itself. */
#define IN_TILES(v, n, ...)                          \
    for (Py_ssize_t v = 0; v < n; v += SIDE)         \
        if (v + SIDE <= n) {                         \
            const int side = SIDE;                   \
            __VA_ARGS__;                             \
        } else {                                     \
            const int side = 1;                      \
            __VA_ARGS__;                             \
        }

/* Functions for a kind of CPU. */
typedef struct {
    void (*product)(const Product *p, int back);
    int (*clip_residuals)(float *z, Py_ssize_t stride, Py_ssize_t K, Py_ssize_t n, const int32_t *label,
                          const float *norm, float C, const float *R);
    void (*add_small)(float *total, const Room *room, const Work *w);
    void (*add_chunk)(float *total, const Room *room, const Work *w, Py_ssize_t head,
                      Py_ssize_t start, Py_ssize_t end);
    Py_ssize_t step; /* columns that a tile of `product` has */
} Kind;

#ifdef SEVERAL_CPUS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#define NAME(f) f##_v4
#define LANES 16
#define ROWS 10
#include "tiles.h"
#pragma GCC pop_options
#undef NAME
#undef LANES
#undef ROWS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define NAME(f) f##_v3
#define LANES 8
#define ROWS 6
#include "tiles.h"
#pragma GCC pop_options
#undef NAME
#undef LANES
#undef ROWS
#endif

#define NAME(f) f
#if !defined(VECTORS)
#define LANES 1
#elif defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#if LANES == 16
#define ROWS 10
#else
#define ROWS 6
#endif
#include "tiles.h"

static Kind for_this_cpu(void)
{
#ifdef SEVERAL_CPUS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4"))
        return (Kind){product_v4, clip_residuals_v4, add_small_v4, add_chunk_v4, SIDE * 16};
    if (__builtin_cpu_supports("x86-64-v3"))
        return (Kind){product_v3, clip_residuals_v3, add_small_v3, add_chunk_v3, SIDE * 8};
#endif
    return (Kind){product, clip_residuals, add_small, add_chunk, SIDE * LANES};
}

/* Give parts of `memory`, each beginning where a cache line does; how many floats it has to have. */
static Py_ssize_t share(Room *room, float *memory, const Work *w)
{
    const Py_ssize_t K = w->K, W = w->W, sums = K * columns(w) * MOST_LANES;
    const Py_ssize_t sizes[5] = {K * ROW, sums, W * SMALL, SMALL * rounded(W, STEP), SMALL};
    float **parts[5] = {&room->z, &room->sums, &room->x, &room->x_t, &room->norm};
    Py_ssize_t used = 0;
    if (memory)
        memory = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    for (int i = 0; i < 5; i++) {
        if (memory)
            *parts[i] = memory + used;
        used += rounded(sizes[i], MOST_LANES);
    }
    if (memory)
        room->label = (int32_t *)(memory + used);
    return used + SMALL + MOST_LANES;
}

Py_ssize_t client_room(const Work *w) { return share(&(Room){0}, NULL, w); }

void client_sum(float *total, float *memory, const Work *w)
{
    const Kind kind = for_this_cpu();
    const Py_ssize_t size = w->K * columns(w);
    Room room;
    share(&room, memory, w);
    if (w->N && w->N <= SMALL && !w->moment) {
        kind.add_small(total, &room, w);
        return;
    }
    memset(total, 0, w->S * size * sizeof *total);
    for (Py_ssize_t start = 0, end; start < w->N; start = end) {
        end = w->N - start <= CHUNK + SMALL ? w->N : start + CHUNK; /* a last one is not small */
        for (Py_ssize_t head = 0; head < w->S; head++)
            kind.add_chunk(total + head * size, &room, w, head, start, end);
    }
}

Py_ssize_t residuals_room(Py_ssize_t K) { return (K + 2) * STEP; }

int clipped_residuals(float *z, float *memory, const int32_t *label, const float *norm,
                      const float *clip, const float *R, Py_ssize_t S, Py_ssize_t K, Py_ssize_t N)
{
    const Kind kind = for_this_cpu();
    const Py_ssize_t whole = N / STEP * STEP, rest = N - whole;
    float *last = memory, *last_norm = last + K * STEP;
    int32_t *last_label = (int32_t *)(last_norm + STEP);
    int lost = 0;
    fill_up(last_norm, STEP, norm + whole, 0, 1, rest);
    fill_labels(last_label, STEP, label + whole, rest);
    for (Py_ssize_t h = 0; h < S; h++, z += K * N) {
        const float *triangle = R ? R + h * K * K : NULL;
        lost |= kind.clip_residuals(z, N, K, whole, label, norm, clip[h], triangle);
        if (!rest)
            continue;
        fill_up(last, STEP, z + whole, N, K, rest); /* as many as it takes at once */
        lost |= kind.clip_residuals(last, STEP, K, STEP, last_label, last_norm, clip[h], triangle);
        for (Py_ssize_t k = 0; k < K; k++)
            memcpy(z + k * N + whole, last + k * STEP, rest * sizeof *z);
    }
    return lost;
}

Py_ssize_t factors_room(Py_ssize_t K, Py_ssize_t W) { return 2 * K * rounded(W, for_this_cpu().step); }

float *last_columns(const float *A, Py_ssize_t W)
{
    const Py_ssize_t step = for_this_cpu().step, whole = W / step * step;
    float *last = PyMem_RawMalloc(W * step * sizeof *last);
    if (last)
        fill_up(last, step, A + whole, W, W, W - whole);
    return last;
}

void apply_factors(float *totals, float *memory, Py_ssize_t n, Py_ssize_t S, Py_ssize_t K, Py_ssize_t W,
                   const float *G, const float *A, const float *last)
{
    const Kind kind = for_this_cpu();
    const Py_ssize_t step = kind.step, wide = rounded(W, step), whole = W / step * step;
    float *right = memory, *both = right + K * wide;
    for (Py_ssize_t i = 0; i < n * S; i++, totals += K * W) {
        const float *from = right;
        kind.product(&(Product){totals, A, right, K, W, whole, W, W, wide}, 0);
        if (whole < W)
            kind.product(&(Product){totals, last, right + whole, K, W, step, W, step, wide}, 0);
        if (G) {
            kind.product(&(Product){G + i % S * K * K, right, both, K, K, wide, K, wide, wide}, 0);
            from = both;
        }
        for (Py_ssize_t k = 0; k < K; k++)
            memcpy(totals + k * W, from + k * wide, W * sizeof *from);
    }
}
