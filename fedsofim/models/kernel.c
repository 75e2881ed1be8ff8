/* The module, of which client.c, crowd.c, held.c, moments.c and streams.c are parts. It stands beside the
   package, not in it, since a Flower app bundle carries Python only. Where it cannot be built, NumPy does
   the same. */

#include "kernel.h"

#include <string.h>

/* The class of each example, whose one-hot labels are rows `stride` floats apart; -1 for none. */
void labels_of(int32_t *label, const float *target, Py_ssize_t stride, Py_ssize_t K, Py_ssize_t N)
{
    memset(label, -1, N * sizeof *label);
    for (int32_t k = 0; k < K; k++, target += stride)
        for (Py_ssize_t i = 0; i < N; i++)
            label[i] = target[i] != 0.0f ? k : label[i];
}

/* A buffer of float32 with `ndim` axes, the last one dense; 0 and an exception if it is not. What is one
   number long is dense, whatever its stride. */
int get_floats(PyObject *array, Py_buffer *view, int ndim, int flags)
{
    if (PyObject_GetBuffer(array, view, PyBUF_FORMAT | flags))
        return 0;
    if (view->ndim == ndim && !strcmp(view->format, "f") && view->strides[0] % FLOAT == 0 &&
        (view->strides[ndim - 1] == FLOAT || view->shape[ndim - 1] == 1) &&
        (uintptr_t)view->buf % FLOAT == 0)
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
    float *memory;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO|O", arrays, arrays + 1, arrays + 2, arrays + 3, arrays + 4))
        return NULL;
    count = arrays[4] && arrays[4] != Py_None ? 5 : 4;
    while (held < count && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == count) {
        const Py_ssize_t S = b[0].shape[0], K = b[0].shape[1], N = b[0].shape[2], *R = b[4].shape;
        if (K < 1 || b[1].shape[0] != K || b[1].shape[1] != N || b[2].shape[0] != N ||
            b[3].shape[0] != S || (count == 5 && (R[0] != S || R[1] != K || R[2] != K)))
            PyErr_SetString(PyExc_ValueError,
                            "expected shapes (S, K, N), (K, N), (N,), (S,) and (S, K, K)");
        else if (!(memory = PyMem_RawMalloc((residuals_room(K) + N) * sizeof *memory)))
            PyErr_NoMemory();
        else {
            int32_t *label = (int32_t *)(memory + residuals_room(K));
            Py_BEGIN_ALLOW_THREADS
            labels_of(label, b[1].buf, b[1].strides[0] / FLOAT, K, N);
            lost = clipped_residuals(b[0].buf, memory, label, b[2].buf, b[3].buf,
                                     count == 5 ? b[4].buf : NULL, S, K, N);
            Py_END_ALLOW_THREADS
            result = PyBool_FromLong(lost);
            PyMem_RawFree(memory);
        }
    }
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}

static PyMethodDef methods[] = {
    {"clipped_residuals", run, METH_VARARGS,
     "clipped_residuals(z, target, norm, clip, R=None)\n--\n\n"
     "Turn logits `(S, K, N)` into residuals of clipped gradients, in place.\n\n"
     "Args: float32 arrays: the logits, one-hot labels `(K, N)`, the norm of each example `(N,)`,\n"
     "the clip of each head `(S,)` and upper triangles R `(S, K, K)`: residuals r are clipped by\n"
     "||R r||. Returns whether some gradient was too large, and so is 0."},
    {"clipped_sums", clipped_sums, METH_VARARGS,
     "clipped_sums(out, theta, x, target, norm, clip, R=None, threads=1, A=None, G=None, moment=False)"
     "\n--\n\n"
     "Write the sum of clipped gradients of each of n clients to `out`, `(n, S, K, W)`.\n\n"
     "Args: float32 arrays: each client's parameters, of the shape of `out`; lists of n arrays,\n"
     "the features `(W, N)`, one-hot labels `(K, N)` and norms `(N,)` of each client; the clip of\n"
     "each head `(S,)` and upper triangles R `(S, K, K)`: residuals r are clipped by ||R r||. With A\n"
     "the sums are transformed, as by `transform_sums`. Or, as their moment, the sum of r r' is written\n"
     "to `out`, `(n, S, K, K)`."},
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
