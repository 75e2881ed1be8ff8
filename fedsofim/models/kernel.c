/* The softmax residuals of stacked heads, clipped: what fedsofim/models/head.py does between its two
   matrix products, on logits that stay in the nearest cache.

   The module, of which crowd.c, client.c, held.c, moments.c and streams.c are parts, stands beside the
   package, not in it, since a Flower app bundle carries Python only. Where it cannot be built, NumPy does the same. */

#include "softmax.h"

#define LANES 32 /* examples at a time, for a small product: its sums stay in registers */

/* Add the squared norm of U r to square, for `lanes` columns of r. */
INLINE void add_squares(float *restrict square, const float *restrict r, Py_ssize_t N,
                        const float *restrict U, Py_ssize_t K, int lanes)
{
    for (Py_ssize_t j = 0; j < K; j++, U += K) {
        float u[LANES] = {0};
        for (Py_ssize_t k = 0; k < K; k++)
            for (int i = 0; i < lanes; i++)
                u[i] += U[k] * r[k * N + i];
        for (int i = 0; i < lanes; i++)
            square[i] += u[i] * u[i];
    }
}

/* Write the squared norm of U r of n columns; squares may underflow, so a bit is added. */
INLINE void transformed_squares(float *square, const float *r, Py_ssize_t N, const float *U,
                                Py_ssize_t K, int n)
{
    int done = 0;
    for (int i = 0; i < n; i++)
        square[i] = FLT_MIN;
    for (; done + LANES <= n; done += LANES)
        add_squares(square + done, r + done, N, U, K, LANES);
    if (done < n)
        add_squares(square + done, r + done, N, U, K, n - done);
}

/* Logits z, (S, K, N), become the residuals of clipped gradients, in place:

       r = softmax(z) - target,   r * min(1, clip / (||U r|| norm)),

   or 0 where that norm is not finite, or so large that what is left of r would lose digits; whether
   some is 0 for that reason is returned. U, (S, K, K), is the transform on the side of the outputs;
   NULL is the identity. Rows of target are `stride` floats apart.

   With o_k = exp(z_k - max z) of the other classes, the label's residual is -sum(o) / sum(exp), so
   ||r|| loses nothing to cancellation; and exponentials below exp(-40) are exactly 0, so no square
   of one underflows. A norm that is NaN weighs 0. */
EVERY_CPU
int clipped_residuals(float *z, const float *target, Py_ssize_t stride, const float *norm,
                      const float *clip, const float *U, Py_ssize_t K, Py_ssize_t S, Py_ssize_t N)
{
    int lost = 0;
    for (Py_ssize_t start = 0; start < N; start += NEAR)
        for (Py_ssize_t h = 0; h < S; h++) {
            const int n = (int)(N - start < NEAR ? N - start : NEAR);
            const Near near = {z + h * K * N + start, target + start, N, stride, K, n};
            Softmax s;
            exponentials(&s, &near);
            if (U) {
                fill_labels(&s, &near);
                transformed_squares(s.square, near.z, N, U + h * K * K, K, n);
            }
            lost |= weigh(&s, &near, norm + start, clip[h]);
        }
    return lost;
}

/* A buffer of float32 with `ndim` axes, the last one dense; 0 and an exception if it is not. */
int get_floats(PyObject *array, Py_buffer *view, int ndim, int flags)
{
    if (PyObject_GetBuffer(array, view, PyBUF_FORMAT | flags))
        return 0;
    if (view->ndim == ndim && !strcmp(view->format, "f") && view->strides[0] % FLOAT == 0 &&
        view->strides[ndim - 1] == FLOAT && (uintptr_t)view->buf % FLOAT == 0)
        return 1;
    PyErr_Format(PyExc_TypeError, "expected float32 with %d axes, the last one dense", ndim);
    PyBuffer_Release(view);
    return 0;
}

static PyObject *run(PyObject *self, PyObject *args)
{
    PyObject *arrays[5] = {NULL}, *result = NULL;
    Py_buffer b[5] = {{0}};
    const int ndim[5] = {3, 2, 1, 1, 3}, dense = PyBUF_C_CONTIGUOUS, strided = PyBUF_STRIDES;
    const int flags[5] = {dense | PyBUF_WRITABLE, strided, strided, strided, dense};
    int held = 0, count, lost;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO|O", arrays, arrays + 1, arrays + 2, arrays + 3, arrays + 4))
        return NULL;
    count = arrays[4] && arrays[4] != Py_None ? 5 : 4;
    while (held < count && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == count) {
        const Py_ssize_t S = b[0].shape[0], K = b[0].shape[1], N = b[0].shape[2], *U = b[4].shape;
        if (K < 1 || b[1].shape[0] != K || b[1].shape[1] != N || b[2].shape[0] != N ||
            b[3].shape[0] != S || (count == 5 && (U[0] != S || U[1] != K || U[2] != K)))
            PyErr_SetString(PyExc_ValueError,
                            "expected shapes (S, K, N), (K, N), (N,), (S,) and (S, K, K)");
        else {
            Py_BEGIN_ALLOW_THREADS
            lost = clipped_residuals(b[0].buf, b[1].buf, b[1].strides[0] / FLOAT, b[2].buf,
                                     b[3].buf, count == 5 ? b[4].buf : NULL, K, S, N);
            Py_END_ALLOW_THREADS
            result = PyBool_FromLong(lost);
        }
    }
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}

static PyMethodDef methods[] = {
    {"clipped_residuals", run, METH_VARARGS,
     "clipped_residuals(z, target, norm, clip, U=None)\n--\n\n"
     "Turn logits `(S, K, N)` into residuals of clipped gradients, in place.\n\n"
     "Args: float32 arrays: the logits, one-hot labels `(K, N)`, the norm of each example `(N,)`,\n"
     "the clip of each head `(S,)` and its transform `(S, K, K)`. Returns whether some gradient\n"
     "was too large, and so is 0."},
    {"clipped_sums", clipped_sums, METH_VARARGS,
     "clipped_sums(out, theta, x, target, norm, clip, R=None, threads=1)\n--\n\n"
     "Write the sum of clipped gradients of each of n clients to `out`, `(n, S, K, W)`.\n\n"
     "Args: float32 arrays: each client's parameters, of the shape of `out`; lists of n arrays,\n"
     "the features `(W, N)`, one-hot labels `(K, N)` and norms `(N,)` of each client; the clip of\n"
     "each head `(S,)` and upper triangles R `(S, K, K)`: residuals r are clipped by ||R r||."},
    {"transform_sums", transform_sums, METH_VARARGS,
     "transform_sums(totals, A, G)\n--\n\n"
     "Turn each of the totals `(n, S, K, W)` into `G total A`, in place; A is `(W, W)`, G is\n"
     "`(S, K, K)` or None; all float32."},
    {"decode_rows", decode_rows, METH_VARARGS,
     "decode_rows(out, rows, which, scale, lo)\n--\n\n"
     "Write features to out `(F, N)`, float32, one record a column.\n\n"
     "Args: the bytes of rows of F features, 8-bit codes, half or single precision; which of the rows,\n"
     "`(N,)` int32, or None for all; what they are multiplied with, and what is then added, `(F,)`\n"
     "float32, or None twice."},
    {"decoded_sum", decoded_sum, METH_VARARGS,
     "decoded_sum(total, theta, rows, which, scale, lo, labels, norm, clip, R)\n--\n\n"
     "Write the sum of clipped gradients of one client to total `(S, K, W)`.\n\n"
     "Args: parameters, of the shape of total; features as `decode_rows` takes them; labels `(N,)` of one\n"
     "or two bytes; and the rest as `clipped_sums` takes it, R or None."},
#ifdef VECTORS
    {"clipped_moment", clipped_moment, METH_VARARGS,
     "clipped_moment(x, shift, bound, S)\n--\n\n"
     "Write the sum of cc' to S `(F, F)`, where c are the columns of x `(F, N)`, moved by shift\n"
     "`(F,)` and clipped to norm `bound`; all float32."},
    {"weighted_sum", weighted_sum, METH_VARARGS,
     "weighted_sum(out, x, w)\n--\n\n"
     "Write the sum of the columns of x `(F, N)`, times w `(N,)`, to out `(F,)`, and return whether\n"
     "nothing in x is negative; all float32."},
    {"norms_through", norms_through, METH_VARARGS,
     "norms_through(norm, T, x)\n--\n\n"
     "Write the norms of the columns of `T x` to norm `(N,)`, where T `(W, W)` is an upper triangle\n"
     "and x is `(W, N)`; all float32."},
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fedsofim_kernel",
    .m_doc = "The inner loops of fedsofim.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_fedsofim_kernel(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made && (PyType_Ready(&StreamType) ||
                 PyModule_AddObjectRef(made, "Stream", (PyObject *)&StreamType) ||
                 PyModule_AddIntConstant(made, "HAS_VECTORS", HAS_VECTORS)))
        Py_CLEAR(made);
    return made;
}
