/* The clipped gradient sums of many clients in one call: small ones here, large ones in whole.c.

   Every client is worked on by itself and in one order, whoever else is in the call and however
   many threads there are: its sum has the same bits in every company. */

#include "kernel.h"

#include <math.h>
#include <string.h>

#define BLOCK 128 /* examples at a time */
#define LANES 16  /* numbers at a time */
#define ROWS 5    /* of a tile, whose sums then stay in registers */

#if defined(__GNUC__)
typedef float Lanes __attribute__((vector_size(4 * LANES)));
#define ADD(sum, a, b) (sum) += (a) * (b)
#else
typedef struct {
    float at[LANES];
} Lanes;
#define ADD(sum, a, b)                \
    for (int l = 0; l < LANES; l++) \
    (sum).at[l] += (a) * (b).at[l]
#endif

/* c += a b for a tile of c: `rows` by LANES, terms in order. All but a is where vectors begin. */
INLINE void tile(float *restrict c, Py_ssize_t c_stride, const float *restrict a,
                 Py_ssize_t a_stride, const float *restrict b, Py_ssize_t b_stride, Py_ssize_t M,
                 const int rows)
{
    Lanes sum[ROWS];
    for (int j = 0; j < rows; j++)
        sum[j] = *(const Lanes *)(c + j * c_stride);
    for (Py_ssize_t m = 0; m < M; m++, b += b_stride) {
        const Lanes row = *(const Lanes *)b;
        for (int j = 0; j < rows; j++)
            ADD(sum[j], a[j * a_stride + m], row);
    }
    for (int j = 0; j < rows; j++)
        *(Lanes *)(c + j * c_stride) = sum[j];
}

/* c += a b; a is (K, M), b (M, N) and c (K, N), N a multiple of LANES. */
INLINE void product(float *c, Py_ssize_t c_stride, const float *a, Py_ssize_t a_stride,
                    const float *b, Py_ssize_t b_stride, Py_ssize_t K, Py_ssize_t M, Py_ssize_t N)
{
    for (Py_ssize_t n = 0; n < N; n += LANES) {
        Py_ssize_t k = 0;
        for (; k + ROWS <= K; k += ROWS)
            tile(c + k * c_stride + n, c_stride, a + k * a_stride, a_stride, b + n, b_stride, M,
                 ROWS);
        float *rest = c + k * c_stride + n;
        const float *factors = a + k * a_stride;
        switch (K - k) {
        case 4: tile(rest, c_stride, factors, a_stride, b + n, b_stride, M, 4); break;
        case 3: tile(rest, c_stride, factors, a_stride, b + n, b_stride, M, 3); break;
        case 2: tile(rest, c_stride, factors, a_stride, b + n, b_stride, M, 2); break;
        case 1: tile(rest, c_stride, factors, a_stride, b + n, b_stride, M, 1); break;
        }
    }
}

typedef struct {
    const float *x, *target, *norm; /* rows of x and target are so many floats apart: */
    Py_ssize_t N, x_stride, target_stride;
} Client;

typedef struct {
    float *x, *x_t, *target, *norm, *z, *total; /* of a block, rows filled up with zeros */
    float *whole;                               /* for large clients */
} Scratch;

static Py_ssize_t rounded(Py_ssize_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Copy a block of n examples from `start` on: as they are, and the features transposed, too. */
INLINE void load(const Scratch *s, const Client *c, Py_ssize_t start, Py_ssize_t n, Py_ssize_t K,
                 Py_ssize_t W)
{
    const Py_ssize_t wide = rounded(n), width = rounded(W);
    for (Py_ssize_t f = 0; f < W; f++) {
        const float *row = c->x + f * c->x_stride + start;
        memcpy(s->x + f * wide, row, n * sizeof *row);
        memset(s->x + f * wide + n, 0, (wide - n) * sizeof *row);
        for (Py_ssize_t i = 0; i < n; i++)
            s->x_t[i * width + f] = row[i];
    }
    for (Py_ssize_t i = 0; i < n; i++)
        memset(s->x_t + i * width + W, 0, (width - W) * sizeof(float));
    memset(s->target, 0, K * wide * sizeof(float));
    for (Py_ssize_t k = 0; k < K; k++)
        memcpy(s->target + k * wide, c->target + k * c->target_stride + start, n * sizeof(float));
    memset(s->norm, 0, wide * sizeof(float));
    memcpy(s->norm, c->norm + start, n * sizeof(float));
}

/* Write a small client's sums, (S, K, W), to out. */
EVERY_CPU
static void small_sum(float *out, const float *theta, const Client *c, const Scratch *s,
                       const float *clip, const float *U, Py_ssize_t S, Py_ssize_t K, Py_ssize_t W)
{
    const Py_ssize_t width = rounded(W);
    memset(s->total, 0, S * K * width * sizeof(float));
    for (Py_ssize_t start = 0; start < c->N; start += BLOCK) {
        const Py_ssize_t n = c->N - start < BLOCK ? c->N - start : BLOCK, wide = rounded(n);
        int clean = 0;
        load(s, c, start, n, K, W);
        for (Py_ssize_t h = 0; h < S; h++) {
            memset(s->z, 0, K * wide * sizeof(float));
            product(s->z, wide, theta + h * K * W, W, s->x, wide, K, W, wide);
            if (clipped_residuals(s->z, s->target, wide, s->norm, clip + h,
                                  U ? U + h * K * K : NULL, K, 1, wide) &&
                !clean) { /* 0 times infinity is not 0 */
                for (Py_ssize_t i = 0; i < n * width; i++)
                    s->x_t[i] = isfinite(s->x_t[i]) ? s->x_t[i] : 0.0f;
                clean = 1;
            }
            product(s->total + h * K * width, width, s->z, wide, s->x_t, width, K, n, width);
        }
    }
    for (Py_ssize_t k = 0; k < S * K; k++)
        memcpy(out + k * W, s->total + k * width, W * sizeof(float));
}

static void client_sum(float *out, const float *theta, const Client *c, const Scratch *s,
                       const float *clip, const float *U, Py_ssize_t S, Py_ssize_t K, Py_ssize_t W)
{
    const Work work = {theta, c->x, c->target, c->norm, clip, U, c->x_stride, c->target_stride, S, K, W, c->N};
    if (c->N > MOST_SMALL)
        whole_sum(out, s->whole, &work);
    else
        small_sum(out, theta, c, s, clip, U, S, K, W);
}

/* The arrays of one client; 0 and an exception if they do not fit. */
static int get_client(Client *c, Py_buffer *b, PyObject **lists, Py_ssize_t i, Py_ssize_t K,
                      Py_ssize_t W)
{
    const int ndim[3] = {2, 2, 1};
    int held = 0;
    while (held < 3 &&
           get_floats(PyList_GET_ITEM(lists[held], i), b + held, ndim[held], PyBUF_STRIDES))
        held++;
    if (held == 3) {
        *c = (Client){b[0].buf, b[1].buf, b[2].buf, b[0].shape[1], b[0].strides[0] / FLOAT,
                      b[1].strides[0] / FLOAT};
        if (b[0].shape[0] == W && b[1].shape[0] == K && b[1].shape[1] == c->N &&
            b[2].shape[0] == c->N)
            return 1;
        PyErr_SetString(PyExc_ValueError, "expected shapes (W, N), (K, N) and (N,) of each client");
    }
    while (held)
        PyBuffer_Release(b + --held);
    return 0;
}

static int make_scratch(Scratch *s, float **memory, Py_ssize_t S, Py_ssize_t K, Py_ssize_t W)
{
    const Py_ssize_t width = rounded(W);
    const Py_ssize_t sizes[] = {W * BLOCK, BLOCK * width,  K * BLOCK,       BLOCK,
                                K * BLOCK, S * K * width, whole_room(K, W)};
    float **parts[] = {&s->x, &s->x_t, &s->target, &s->norm, &s->z, &s->total, &s->whole}, *next;
    Py_ssize_t all = LANES;
    for (int i = 0; i < 7; i++)
        all += rounded(sizes[i]);
    if (!(*memory = PyMem_RawMalloc(all * sizeof(float))))
        return 0;
    next = (float *)(((uintptr_t)*memory + 63) / 64 * 64); /* rows begin where cache lines do */
    for (int i = 0; i < 7; i++, next += rounded(sizes[i - 1]))
        *parts[i] = next;
    return 1;
}

static int fits(const Py_buffer *out, const Py_buffer *theta, const Py_buffer *clip,
                const Py_buffer *U, PyObject **lists)
{
    const Py_ssize_t *shape = out->shape, S = shape[1], K = shape[2], W = shape[3];
    int good = K >= 1 && clip->shape[0] == S && clip->strides[0] == FLOAT;
    for (int axis = 0; axis < 4; axis++)
        good = good && theta->shape[axis] == shape[axis];
    good = good && theta->strides[2] == W * FLOAT && (S == 1 || theta->strides[1] == K * W * FLOAT);
    if (U)
        good = good && U->shape[0] == S && U->shape[1] == K && U->shape[2] == K;
    for (int i = 0; i < 3; i++)
        good = good && PyList_GET_SIZE(lists[i]) == shape[0];
    if (!good)
        PyErr_SetString(PyExc_ValueError, "expected shapes (n, S, K, W), lists of n, (S,), (S, K, K)");
    return good;
}

static PyObject *sums(const Py_buffer *out, const Py_buffer *theta, const float *clip,
                      const float *U, PyObject **lists)
{
    const Py_ssize_t n = out->shape[0], S = out->shape[1], K = out->shape[2], W = out->shape[3];
    Client *clients = PyMem_New(Client, n ? n : 1);
    Py_buffer *buffers = PyMem_New(Py_buffer, n ? 3 * n : 1);
    Scratch scratch;
    float *memory = NULL;
    Py_ssize_t held = 0;
    if (!clients || !buffers || !make_scratch(&scratch, &memory, S, K, W))
        PyErr_NoMemory();
    else {
        while (held < n && get_client(clients + held, buffers + 3 * held, lists, held, K, W))
            held++;
        if (held == n) {
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i < n; i++)
                client_sum((float *)out->buf + i * S * K * W,
                           (const float *)((const char *)theta->buf + i * theta->strides[0]),
                           clients + i, &scratch, clip, U, S, K, W);
            Py_END_ALLOW_THREADS
        }
        for (Py_ssize_t i = 0; i < 3 * held; i++)
            PyBuffer_Release(buffers + i);
    }
    PyMem_RawFree(memory);
    PyMem_Free(buffers);
    PyMem_Free(clients);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

PyObject *clipped_sums(PyObject *self, PyObject *args)
{
    PyObject *arrays[4] = {NULL}, *lists[3], *result = NULL;
    Py_buffer b[4] = {{0}};
    const int ndim[4] = {4, 4, 1, 3}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[4] = {dense | PyBUF_WRITABLE, PyBUF_STRIDES, PyBUF_STRIDES, dense};
    int held = 0, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO!O!O!O|O", arrays, arrays + 1, &PyList_Type, lists, &PyList_Type,
                          lists + 1, &PyList_Type, lists + 2, arrays + 2, arrays + 3))
        return NULL;
    count = arrays[3] && arrays[3] != Py_None ? 4 : 3;
    while (held < count && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == count && fits(b, b + 1, b + 2, count == 4 ? b + 3 : NULL, lists))
        result = sums(b, b + 1, b[2].buf, count == 4 ? b[3].buf : NULL, lists);
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}
