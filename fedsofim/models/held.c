/* What coded.py and head_sums.py ask for of features that stay as a file holds them: floats, or the sum of
   a client's clipped gradients, for which they become floats in parts that stay in the cache. */

#include "decode.h"

#include <string.h>

#define STRIDE (CHUNK + SMALL + 16) /* floats between rows: not all in the same places of a cache */
#define LINE 64                     /* bytes of a cache line */

/* Features as they are held: the buffers of rows, of which of them, scale and lo; bytes of a number. */
typedef struct {
    Py_buffer rows, which, scale, lo;
    int size;
} Held;

static void let_go(Held *held) /* a buffer that was not got needs nothing */
{
    PyBuffer_Release(&held->rows);
    PyBuffer_Release(&held->which);
    PyBuffer_Release(&held->scale);
    PyBuffer_Release(&held->lo);
}

/* Whether they are n records of F features; else there is an exception. */
static int fits(Held *held, Py_ssize_t F, Py_ssize_t n)
{
    const int two = held->rows.ndim == 2; /* a number alone has no shape to look at */
    const Py_ssize_t M = two ? held->rows.shape[0] : 0, width = two ? held->rows.shape[1] : 0;
    const int32_t *at = held->which.buf;
    int good = held->rows.itemsize == 1 && F > 0 && (width == F || width == 2 * F || width == 4 * F);
    good = good && (!held->scale.obj || (held->scale.shape[0] == F && held->lo.shape[0] == F));
    held->size = good ? (int)(width / F) : 0;
    if (at) {
        good = good && held->which.itemsize == sizeof *at && held->which.len == n * (Py_ssize_t)sizeof *at;
        good = good && (uintptr_t)at % sizeof *at == 0;
        for (Py_ssize_t i = 0; good && i < n; i++)
            good = at[i] >= 0 && at[i] < M;
    } else
        good = good && M == n;
    if (!good)
        PyErr_SetString(PyExc_ValueError, "expected (M, bytes of F), (N,) of 0 to M - 1, (F,) and (F,)");
    return good;
}

/* Get them; 0 and an exception if they do not fit. */
static int get_held(Held *held, PyObject **given, Py_ssize_t F, Py_ssize_t n)
{
    return !PyObject_GetBuffer(given[0], &held->rows, PyBUF_C_CONTIGUOUS) &&
           (given[1] == Py_None || !PyObject_GetBuffer(given[1], &held->which, PyBUF_C_CONTIGUOUS)) &&
           (given[2] == Py_None || (get_floats(given[2], &held->scale, 1, PyBUF_C_CONTIGUOUS) &&
                                    get_floats(given[3], &held->lo, 1, PyBUF_C_CONTIGUOUS))) &&
           fits(held, F, n);
}

/* To write n of the records, from `start` on, to columns of out. */
static Job job_of(const Held *held, float *out, Py_ssize_t stride, Py_ssize_t F, Py_ssize_t start,
                  Py_ssize_t n)
{
    const int32_t *which = held->which.buf;
    const unsigned char *rows = held->rows.buf;
    return (Job){out, which ? rows : rows + start * F * held->size, which ? which + start : NULL,
                 held->scale.buf, held->lo.buf, stride, F, n};
}

PyObject *decode_rows(PyObject *self, PyObject *args)
{
    PyObject *out, *given[4], *result = NULL;
    Py_buffer b = {0};
    Held held = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOO", &out, given, given + 1, given + 2, given + 3))
        return NULL;
    if (get_floats(out, &b, 2, PyBUF_STRIDES | PyBUF_WRITABLE) &&
        get_held(&held, given, b.shape[0], b.shape[1])) {
        const Job job = job_of(&held, b.buf, b.strides[0] / FLOAT, b.shape[0], 0, b.shape[1]);
        Py_BEGIN_ALLOW_THREADS
        write_features(&job, held.size);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    let_go(&held);
    PyBuffer_Release(&b);
    return result;
}

/* Write labels of one or two bytes each. */
static void write_labels(int32_t *label, const Py_buffer *labels, Py_ssize_t start, Py_ssize_t n)
{
    const unsigned char *small = labels->buf;
    const uint16_t *large = labels->buf;
    for (Py_ssize_t i = 0; i < n; i++)
        label[i] = labels->itemsize == 1 ? small[start + i] : large[start + i];
}

/* Write the sum of a client's examples, which become floats a chunk at a time. */
static void decoded(float *total, float *memory, const Held *held, const Py_buffer *labels, Work w)
{
    const Py_ssize_t N = w.N, size = w.S * w.K * w.W;
    float *x = (float *)(((uintptr_t)memory + LINE - 1) / LINE * LINE);
    float *part = x + (w.W + 1) * STRIDE;
    int32_t *label = (int32_t *)(x + w.W * STRIDE);
    const float *norm = w.norm;
    memset(total, 0, size * sizeof *total);
    for (Py_ssize_t i = 0; i < STRIDE; i++)
        x[(w.W - 1) * STRIDE + i] = 1.0f;
    for (Py_ssize_t start = 0; start < N; start += w.N) {
        w.N = N - start <= CHUNK + SMALL ? N - start : CHUNK;
        const Job job = job_of(held, x, STRIDE, w.W - 1, start, w.N);
        write_features(&job, held->size);
        write_labels(label, labels, start, w.N);
        w.x = x, w.label = label, w.norm = norm + start, w.x_stride = STRIDE;
        client_sum(part, part + size, &w);
        for (Py_ssize_t i = 0; i < size; i++)
            total[i] += part[i];
    }
}

PyObject *decoded_sum(PyObject *self, PyObject *args)
{
    PyObject *given[4], *arrays[5], *named, *result = NULL;
    Py_buffer b[5] = {{0}}, labels = {0}; /* total, theta, norm, clip, R */
    const int ndim[5] = {3, 3, 1, 1, 3}, dense = PyBUF_C_CONTIGUOUS;
    Held held = {0};
    int got = 0, count;
    float *memory = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOO", arrays, arrays + 1, given, given + 1, given + 2, given + 3,
                          &named, arrays + 2, arrays + 3, arrays + 4))
        return NULL;
    count = arrays[4] == Py_None ? 4 : 5;
    while (got < count && get_floats(arrays[got], b + got, ndim[got], got ? dense : dense | PyBUF_WRITABLE))
        got++;
    if (got == count && !PyObject_GetBuffer(named, &labels, dense)) {
        const Py_ssize_t S = b[0].shape[0], K = b[0].shape[1], W = b[0].shape[2], N = b[2].shape[0];
        const Py_ssize_t room = (W + 1) * STRIDE + S * K * W + client_room(&(Work){.K = K, .W = W}) + LINE;
        if (b[1].len != b[0].len || b[1].shape[2] != W || b[3].shape[0] != S || K < 1 || W < 2 ||
            (count == 5 && b[4].len != S * K * K * FLOAT) || (labels.itemsize != 1 && labels.itemsize != 2) ||
            labels.len != N * labels.itemsize || (uintptr_t)labels.buf % labels.itemsize)
            PyErr_SetString(PyExc_ValueError, "expected (S, K, W) twice, (N,) twice, (S,), (S, K, K)");
        else if (get_held(&held, given, W - 1, N)) {
            const Work work = {.theta = b[1].buf, .norm = b[2].buf, .clip = b[3].buf, .R = b[4].buf,
                               .S = S, .K = K, .W = W, .N = N};
            if ((memory = PyMem_RawMalloc(room * sizeof *memory))) {
                Py_BEGIN_ALLOW_THREADS
                decoded(b[0].buf, memory, &held, &labels, work);
                Py_END_ALLOW_THREADS
                result = Py_NewRef(Py_None);
            } else
                PyErr_NoMemory();
        }
    }
    PyMem_RawFree(memory);
    let_go(&held);
    PyBuffer_Release(&labels);
    while (got)
        PyBuffer_Release(b + --got);
    return result;
}
