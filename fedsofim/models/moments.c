/* The second moment of clipped features, for moments.py, and maps of records, for maps.py. */

#include "kernel.h"

#ifdef VECTORS

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 128 /* records at a time */
#define TILE 4    /* so many sums by so many stay in registers */
#define ROWS 13   /* of a map's, at a time */
#define STRIP 32  /* records that are mapped at a time */
#define LINE 16   /* numbers in a line of the cache */
#define MOST 16   /* lanes that a CPU may have */
#define ALIGNED __attribute__((aligned(4 * LINE)))

/* z = P x for x, (W, N), and the norms of z; and room: panels of P, W by ROWS each, and a strip of x. */
typedef struct {
    float *z, *norm, *panels, *x;
    const float *from;
    Py_ssize_t z_stride, from_stride, W, N;
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
#include "panels.h"
#undef NAME
#undef LANES
#undef SIDE
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define NAME(f) f##_v3
#define LANES 8
#define SIDE 1
#include "panels.h"
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

/* P, (W, W), in panels of ROWS rows, one column after another; rows beyond W are 0. */
static void write_panels(float *panels, const float *P, Py_ssize_t W)
{
    for (Py_ssize_t first = 0; first < W; first += ROWS)
        for (Py_ssize_t k = 0; k < W; k++)
            for (Py_ssize_t row = first; row < first + ROWS; row++)
                *panels++ = row < W ? P[row * W + k] : 0.0f;
}

PyObject *map_columns(PyObject *self, PyObject *args)
{
    PyObject *arrays[4] = {NULL}, *result = NULL;
    Py_buffer b[4] = {{0}}; /* z, norm, P, x */
    const int ndim[4] = {2, 1, 2, 2}, dense = PyBUF_C_CONTIGUOUS, strided = PyBUF_STRIDES;
    const int flags[4] = {strided | PyBUF_WRITABLE, dense | PyBUF_WRITABLE, dense, strided};
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO", arrays, arrays + 1, arrays + 2, arrays + 3))
        return NULL;
    while (held < 4 && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == 4) {
        float *memory = NULL;
        const Py_ssize_t W = b[3].shape[0], N = b[3].shape[1], tiles = (W + ROWS - 1) / ROWS;
        Map m = {b[0].buf, b[1].buf, NULL, NULL, b[3].buf, b[0].strides[0] / FLOAT,
                 b[3].strides[0] / FLOAT, W, N};
        if (b[0].shape[0] != W || b[0].shape[1] != N || b[1].shape[0] != N || b[2].shape[0] != W ||
            b[2].shape[1] != W)
            PyErr_SetString(PyExc_ValueError, "expected shapes (W, N), (N,), (W, W) and (W, N)");
        else if ((memory = room_for((tiles * ROWS + STRIP) * W, &m.x))) {
            m.panels = m.x + W * STRIP;
            Py_BEGIN_ALLOW_THREADS
            write_panels(m.panels, b[2].buf, W);
            ON_THIS_CPU(map_all, &m);
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
