/* The clipped gradient sum of one client with many examples in one call: the loop of head.py over
   chunks, with BLAS's matrix product, which Python hands over. So threads that work on clients need
   Python's lock once a client, not several times a chunk; bits are those of the loop. */

#include "kernel.h"

#include <stdint.h>
#include <string.h>

enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };

/* cblas_sgemm with sizes of 64 bits */
typedef void (*Gemm)(int order, int a_as, int b_as, int64_t rows, int64_t columns, int64_t terms,
                     float alpha, const float *a, int64_t a_stride, const float *b,
                     int64_t b_stride, float beta, float *c, int64_t c_stride);

typedef struct {
    const float *theta, *x, *target, *norm, *clip, *U; /* rows of x and target are apart by: */
    Py_ssize_t x_stride, target_stride, S, K, W, N;
} Work;

/* Write the sum to total, (S K, W); 1 if some gradient was too large, and nothing is to be used.
   `z` has room for the logits of `size` examples, `part` for a sum. */
static int add_chunks(float *total, float *z, float *part, const Work *w, Py_ssize_t size, Gemm gemm)
{
    const Py_ssize_t rows = w->S * w->K, W = w->W;
    memset(total, 0, rows * W * sizeof *total);
    for (Py_ssize_t start = 0; start < w->N; start += size) {
        const Py_ssize_t n = w->N - start < size ? w->N - start : size;
        const float *x = w->x + start;
        gemm(ROW_MAJOR, AS_IT_IS, AS_IT_IS, rows, n, W, 1, w->theta, W, x, w->x_stride, 0, z, n);
        if (clipped_residuals(z, w->target + start, w->target_stride, w->norm + start, w->clip,
                              w->U, w->K, w->S, n))
            return 1;
        gemm(ROW_MAJOR, AS_IT_IS, TRANSPOSED, rows, W, n, 1, z, n, x, w->x_stride, 0, part, W);
        for (Py_ssize_t i = 0; i < rows * W; i++)
            total[i] += part[i];
    }
    return 0;
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

static PyObject *added(const Py_buffer *b, int count, Py_ssize_t size, Gemm gemm)
{
    Work w;
    float *memory, *z;
    int lost;
    if (!get_work(&w, b, count) || size < 1 || !gemm)
        return PyErr_Format(PyExc_ValueError, "expected shapes (S K, W) twice, (W, N), (K, N), (N,), "
                                              "(S,) and (S, K, K), a size and a product");
    const Py_ssize_t rows = w.S * w.K, logits = rows * (size < w.N ? size : w.N);
    if (!(memory = PyMem_RawMalloc((16 + logits + rows * w.W) * sizeof *memory)))
        return PyErr_NoMemory();
    z = (float *)(((uintptr_t)memory + 63) / 64 * 64); /* it begins where a cache line does */
    Py_BEGIN_ALLOW_THREADS
    lost = add_chunks(b[0].buf, z, z + logits, &w, size, gemm);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(memory);
    return PyBool_FromLong(lost);
}

PyObject *clipped_sum(PyObject *self, PyObject *args)
{
    PyObject *arrays[7] = {NULL}, *result = NULL;
    Py_buffer b[7] = {{0}};
    const int ndim[7] = {2, 2, 2, 2, 1, 1, 3}, dense = PyBUF_C_CONTIGUOUS, strided = PyBUF_STRIDES;
    const int flags[7] = {dense | PyBUF_WRITABLE, dense, strided, strided, strided, dense, dense};
    unsigned long long gemm;
    Py_ssize_t size;
    int held = 0, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOOnK", arrays, arrays + 1, arrays + 2, arrays + 3, arrays + 4,
                          arrays + 5, arrays + 6, &size, &gemm))
        return NULL;
    count = arrays[6] == Py_None ? 6 : 7;
    while (held < count && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == count)
        result = added(b, count, size, (Gemm)(uintptr_t)gemm);
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}
