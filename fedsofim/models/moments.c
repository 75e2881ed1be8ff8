/* Sums and the second moment of clipped features, for moments.py, and norms of records under a map, for maps.py. */

#include "kernel.h"

#ifdef VECTORS

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 128 /* records at a time */
#define TILE 4    /* so many sums by so many lie together */
#define ROWS 13   /* of a map's, at a time */
#define STRIP 32  /* records that are mapped at a time */
#define LANES_OF_SUM 64 /* of the sum over columns */
#define LINE 16   /* numbers in a line of the cache */
#define MOST 16   /* lanes that a CPU may have */
#define ALIGNED __attribute__((aligned(4 * LINE)))

/* The norms of T x for x, (W, N), T being an upper triangle; and room: panels of T, W by ROWS each, and a
   strip of x. */
typedef struct {
    float *norm, *panels, *x;
    const float *from;
    Py_ssize_t stride, W, N;
} Map;

/* Copy n numbers, or `most` if there are more: mostly so many, which is fast. */
INLINE void copy_some(float *to, const float *from, int n, const int most)
{
    if (n >= most)
        memcpy(to, from, most * sizeof *to);
    else
        memcpy(to, from, n * sizeof *to);
}

#ifdef SEVERAL_CPUS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#define NAME(f) f##_v4
#define LANES 16
#define SIDE 2
#define WIDE 4
#include "panels.h"
#undef NAME
#undef LANES
#undef SIDE
#undef WIDE
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define NAME(f) f##_v3
#define LANES 8
#define SIDE 1
#define WIDE 2
#include "panels.h"
#undef NAME
#undef LANES
#undef SIDE
#undef WIDE
#pragma GCC pop_options
#endif

#define NAME(f) f
#if defined(__AVX512F__)
#define LANES 16
#define SIDE 2
#define WIDE 4
#elif defined(__AVX__)
#define LANES 8
#define SIDE 1
#define WIDE 2
#else
#define LANES 4
#define SIDE 1
#define WIDE 2
#endif
#include "panels.h"

#ifdef SEVERAL_CPUS
#define ON_THIS_CPU(f, ...)                                      \
    (__builtin_cpu_supports("x86-64-v4")   ? f##_v4(__VA_ARGS__) \
     : __builtin_cpu_supports("x86-64-v3") ? f##_v3(__VA_ARGS__) \
                                           : f(__VA_ARGS__))
#else
#define ON_THIS_CPU(f, ...) f(__VA_ARGS__)
#endif

/* Memory for so many floats, all 0, of which `*begin` is where a line of the cache begins. */
static float *room_for(Py_ssize_t floats, float **begin)
{
    float *memory = PyMem_Calloc(floats + LINE, sizeof *memory);
    *begin = (float *)(((uintptr_t)memory + 4 * LINE - 1) / (4 * LINE) * (4 * LINE));
    return memory ? memory : (float *)PyErr_NoMemory();
}

PyObject *clipped_moment(PyObject *self, PyObject *args)
{
    PyObject *arrays[3] = {NULL}, *result = NULL;
    Py_buffer b[3] = {{0}};
    const int ndim[3] = {2, 1, 2}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[3] = {PyBUF_STRIDES, dense, dense | PyBUF_WRITABLE};
    float bound;
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOfO", arrays, arrays + 1, &bound, arrays + 2))
        return NULL;
    while (held < 3 && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == 3) {
        const Py_ssize_t F = b[0].shape[0], N = b[0].shape[1], tiles = (F + TILE - 1) / TILE;
        const Py_ssize_t columns = tiles * TILE * BLOCK;
        float *memory = NULL, *c;
        if (b[1].shape[0] != F || b[2].shape[0] != F || b[2].shape[1] != F)
            PyErr_SetString(PyExc_ValueError, "expected shapes (F, N), (F,) and (F, F)");
        else if ((memory = room_for(columns + tiles * (tiles + 1) / 2 * TILE * TILE * MOST, &c))) {
            Py_BEGIN_ALLOW_THREADS
            ON_THIS_CPU(add_moment, c + columns, c, b[0].buf, b[0].strides[0] / FLOAT, b[1].buf, bound,
                        F, N);
            ON_THIS_CPU(write_moment, b[2].buf, c + columns, F);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(memory);
    }
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}

/* Write the sum of w x over columns to out, in lanes that are then added up; whether no x is negative. */
EVERY_CPU
static int weighted(float *out, const float *x, Py_ssize_t stride, const float *w, Py_ssize_t F,
                    Py_ssize_t N)
{
    float least[LANES_OF_SUM] = {0};
    for (Py_ssize_t f = 0; f < F; f++, x += stride) {
        float sum[LANES_OF_SUM] = {0};
        Py_ssize_t n = 0;
        for (; n + LANES_OF_SUM <= N; n += LANES_OF_SUM)
            for (int i = 0; i < LANES_OF_SUM; i++) {
                sum[i] += w[n + i] * x[n + i];
                least[i] = x[n + i] < least[i] ? x[n + i] : least[i];
            }
        for (int i = 0; n + i < N; i++) {
            sum[i] += w[n + i] * x[n + i];
            least[i] = x[n + i] < least[i] ? x[n + i] : least[i];
        }
        for (int half = LANES_OF_SUM / 2; half; half /= 2)
            for (int i = 0; i < half; i++)
                sum[i] += sum[i + half];
        out[f] = sum[0];
    }
    for (int i = 1; i < LANES_OF_SUM; i++)
        least[0] = least[i] < least[0] ? least[i] : least[0];
    return !(least[0] < 0.0f);
}

PyObject *weighted_sum(PyObject *self, PyObject *args)
{
    PyObject *arrays[3] = {NULL}, *result = NULL;
    Py_buffer b[3] = {{0}}; /* out, x, w */
    const int ndim[3] = {1, 2, 1}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[3] = {dense | PyBUF_WRITABLE, PyBUF_STRIDES, dense};
    int held = 0, good;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", arrays, arrays + 1, arrays + 2))
        return NULL;
    while (held < 3 && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == 3) {
        const Py_ssize_t F = b[1].shape[0], N = b[1].shape[1];
        if (b[0].shape[0] != F || b[2].shape[0] != N)
            PyErr_SetString(PyExc_ValueError, "expected shapes (F,), (F, N) and (N,)");
        else {
            Py_BEGIN_ALLOW_THREADS
            good = weighted(b[0].buf, b[1].buf, b[1].strides[0] / FLOAT, b[2].buf, F, N);
            Py_END_ALLOW_THREADS
            result = PyBool_FromLong(good);
        }
    }
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}

/* T, (W, W), in panels of ROWS rows, one column after another; rows beyond W are 0. */
static void write_panels(float *panels, const float *T, Py_ssize_t W)
{
    for (Py_ssize_t first = 0; first < W; first += ROWS)
        for (Py_ssize_t k = 0; k < W; k++)
            for (Py_ssize_t row = first; row < first + ROWS; row++)
                *panels++ = row < W ? T[row * W + k] : 0.0f;
}

PyObject *norms_through(PyObject *self, PyObject *args)
{
    PyObject *arrays[3] = {NULL}, *result = NULL;
    Py_buffer b[3] = {{0}}; /* norm, T, x */
    const int ndim[3] = {1, 2, 2}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[3] = {dense | PyBUF_WRITABLE, dense, PyBUF_STRIDES};
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", arrays, arrays + 1, arrays + 2))
        return NULL;
    while (held < 3 && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == 3) {
        float *memory = NULL;
        const Py_ssize_t W = b[2].shape[0], N = b[2].shape[1], tiles = (W + ROWS - 1) / ROWS;
        Map m = {b[0].buf, NULL, NULL, b[2].buf, b[2].strides[0] / FLOAT, W, N};
        if (b[0].shape[0] != N || b[1].shape[0] != W || b[1].shape[1] != W)
            PyErr_SetString(PyExc_ValueError, "expected shapes (N,), (W, W) and (W, N)");
        else if ((memory = room_for((tiles * ROWS + STRIP) * W, &m.x))) {
            m.panels = m.x + W * STRIP;
            Py_BEGIN_ALLOW_THREADS
            write_panels(m.panels, b[1].buf, W);
            ON_THIS_CPU(all_norms, &m);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(memory);
    }
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}

#endif
