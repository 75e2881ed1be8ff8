/* The clipped gradient sum of one client, for crowd.c.

   A client is worked on by itself and in one order, and a stack of heads one head after another: a
   sum has the same bits in every company, on every number of threads, and a head those it has alone. */

#include "softmax.h"

#define CHUNK 4096 /* examples whose sum is added to the total: they stay in the L2 cache for all heads */
#define BLOCK 512  /* of them, whose logits stay in the L1 cache */
#define SIDE 2     /* vectors of a tile: with ROWS rows they stay in a CPU's registers */
#define STEP 32    /* blocks are multiples of it; examples are filled up to it */
#define PANEL 80   /* features at a time: each is on a page of its own */
#define LINE 16    /* floats of a cache line */
#define AHEAD 64   /* so many examples ahead features are asked for */
#define SMALL 32   /* so few examples are taken at once */
#define MOST_LANES 16

typedef struct {
    const float *x, *target, *norm;
    Py_ssize_t x_stride, target_stride, n;
} Block;

/* Memory: logits and sums; and few examples, filled up with 0. */
typedef struct {
    float *z, *sums, *x, *x_t, *target, *norm;
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
    const float *x = w->x + start, *target = w->target + start, *norm = w->norm + start;
    if (n >= STEP)
        return (Block){x, target, norm, w->x_stride, w->target_stride, n / STEP * STEP};
    fill_up(room->x, STEP, x, w->x_stride, w->W, n);
    fill_up(room->target, STEP, target, w->target_stride, w->K, n);
    fill_up(room->norm, STEP, norm, 0, 1, n);
    return (Block){room->x, room->target, room->norm, STEP, STEP, STEP};
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

/* Functions for a kind of CPU. */
typedef struct {
    void (*product)(const Product *p, int back);
    void (*add_small)(float *total, const Room *room, const Work *w);
    void (*add_chunk)(float *total, const Room *room, const Work *w, Py_ssize_t head,
                      Py_ssize_t start, Py_ssize_t end);
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
        return (Kind){product_v4, add_small_v4, add_chunk_v4};
    if (__builtin_cpu_supports("x86-64-v3"))
        return (Kind){product_v3, add_small_v3, add_chunk_v3};
#endif
    return (Kind){product, add_small, add_chunk};
}

/* Give parts of `memory`, each beginning where a cache line does; how many floats it has to have. */
static Py_ssize_t share(Room *room, float *memory, Py_ssize_t K, Py_ssize_t W)
{
    const Py_ssize_t width = rounded(W, STEP), sums = K * (W * MOST_LANES > width ? W * MOST_LANES : width);
    const Py_ssize_t sizes[6] = {K * BLOCK, sums, W * SMALL, SMALL * width, K * SMALL, SMALL};
    float **parts[6] = {&room->z, &room->sums, &room->x, &room->x_t, &room->target, &room->norm};
    Py_ssize_t used = 0;
    for (int i = 0; i < 6; i++) {
        if (memory)
            *parts[i] = (float *)(((uintptr_t)memory + 63) / 64 * 64) + used;
        used += rounded(sizes[i], MOST_LANES);
    }
    return used + MOST_LANES;
}

Py_ssize_t client_room(Py_ssize_t K, Py_ssize_t W) { return share(&(Room){0}, NULL, K, W); }

void client_sum(float *total, float *memory, const Work *w)
{
    const Kind kind = for_this_cpu();
    Room room;
    share(&room, memory, w->K, w->W);
    if (w->N && w->N <= SMALL) {
        kind.add_small(total, &room, w);
        return;
    }
    memset(total, 0, w->S * w->K * w->W * sizeof *total);
    for (Py_ssize_t start = 0, end; start < w->N; start = end) {
        end = w->N - start <= CHUNK + SMALL ? w->N : start + CHUNK; /* a last one is not small */
        for (Py_ssize_t head = 0; head < w->S; head++)
            kind.add_chunk(total + head * w->K * w->W, &room, w, head, start, end);
    }
}

Py_ssize_t factors_room(Py_ssize_t K, Py_ssize_t W) { return W * STEP + 2 * K * rounded(W, STEP); }

void apply_factors(float *totals, float *memory, Py_ssize_t n, Py_ssize_t S, Py_ssize_t K, Py_ssize_t W,
                   const float *G, const float *A)
{
    const Kind kind = for_this_cpu();
    const Py_ssize_t wide = rounded(W, STEP), whole = W / STEP * STEP;
    float *last = memory, *from = last + W * STEP, *to = from + K * wide;
    fill_up(last, STEP, A + whole, W, W, W - whole); /* the columns of A that are less than STEP */
    for (Py_ssize_t i = 0; i < n * S; i++, totals += K * W) {
        fill_up(from, wide, totals, W, K, W);
        if (G) {
            kind.product(&(Product){G + i % S * K * K, from, to, K, K, wide, K, wide, wide}, 0);
            memcpy(from, to, K * wide * sizeof *to);
        }
        kind.product(&(Product){from, A, to, K, W, whole, wide, W, wide}, 0);
        if (whole < W)
            kind.product(&(Product){from, last, to + whole, K, W, STEP, wide, STEP, wide}, 0);
        for (Py_ssize_t k = 0; k < K; k++)
            memcpy(totals + k * W, to + k * wide, W * sizeof *to);
    }
}
