/* The clipped gradient sum of one client with many examples in one call: threads that work on
   clients need Python's lock once a client.

   A client is worked on by itself and in one order, whoever else there is, and a stack of heads one
   head after another: a sum has the same bits in every company and on every number of threads. */

#include "softmax.h"

#ifdef VECTORS

#define CHUNK 4096 /* examples whose sum is added to the total: they stay in the L2 cache for all heads */
#define BLOCK 512  /* of them, whose logits stay in the L1 cache */
#define STEP 32    /* blocks are multiples of it; examples are filled up to it */
#define ROWS 10    /* of a tile, at most */
#define PANEL 64   /* features at a time: each is on a page of its own */
#define AHEAD 64   /* so many examples ahead features are asked for */

typedef struct {
    const float *theta, *x, *target, *norm, *clip, *U; /* rows of x and target are apart by: */
    Py_ssize_t x_stride, target_stride, S, K, W, N;
} Work;

typedef struct {
    const float *x, *target, *norm;
    Py_ssize_t x_stride, target_stride, n;
} Block;

/* Memory: logits, residuals under the transform and sums; and STEP examples, filled up with 0. */
typedef struct {
    float *z, *u, *sums, *x, *target, *norm;
} Room;

/* How many rows a tile has that begins with row k: as many as the others, or less. */
static Py_ssize_t tile_height(Py_ssize_t K, Py_ssize_t k)
{
    const Py_ssize_t tiles = (K + ROWS - 1) / ROWS, high = (K + tiles - 1) / tiles;
    return K - k < high ? K - k : high;
}

/* Add the second half of twice as many numbers to the first. */
INLINE void fold(float *s, const int half)
{
    for (int i = 0; i < half; i++)
        s[i] += s[half + i];
}

/* Copy rows of n numbers, filled up with zeros. */
static void fill_up(float *to, const float *from, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t n)
{
    for (Py_ssize_t k = 0; k < rows; k++, to += STEP, from += stride) {
        memcpy(to, from, n * sizeof *to);
        memset(to + n, 0, (STEP - n) * sizeof *to);
    }
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
    fill_up(room->x, x, w->x_stride, w->W, n);
    fill_up(room->target, target, w->target_stride, w->K, n);
    fill_up(room->norm, norm, 0, 1, n);
    return (Block){room->x, room->target, room->norm, STEP, STEP, STEP};
}

#define JOIN(a, b) a##b
#define PREFETCH __builtin_prefetch

typedef void (*AddChunk)(float *total, const Room *room, const Work *w, Py_ssize_t head,
                         Py_ssize_t start, Py_ssize_t end);

#ifdef SEVERAL_CPUS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#define NAME(f) JOIN(f, _v4)
#define LANES 16
#define SIDE 2
#include "tiles.h"
#undef NAME
#undef LANES
#undef SIDE
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define NAME(f) JOIN(f, _v3)
#define LANES 8
#define SIDE 1
#include "tiles.h"
#undef NAME
#undef LANES
#undef SIDE
#pragma GCC pop_options
#endif

#define NAME(f) f
#if defined(__AVX512F__)
#define LANES 16
#define SIDE 2
#elif defined(__AVX__)
#define LANES 8
#define SIDE 1
#else
#define LANES 4
#define SIDE 1
#endif
#include "tiles.h"

static AddChunk for_this_cpu(void)
{
#ifdef SEVERAL_CPUS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4"))
        return add_chunk_v4;
    if (__builtin_cpu_supports("x86-64-v3"))
        return add_chunk_v3;
#endif
    return add_chunk;
}

/* Give parts of `memory`, each beginning where a cache line does; how many floats it has to have. */
static Py_ssize_t share(Room *room, float *memory, const Work *w)
{
    const Py_ssize_t K = w->K, W = w->W;
    const Py_ssize_t sizes[6] = {K * BLOCK, w->U ? K * BLOCK : 0, K * W * 16, W * STEP, K * STEP, STEP};
    float **parts[6] = {&room->z, &room->u, &room->sums, &room->x, &room->target, &room->norm};
    Py_ssize_t used = 0;
    for (int i = 0; i < 6; i++) {
        if (memory)
            *parts[i] = (float *)(((uintptr_t)memory + 63) / 64 * 64) + used;
        used += (sizes[i] + 15) / 16 * 16;
    }
    return used + 16;
}

static void add_all(float *total, const Room *room, const Work *w)
{
    const AddChunk add = for_this_cpu();
    for (Py_ssize_t start = 0; start < w->N; start += CHUNK) {
        const Py_ssize_t end = w->N - start < CHUNK ? w->N : start + CHUNK;
        for (Py_ssize_t head = 0; head < w->S; head++)
            add(total + head * w->K * w->W, room, w, head, start, end);
    }
}

/* What to do, from (total, theta, x, target, norm, clip, U or nothing); 0 if shapes do not fit. */
static int get_work(Work *w, const Py_buffer *b, int count)
{
    *w = (Work){b[1].buf, b[2].buf, b[3].buf, b[4].buf, b[5].buf, count == 7 ? b[6].buf : NULL,
                b[2].strides[0] / FLOAT, b[3].strides[0] / FLOAT, b[5].shape[0], b[3].shape[0],
                b[2].shape[0], b[2].shape[1]};
    int good = w->K >= 1 && b[3].shape[1] == w->N && b[4].shape[0] == w->N;
    for (int i = 0; i < 2; i++)
        good = good && b[i].shape[0] == w->S * w->K && b[i].shape[1] == w->W;
    if (w->U)
        good = good && b[6].shape[0] == w->S && b[6].shape[1] == w->K && b[6].shape[2] == w->K;
    return good;
}

static PyObject *added(const Py_buffer *b, int count)
{
    Work w;
    Room room;
    float *memory;
    if (!get_work(&w, b, count))
        return PyErr_Format(PyExc_ValueError, "expected shapes (S K, W) twice, (W, N), (K, N), (N,), "
                                              "(S,) and (S, K, K)");
    if (!(memory = PyMem_RawMalloc(share(&room, NULL, &w) * sizeof *memory)))
        return PyErr_NoMemory();
    share(&room, memory, &w);
    Py_BEGIN_ALLOW_THREADS
    add_all(b[0].buf, &room, &w);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(memory);
    Py_RETURN_NONE;
}

PyObject *clipped_sum(PyObject *self, PyObject *args)
{
    PyObject *arrays[7] = {NULL}, *result = NULL;
    Py_buffer b[7] = {{0}};
    const int ndim[7] = {2, 2, 2, 2, 1, 1, 3}, dense = PyBUF_C_CONTIGUOUS, strided = PyBUF_STRIDES;
    const int flags[7] = {dense | PyBUF_WRITABLE, dense, strided, strided, strided, dense, dense};
    int held = 0, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOO|O", arrays, arrays + 1, arrays + 2, arrays + 3, arrays + 4,
                          arrays + 5, arrays + 6))
        return NULL;
    count = arrays[6] && arrays[6] != Py_None ? 7 : 6;
    while (held < count && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == count)
        result = added(b, count);
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}

#endif
